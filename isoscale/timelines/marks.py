"""What went wrong, or nearly, as a log tells it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from isoscale.timelines.fields import executor_of, number, seconds, text, whole
from isoscale.timelines.placements import Timed
from isoscale.timelines.values import Mark, MarkKind, State

__all__ = ["ENDS", "RUNS", "marks"]

ENDS: Mapping[str, State] = {
    "finished": "finished",
    "stopped": "stopped",
    "failed": "failed",
    "job_finished": "finished",
    "job_failed": "failed",
}
#: what a job does only when it is not over
RUNS = frozenset(
    {"step", "generation", "coordinator_started", "executor_started", "executor_joined", "job_started", "job_resized"}
)
_MARKS: Mapping[str, tuple[MarkKind, str]] = {
    "executor_lost": ("lost", "reason"),
    "suspect": ("suspect", "reason"),
    "notice": ("notice", "reason"),
    "warning": ("warning", "message"),
    "failed": ("failed", "error"),
    "job_failed": ("failed", "error"),
}


def marks(timed: Sequence[Timed]) -> tuple[Mark, ...]:
    """In order of time. Of losses that are not finite, the first."""
    found: list[Mark] = []
    over = coordinated = diverged = False
    for t, event in timed:
        name, executor = event["event"], executor_of(event)
        over = name in ENDS or (over and name not in RUNS)
        if name in _MARKS and not (over and name == "executor_lost"):  # executors that end with a job are no fault
            kind, field = _MARKS[name]
            found.append(Mark(t=t, kind=kind, executor=executor, text=text(event, field)))
        elif name == "straggler":
            ratio = seconds(event, "ratio")
            words = f"{ratio:.1f} times as slow as the median" if ratio is not None else ""
            words += ", set aside" if event.get("set_aside") else ""
            found.append(Mark(t=t, kind="straggler", executor=executor, text=words))
        elif name == "coordinator_started":
            term = whole(event, "term")
            if coordinated or (term or 0) > 1:
                words = "a new coordinator" if term is None else f"a new coordinator, term {term}"
                found.append(Mark(t=t, kind="coordinator", executor=None, text=words))
            coordinated = True
        elif name == "coordinator_paused":
            paused = seconds(event, "seconds")
            words = "the coordinator was not running" + (f" for {paused:.1f} s" if paused is not None else "")
            found.append(Mark(t=t, kind="coordinator", executor=None, text=words))
        elif name == "step" and not diverged:
            loss = number(event, "loss")
            if loss is not None and not math.isfinite(loss):
                diverged = True
                words = f"the loss of step {text(event, 'step')} is {loss}"
                found.append(Mark(t=t, kind="warning", executor=None, text=words))
    return tuple(found)

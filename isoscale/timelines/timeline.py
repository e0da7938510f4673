"""From the events of a job's log to its timeline. Pure: no file, no clock, no drawing.

Whatever the log lacks is missing in the timeline too; events that are not known and fields that make no sense are
passed over. Logs of any length give a timeline of bounded curves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isoscale.timelines.curves import decimate, downtime, rate
from isoscale.timelines.fields import Event, instant, number, seconds, text, whole
from isoscale.timelines.lives import lives
from isoscale.timelines.marks import ENDS, RUNS, marks
from isoscale.timelines.placements import Generation, Timed, generations, shares_of, workers_of
from isoscale.timelines.values import Audit, BatchSize, Checkpoint, Curve, Life, Rescale, State, Timeline

__all__ = ["Timeline", "as_json", "jobs_of", "timeline"]

# A log that begins before 1973 counts virtual seconds.
_FIRST_REAL_S = 1e8
#: fields of an event `log` that no script logged, and names of which there are curves at most
_NOT_LOGGED, _MAX_SERIES = ("t", "event", "step", "epoch", "job"), 64
#: of a curve over steps, which is drawn small
_SERIES_POINTS = 300
#: which events tell how far a job is; others may be written late (a checkpoint) and name an earlier step
_COUNTERS = {
    "step": ("step", "generation", *ENDS),
    "epoch": ("step",),
    "generation": ("step", "generation", "rescale", "executor_joined"),
    "term": ("coordinator_started",),
}


def jobs_of(events: Iterable[Event]) -> list[str]:
    """The jobs that a log names, in order of appearance; none in the log of a single run."""
    return list(dict.fromkeys(text(event, "job") for event in events if event.get("job") is not None))


def timeline(
    events: Iterable[Event], *, job: str = "", num_logical_workers: int | None = None, directory: str = ""
) -> Timeline:
    """The timeline of all `events`; of a log with several jobs, pass those of one.

    `job` is a name to show, `directory` where the log lies. `num_logical_workers` is used where the log does not tell
    it.
    """
    start, timed = _timed(events)
    end = timed[-1][0] if timed else 0.0
    num_logical_workers = workers_of(timed) or num_logical_workers
    placements = generations(timed, num_logical_workers)
    steps = [(t, event) for t, event in timed if event["event"] == "step"]
    times = np.array([t for t, _ in steps], dtype=np.float64)
    numbers = [whole(event, "step") or 0 for _, event in steps]
    gaps = np.diff(times)
    living = lives(timed, placements, end)
    losses = [number(event, "loss") for _, event in steps]
    return Timeline(
        job=job,
        state=_state(timed),
        start=start,
        simulated=start < _FIRST_REAL_S,
        seconds=end,
        steps_redone=len(numbers) - len(set(numbers)),
        num_logical_workers=num_logical_workers,
        digest=next((text(e, "digest") for _, e in reversed(timed) if e["event"] == "finished"), ""),
        error=next((text(e, "error") for _, e in reversed(timed) if ENDS.get(e["event"]) == "failed"), ""),
        median_step_s=_median([seconds(event, "seconds") for _, event in steps]),
        longest_gap_s=float(gaps.max()) if len(gaps) else None,
        steps_per_s=len(gaps) / float(times[-1] - times[0]) if len(gaps) and times[-1] > times[0] else None,
        idle=_idle(living),
        executor_s=sum(stay.end - stay.start for life in living for stay in life.stays),
        sizes=_sizes(timed, placements),
        lives=living,
        rescales=_rescales(timed, steps, placements),
        marks=marks(timed),
        batches=_batches(timed),
        checkpoints=tuple(
            Checkpoint(t=t, step=whole(e, "step"), path=text(e, "path"), seconds=seconds(e, "seconds"))
            for t, e in timed
            if e["event"] == "checkpoint"
        ),
        audits=tuple(
            Audit(t=t, step=whole(e, "step"), digest=text(e, "digest")) for t, e in timed if e["event"] == "audit"
        ),
        logged=_logged(timed),
        series=_series(timed),
        command=next((text(e, "command") for _, e in timed if e["event"] == "coordinator_started"), ""),
        directory=directory,
        loss=decimate(times, _array(losses), gap=downtime(times)),
        throughput=rate(times, gap=downtime(times)),
        step=_last(timed, "step") or 0,
        epoch=_last(timed, "epoch"),
        generation=_last(timed, "generation"),
        term=_last(timed, "term"),
    )


def as_json(shown: Timeline) -> dict[str, Any]:
    """The timeline as plain JSON values."""
    return {"format": 1, **asdict(shown), "logged": {name: _plain(value) for name, value in shown.logged}}


def _timed(events: Iterable[Event]) -> tuple[float, list[Timed]]:
    """The start, and events with seconds since it, in order. One without a time happened when the one before it did."""
    found: list[tuple[float | None, Event]] = []
    latest: float | None = None
    for event in events:
        t = instant(event)
        if isinstance(event.get("event"), str):
            latest = latest if t is None else t
            found.append((latest, event))
    start = min((t for t, _ in found if t is not None), default=0.0)
    # Sorted: executors keep their events while there is no coordinator, and hand them in late.
    return start, sorted(
        ((0.0 if t is None else round(t - start, 6), event) for t, event in found), key=lambda item: item[0]
    )


def _state(timed: Sequence[Timed]) -> State:
    for _, event in reversed(timed):
        if event["event"] in ENDS:
            return ENDS[event["event"]]
        if event["event"] in RUNS:
            break
    return "running" if timed else "empty"


def _last(timed: Sequence[Timed], name: str) -> int | None:
    told = (whole(event, name) for _, event in reversed(timed) if event["event"] in _COUNTERS[name])
    return next((value for value in told if value is not None), None)


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _idle(living: Sequence[Life]) -> float | None:
    measured = [(life.idle, sum(stay.end - stay.start for stay in life.stays)) for life in living]
    weights = [(idle, weight) for idle, weight in measured if idle is not None and weight > 0]
    total = sum(weight for _, weight in weights)
    return sum(idle * weight for idle, weight in weights) / total if total else None


def _sizes(timed: Sequence[Timed], placements: Sequence[Generation]) -> tuple[tuple[float, int], ...]:
    if placements:
        told = [(one.t, len(one.members)) for one in placements]
    else:
        fields = {"step": "executors", "rescale": "to", "job_started": "to", "job_resized": "to"}
        read = [(t, whole(event, fields.get(event["event"], ""))) for t, event in timed]
        told = [(t, size) for t, size in read if size is not None]
    return tuple(entry for i, entry in enumerate(told) if i == 0 or told[i - 1][1] != entry[1])


def _rescales(timed: Sequence[Timed], steps: Sequence[Timed], placements: Sequence[Generation]) -> tuple[Rescale, ...]:
    began: dict[int | None, float] = {one.generation: one.t for one in placements}
    first: dict[int | None, int] = {}
    for index, (_, event) in enumerate(steps):
        first.setdefault(whole(event, "generation"), index)

    def gap(generation: int | None) -> float | None:
        index = 0 if generation is None else first.get(generation, 0)
        return steps[index][0] - steps[index - 1][0] if index else None

    return tuple(
        Rescale(
            t=min(began.get(generation, t), t),
            generation=generation,
            num_before=whole(event, "from"),
            num_after=whole(event, "to"),
            step=whole(event, "step"),
            pause_s=seconds(event, "pause_s"),
            wait_s=seconds(event, "wait_s"),
            gap_s=gap(generation),
            reason=text(event, "reason"),
            shares=shares_of(event),
        )
        for t, event in timed
        if event["event"] in ("rescale", "job_resized")
        for generation in [whole(event, "generation")]
    )


def _batches(timed: Sequence[Timed]) -> tuple[BatchSize, ...]:
    """A change that was made again after a restart counts once, when it was made first."""
    found: dict[int | None, BatchSize] = {}
    for t, event in timed:
        if event["event"] == "batch":
            rates = event.get("learning_rates")
            known = rates if isinstance(rates, list) else []
            change = BatchSize(
                t=t,
                step=whole(event, "step"),
                before=whole(event, "from"),
                after=whole(event, "to"),
                factor=number(event, "factor"),
                learning_rates=tuple(float(rate) for rate in known if isinstance(rate, int | float)),
                reason=text(event, "reason"),
            )
            found.setdefault(change.step, change)
    return tuple(found.values())


def _logged(timed: Sequence[Timed]) -> tuple[tuple[str, float], ...]:
    found: dict[str, float] = {}
    for _, event in timed:
        if event["event"] == "log":
            values = {name: number(event, name) for name in event if name not in _NOT_LOGGED}
            found |= {name: value for name, value in values.items() if value is not None}
    return tuple(found.items())


def _series(timed: Sequence[Timed]) -> tuple[tuple[str, Curve], ...]:
    """By committed step; of a step that was done again, what was logged last."""
    found: dict[str, dict[int, float]] = {}
    for _, event in timed:
        names = {"step": ("loss",), "log": [name for name in event if name not in _NOT_LOGGED]}.get(event["event"], ())
        step = whole(event, "step")
        for name in names if step is not None else ():
            value = number(event, name)
            if value is not None and step is not None and (name in found or len(found) < _MAX_SERIES):
                found.setdefault(name, {})[step] = value
    curves = {name: sorted(values.items()) for name, values in found.items()}
    return tuple(
        (name, decimate(_array([step for step, _ in points]), _array([value for _, value in points]), _SERIES_POINTS))
        for name, points in curves.items()
    )


def _array(values: Iterable[float | None]) -> NDArray[np.float64]:
    return np.array([math.nan if value is None else value for value in values], dtype=np.float64)


def _plain(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)

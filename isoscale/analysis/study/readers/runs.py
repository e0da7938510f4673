"""Directories of our own runs: one job each, with its rescales, pauses, repeated steps, and why it failed."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import Any

import numpy as np

from isoscale.analysis.failures import CLASSES, FailureClass, classify
from isoscale.analysis.study.builder import TraceBuilder
from isoscale.analysis.study.own_log import OwnLog, Resize
from isoscale.analysis.study.readers.events import LOG, events_of, is_log, is_simulated
from isoscale.analysis.study.readers.times import EPOCH
from isoscale.analysis.study.reading import Reading
from isoscale.analysis.study.trace import Trace
from isoscale.protocol.files import open_regular, read_small_json
from isoscale.timelines.fields import text
from isoscale.timelines.timeline import Timeline, timeline

__all__ = ["read_runs", "recognises"]

_STATUS = {
    "finished": "passed",
    "stopped": "killed",
    "failed": "failed",
    "running": "unfinished",
    "empty": "unfinished",
}
_TAIL_BYTES = 200_000
_LACKS = {
    "tenant": "tenant (a run has none; a service's STATE has)",
    "user": "user (a run has none; a service's STATE has)",
    "quota": "devices of each tenant (a service's STATE)",
    "capacity": "devices of the machine (a service's STATE)",
    "places": "devices of a machine (a run's executors have numbers)",
    "utilisation": "samples of devices (executor_speed has idle shares)",
    "host": "samples of hosts (not in a run's log)",
    "forecast": "forecasts (a service's STATE)",
    "kind": "model (the script's name is the job's)",
}


def recognises(path: Path) -> bool:
    return bool(_homes(path))


def read_runs(path: Path, reading: Reading, classes: tuple[FailureClass, ...] = CLASSES) -> Trace:
    """A run's DIR, its log, or a directory of such DIRs."""
    builder = TraceBuilder()
    resizes: list[Resize] = []
    redone = lost = 0
    redone_s = 0.0
    wanted: list[float] = []
    last_s = 0.0
    for home, log in _homes(path):
        events = [event for _, event in events_of(log, reading)]
        shown = timeline(events, job=home.name)
        if shown.state == "empty":
            reading.leave_out("runs without an event")
            continue
        if not reading.wants(shown.start):
            continue
        number = _add(builder, home, shown, events, classes)
        resizes += [
            Resize(number, shown.start + one.t, one.num_before or 0, one.num_after or 0, one.pause_s, one.reason)
            for one in shown.rescales
        ]
        redone += shown.steps_redone
        redone_s += shown.steps_redone * (shown.median_step_s or 0.0)
        lost += sum(mark.kind == "lost" for mark in shown.marks)
        wanted.append(float(shown.num_logical_workers or max((size for _, size in shown.sizes), default=1)))
        last_s = max(last_s, shown.start + shown.seconds)
    return builder.build(
        name=path.resolve().name,
        format="isoscale-run",
        account=reading.account(),
        zero=EPOCH,
        own=OwnLog(
            source="runs",
            resizes=tuple(resizes),
            steps_redone=redone,
            redone_s=redone_s,
            executors_lost=lost,
            wanted=np.array(wanted),
            busy_s=np.full(len(wanted), math.nan),
            end_s=last_s,
        ),
        lacks=_LACKS,
    )


def _add(
    builder: TraceBuilder, home: Path, shown: Timeline, events: list[dict[str, Any]], classes: tuple[FailureClass, ...]
) -> int:
    first = next((float(e["t"]) for e in events if e["event"] in ("generation", "step", "executor_joined")), math.nan)
    status = _STATUS[shown.state]
    end_s = shown.start + shown.seconds if status != "unfinished" else math.nan
    devices = shown.sizes[0][1] if shown.sizes else 0
    number = builder.add_job(
        home.name,
        submit_s=shown.start,
        start_s=first,
        end_s=end_s,
        devices=devices,
        status=status,
        kind=_script(home),
    )
    attempts = _attempts(events, shown.start + shown.seconds)
    for index, (begin, end, ended, error) in enumerate(attempts):
        failed = ended == "failed" or (not ended and index < len(attempts) - 1)
        words = "\n".join([*_output(home), error]) if failed else ""
        builder.add_attempt(
            number,
            start_s=begin,
            end_s=end,
            devices=devices,
            failed=failed,
            error=classify(words, classes).name if failed else "",
            holds=False,
            number=index,
        )
    for life in shown.lives:
        for stay in life.stays:
            builder.add_holding(number, shown.start + stay.start, shown.start + stay.end, 1.0)
    return number


def _attempts(events: list[dict[str, Any]], end: float) -> list[tuple[float, float, str, str]]:
    """(begin, end, how it ended, error) of every coordinator's term: a resumed run has several."""
    found: list[tuple[float, float, str, str]] = []
    begin, ended, error, latest = math.nan, "", "", math.nan
    for event in events:
        name, t = event["event"], float(event["t"])
        if name == "coordinator_started":
            if not math.isnan(begin):
                found.append((begin, latest, ended, error))
            begin, ended, error = t, "", ""
        elif name in ("finished", "stopped", "failed"):
            ended, error = name, text(event, "error")
        begin, latest = (t if math.isnan(begin) else begin), t
    if not math.isnan(begin):
        found.append((begin, max(end, begin), ended, error))
    return found


def _output(home: Path) -> list[str]:
    """The ends of what its executors printed."""
    found = []
    for path in sorted((home / "logs").glob("executor-*.log"))[-64:]:
        with contextlib.suppress(OSError), open_regular(path) as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            found.append(file.read(_TAIL_BYTES).decode(errors="replace"))
    return found


def _script(home: Path) -> str:
    try:
        job = read_small_json(home / "summary.json").get("job")
    except (OSError, ValueError, AttributeError):
        return ""
    script = job.get("script") if isinstance(job, dict) else None
    return Path(script).name if isinstance(script, str) else ""


def _homes(path: Path) -> list[tuple[Path, Path]]:
    """(home, log) of every real run there."""
    if is_log(path):
        log = path / LOG if path.is_dir() else path
        return [] if is_simulated(path) else [(log.parent.resolve(), log)]
    if not path.is_dir():
        return []
    children = sorted(child for child in path.iterdir() if child.is_dir() and is_log(child))
    return [(child, child / LOG) for child in children if not is_simulated(child)]

"""Our own trace format: a CSV whose header names the fields of `TraceJob`.

`name,submit_s,devices` are required, and one of `duration_s` and `steps` in each line. Kinds are separated by `|`,
times of a turn written `V100=0.44|T4=0.68`, failures as the share of the work at which each trial fails and its error
class, `0.2=GPU ECC error|0.5=CUDA failure`. An empty field means what an absent column means. Times are seconds.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path

from isoscale import limits
from isoscale.sim.traces.record import OnBad, Row, TraceJob, jobs_of_table

__all__ = ["COLUMNS", "read_own", "write_own"]

COLUMNS = tuple(field.name for field in fields(TraceJob))
_REQUIRED = ("name", "submit_s", "devices")


def read_own(path: Path, on_bad: OnBad | None = None) -> Iterator[TraceJob]:
    return jobs_of_table(path, _REQUIRED, _job, on_bad)


def write_own(path: Path, jobs: Iterable[TraceJob], *, comment: str = "") -> None:
    """Writes what `read_own` reads; columns that no job uses are left out."""
    listed = list(jobs)
    used = [name for name in COLUMNS if name in _REQUIRED or any(getattr(job, name) for job in listed)]
    with path.open("w", encoding="utf-8", newline="") as file:
        file.writelines(f"# {line}\n" for line in comment.splitlines())
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(used)
        writer.writerows([_text(getattr(job, name)) for name in used] for job in listed)


def _turn_times(row: Row) -> dict[str, float]:
    found = {}
    for part in filter(None, row.text("turn_s", "").split("|")):
        kind, equals, value = part.partition("=")
        seconds = float(value) if limits.is_decimal(value) else 0.0
        if not equals or not kind.strip() or not 0 < seconds <= limits.MAX_NUMBER:
            raise row.bad("turn_s", part, "is not KIND=SECONDS", "give, for example, V100=0.44|T4=0.68")
        found[kind.strip()] = seconds
    return found


def _failures(row: Row) -> tuple[tuple[float, str], ...]:
    found = []
    for part in filter(None, row.text("failures", "").split("|")):
        share, equals, error = part.partition("=")
        at = float(share) if limits.is_decimal(share) else -1.0
        if not equals or not error.strip() or not 0 <= at < 1:
            raise row.bad("failures", part, "is not SHARE=ERROR", "give, for example, 0.2=GPU ECC error")
        found.append((at, error.strip()))
    if found != sorted(found, key=lambda one: one[0]):
        raise row.bad("failures", row.text("failures"), "goes backwards", "give failures in order of their shares")
    return tuple(found)


def _optional(row: Row, column: str) -> float | None:
    return row.number(column) if row.text(column, "") else None


def _text(value: object) -> str:
    if isinstance(value, dict):
        return "|".join(f"{kind}={_text(seconds)}" for kind, seconds in value.items())
    if isinstance(value, tuple):
        return "|".join(f"{_text(one[0])}={one[1]}" if isinstance(one, tuple) else str(one) for one in value)
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else repr(value)
    # A whole 0 means "as usual", as nothing does.
    return str(value) if value else ""


def _job(row: Row) -> TraceJob:
    duration_s, steps = _optional(row, "duration_s"), _optional(row, "steps")
    if duration_s is None and steps is None:
        raise row.bad("duration_s", "", "neither duration_s nor steps is given", "give one of them")
    devices = row.count("devices")
    kinds = tuple(part.strip() for part in row.text("kinds", "").split("|") if part.strip())
    return TraceJob(
        name=row.text("name"),
        submit_s=row.number("submit_s"),
        devices=devices,
        duration_s=duration_s,
        steps=steps,
        workers=row.count("workers", 0),
        min_devices=row.count("min_devices", 0),
        max_devices=row.count("max_devices", 0),
        application=row.text("application", ""),
        batch=row.count("batch", 0, most=limits.MAX_NUMBER),
        kind=row.text("kind", ""),
        kinds=kinds,
        turn_s=_turn_times(row),
        tenant=row.text("tenant", ""),
        priority=row.count("priority", 0, least=0, most=limits.MAX_NUMBER),
        deadline_s=_optional(row, "deadline_s"),
        status=row.text("status", ""),
        failures=_failures(row),
    )

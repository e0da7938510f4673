"""Two or more analyses side by side: the figures that matter, and by how much they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from isoscale.analysis.study.finding import Table, amount, percent
from isoscale.analysis.words import duration

__all__ = ["compared", "comparison_table"]

#: (what, path in analysis.json, how it is said)
_ROWS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("jobs", ("jobs",), "number"),
    ("days", ("period", "days"), "number"),
    ("passed, of jobs", ("status", "share_by_jobs", "passed"), "share"),
    ("passed, of device time", ("status", "share_by_device_time", "passed"), "share"),
    ("failed, of jobs", ("status", "share_by_jobs", "failed"), "share"),
    ("failed, of device time", ("status", "share_by_device_time", "failed"), "share"),
    ("run time, mean", ("run_s", "all", "mean"), "time"),
    ("run time, median", ("run_s", "all", "p50"), "time"),
    ("run time, p99", ("run_s", "all", "p99"), "time"),
    ("waiting, mean", ("queue_s", "all", "mean"), "time"),
    ("waiting, median", ("queue_s", "all", "p50"), "time"),
    ("waiting, p90", ("queue_s", "all", "p90"), "time"),
    ("waiting ten minutes or more", ("queue_over_10_min", "all"), "share"),
    ("use of held devices, mean", ("utilisation", "held", "mean"), "percent"),
    ("devices in use, mean", ("load", "mean_in_use"), "number"),
    ("devices in use, most", ("load", "peak_in_use"), "number"),
    ("attempts that failed", ("failures", "trials"), "number"),
    ("device time in retries", ("retries", "share_of_device_time"), "share"),
    ("mean completion time", ("own", "summary", "mean_jct_s"), "time"),
    ("changes of size", ("own", "rescales"), "number"),
    ("device-hours that a trial would save", ("advice", "trial", "device_hours"), "number"),
    ("device-hours of hopeless retries", ("advice", "hopeless", "device_hours"), "number"),
)


def compared(documents: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Figures of every trace by name, and the last over the first."""
    differences: dict[str, Any] = {}
    for words, path, _ in _ROWS:
        values = {name: _value(document, path) for name, document in documents.items()}
        if any(value is not None for value in values.values()):
            numbers = list(values.values())
            first, last = numbers[0], numbers[-1]
            ratio = last / first if first and last is not None else None
            differences[words] = {**values, "ratio": ratio}
    return {"compared": list(documents), "differences": differences, "traces": dict(documents)}


def comparison_table(documents: Mapping[str, Mapping[str, Any]]) -> Table:
    rows = []
    for words, path, form in _ROWS:
        values = [_value(document, path) for document in documents.values()]
        if all(value is None for value in values):
            continue
        first, last = values[0], values[-1]
        change = f"{last / first:.2f}x" if first and last is not None and len(values) > 1 else ""
        rows.append([words, *(_said(value, form) for value in values), change])
    return Table(title="Side by side", columns=("", *documents, "last over first"), rows=rows)


def _value(document: Mapping[str, Any], path: Sequence[str]) -> float | None:
    value: Any = document
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _said(value: float | None, form: str) -> str:
    if value is None:
        return "-"
    if form == "share":
        return percent(value)
    if form == "percent":
        return f"{value:.1f} %"
    return duration(value) if form == "time" else amount(round(value, 1))

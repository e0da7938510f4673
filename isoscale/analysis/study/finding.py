"""What a subject found: figures for JSON, tables for people, a sentence, and what is missing for the rest."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from isoscale.analysis.words import duration

__all__ = ["Finding", "Table", "amount", "hours", "percent", "time_of_figure", "times_table"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of text; the first column is a name, all others are numbers."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    #: what stands small below each cell, on pages only
    details: Sequence[Sequence[str]] = ()
    #: whether the terminal shows it: pages show all; and which columns of it, () all
    brief: bool = True
    narrow: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One subject of one trace."""

    key: str
    title: str
    #: entries of analysis.json
    figures: Mapping[str, object]
    tables: Sequence[Table] = ()
    #: the finding in a sentence
    says: str = ""
    #: what could not be computed -> the column or file that is missing
    missing: Mapping[str, str] = field(default_factory=dict)


def percent(share: float | None, digits: int = 1) -> str:
    """
    >>> percent(0.1234), percent(None)
    ('12.3 %', '-')
    """
    return "-" if share is None or math.isnan(share) else f"{100 * share:.{digits}f} %"


def amount(number: float | None) -> str:
    """
    >>> amount(1234), amount(0.5), amount(None)
    ('1,234', '0.5', '-')
    """
    if number is None or math.isnan(number):
        return "-"
    return f"{number:,.0f}" if float(number).is_integer() or abs(number) >= 100 else f"{number:,.2g}"


def hours(device_s: float) -> str:
    """Device-seconds as device-hours.

    >>> hours(3600.0), hours(1e7)
    ('1.0', '2,778')
    """
    value = device_s / 3600
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}"


def time_of_figure(value: object) -> str:
    return duration(value) if isinstance(value, int | float) else "-"


def times_table(
    title: str, name: str, figures: Mapping[str, Mapping[str, object]], *, note: str = "", brief: bool = True
) -> Table:
    """Figures of times by class, a class a row, with intervals behind percentiles of small samples."""
    rows, details = [], []
    for key, found in figures.items():
        if not found["count"]:
            continue
        cells = [key, amount(_number(found["count"])), time_of_figure(found["mean"])]
        levels = ("p50", "p90", "p99")
        rows.append([*cells, *(time_of_figure(found[level]) for level in levels)])
        details.append(["", "", "", *(_interval(found.get(f"{level}_interval")) for level in levels)])
    if any("p50_interval" in found for found in figures.values()):
        note = (note + " " if note else "") + "Below: 95 % confidence, where there are fewer than 1,000 jobs."
    return Table(
        title=title,
        columns=(name, "jobs", "mean", "median", "p90", "p99"),
        rows=rows,
        details=details,
        note=note,
        brief=brief,
    )


def _interval(ends: object) -> str:
    if not isinstance(ends, list) or ends == [None, None]:
        return ""
    low, high = ("…" if end is None else duration(end) for end in ends)
    return f"{low} to {high}"


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None

"""Fields of an event that may be missing or malformed: each reader gives a checked value or None, and never raises.

Logs outlive the programs that wrote them, are read while they are written, and are edited by hand.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

__all__ = ["Event", "ExecutorId", "executor_of", "instant", "items", "number", "seconds", "text", "whole"]

Event = Mapping[str, Any]
#: executors of real runs have numbers, those of a simulated cluster may have names
ExecutorId = int | str

#: 30 million years in seconds; more is a mistake, and sums of it overflow
_TOO_MUCH = 1e15
_NOT_FINITE = frozenset({"nan", "inf", "-inf"})


def number(event: Event, name: str) -> float | None:
    """A float, NaN and infinity included: the log has those as strings.

    >>> number({"loss": "nan"}, "loss"), number({"loss": True}, "loss"), number({}, "loss")
    (nan, None, None)
    """
    value = event.get(name)
    if isinstance(value, str) and value in _NOT_FINITE:
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:  # an int of more than 308 digits
        return math.inf if value > 0 else -math.inf


def whole(event: Event, name: str) -> int | None:
    """An int of at least 0."""
    value = number(event, name)
    return int(value) if value is not None and math.isfinite(value) and value >= 0 else None


def seconds(event: Event, name: str) -> float | None:
    """A duration or another measure: not negative, and small enough to be added up."""
    value = number(event, name)
    return value if value is not None and 0 <= value < _TOO_MUCH else None


def instant(event: Event) -> float | None:
    """The event's `t`, if it is one that can be reckoned with."""
    value = number(event, "t")
    return value if value is not None and abs(value) < _TOO_MUCH else None


def text(event: Event, name: str) -> str:
    """The value as text, "" if there is none."""
    value = event.get(name)
    return "" if value is None else str(value)


def executor_of(event: Event, name: str = "executor") -> ExecutorId | None:
    value = event.get(name)
    return value if isinstance(value, int | str) and not isinstance(value, bool) else None


def items(event: Event, name: str) -> list[Any]:
    value = event.get(name)
    return value if isinstance(value, list) else []

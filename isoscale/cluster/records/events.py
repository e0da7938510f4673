"""A run's own events, page by page from the end of its log, without the three kinds that are many."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from isoscale.protocol.files import open_regular
from isoscale.timelines.fields import instant

__all__ = ["MAX_EVENTS", "RunEvent", "RunEvents", "run_events"]

MAX_EVENTS = 1_000
#: bytes that one call looks through; a page may be empty and still not be the last
_SPAN = 4 * 2**20
_MANY = (b'"event": "step"', b'"event": "log"', b'"event": "executor_speed"')


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvent:
    #: where its line begins
    at: int
    t: float | None
    event: str
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvents:
    """In order. `older`: the `before` of the page before this one, None at the beginning; `newer`: the `after` of what
    comes."""

    events: tuple[RunEvent, ...]
    older: int | None
    newer: int
    size: int


def run_events(directory: Path, *, before: int | None = None, after: int | None = None, limit: int = 200) -> RunEvents:
    """The newest in front of byte `before`, or the oldest from byte `after` on; neither: the newest."""
    data, size, begin = b"", 0, 0
    with contextlib.suppress(OSError), open_regular(directory / "events.jsonl") as file:
        size = file.seek(0, 2)
        end = size
        if after is not None:
            begin, end = min(after, size), min(size, after + _SPAN)
        else:
            end = size if before is None else min(before, size)
            begin = max(0, end - _SPAN)
        file.seek(begin)
        data = file.read(end - begin)
    if after is None and begin:  # from a whole line on
        first = data.find(b"\n") + 1
        begin, data = begin + first, data[first:]
    whole = data.rfind(b"\n") + 1
    found, at = [], begin
    for line in data[:whole].split(b"\n")[:-1]:
        if not any(mark in line for mark in _MANY) and (event := _event(line, at)) is not None:
            found.append(event)
        at += len(line) + 1
    if after is not None:
        kept = found[:limit]
        newer = found[limit].at if len(found) > limit else at
        return RunEvents(events=tuple(kept), older=kept[0].at if kept and kept[0].at else None, newer=newer, size=size)
    kept = found[-limit:] if limit else []
    older = kept[0].at if len(found) > limit else begin
    return RunEvents(events=tuple(kept), older=older or None, newer=at, size=size)


def _event(line: bytes, at: int) -> RunEvent | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not isinstance(found.get("event"), str):
        return None
    rest = {name: value for name, value in found.items() if name not in ("t", "event")}
    return RunEvent(at=at, t=instant(found), event=found["event"], fields=rest)

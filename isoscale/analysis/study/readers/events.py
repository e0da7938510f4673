"""Lines of an event log with every malformed one accounted for; what kind of log it is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from isoscale.analysis.study.reading import Reading
from isoscale.errors import UserError
from isoscale.protocol.events import read_events
from isoscale.protocol.files import open_regular

__all__ = ["LOG", "events_of", "is_log", "is_simulated"]

LOG = "events.jsonl"
_REPORT_EVERY = 50_000
_MAX_LINE = 16 * 2**20
_SIMULATED = frozenset({"cluster", "job_submitted", "job_started"})


def events_of(path: Path, reading: Reading) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line, event) of every line that is one. A torn last line is what a killed writer leaves, and no mistake."""
    decode = msgspec.json.Decoder().decode
    try:
        with open_regular(path) as file:
            size = max(1, os.fstat(file.fileno()).st_size)
            number = done = 0
            while line := file.readline(_MAX_LINE):
                number += 1
                done += len(line)
                if number % _REPORT_EVERY == 0:
                    reading.progress(path, done, size)
                if not line.strip():
                    continue
                try:
                    event = decode(line)
                except (msgspec.DecodeError, RecursionError) as error:
                    if line.endswith(b"\n"):
                        reading.read(path)
                        reading.bad(path, number, "line", line[:60].decode(errors="replace").strip(), str(error))
                    else:
                        reading.leave_out("torn last lines")
                    continue
                reading.read(path)
                if not isinstance(event, dict) or not isinstance(event.get("event"), str):
                    reading.bad(path, number, "event", "", "is not the name of an event")
                    continue
                t = event.get("t")
                if isinstance(t, bool) or not isinstance(t, int | float) or not abs(t) < 1e15:
                    reading.bad(path, number, "t", t, "is not a time")
                    continue
                yield number, event
            reading.progress(path, size, size)
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
        raise UserError(field="TRACE", value=path, problem=problem, remedy="give the --out of a run") from None


def is_log(path: Path) -> bool:
    return (path / LOG).is_file() if path.is_dir() else path.suffix == ".jsonl" and path.is_file()


def is_simulated(path: Path) -> bool:
    """Whether a log is of a simulated cluster: it then begins with one."""
    log = path / LOG if path.is_dir() else path
    try:
        first = next(iter(read_events(log)), {})
    except OSError:
        return False
    return first.get("event") in _SIMULATED

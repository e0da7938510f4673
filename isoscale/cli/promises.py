"""Whether a run kept its promises, as the command line says it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from isoscale.analysis.promise_rows import SAID, rows
from isoscale.analysis.promises import Verdict, check
from isoscale.protocol.events import read_events
from isoscale.timelines.fields import Event

__all__ = ["promises_table", "verdict_of", "warn_if_broken"]

_STYLES = {"kept": "green", "broken": "bold red", "unknown": "yellow"}
#: a log that is read again at the end of a run must not keep anybody waiting
_MAX_BYTES = 64 * 2**20


def verdict_of(events: Iterable[Event], home: Path) -> Verdict:
    """By the log of a run whose directory is `home`."""
    settings = _read(home / "control" / "job.json").get("settings")
    summary = _read(home / "summary.json")
    return check(events, settings=settings if isinstance(settings, dict) else None, summary=summary)


def promises_table(verdict: Verdict, start: float) -> Table:
    """A row per promise; below one that was broken, or that nobody can judge, what was found."""
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column()
    for row in rows(verdict, start):
        found = row.lines if row.said != "kept" else ()
        statement = Text(row.statement, style="" if row.said == "broken" else "dim")
        below = [Padding(Text(line), (0, 0, 0, 2)) for line in found]
        table.add_row(Text(SAID[row.said], style=_STYLES[row.said]), Group(statement, *below))
    return table


def warn_if_broken(directory: Path, shown: object) -> None:
    """At the end of a run, one line on standard error; nothing if all promises were kept, or nobody can tell."""
    log = directory / "events.jsonl"
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if log.stat().st_size > _MAX_BYTES:
            return
        found = verdict_of(read_events(log), directory).findings
        if found:
            first = f"{found[0].what}: {found[0].why}"
            more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
            words = f"warning: this run broke a promise: {first}{more}; see isoscale report {shown}"
            Console(stderr=True, soft_wrap=True).print(Text(words, style="yellow"), highlight=False)


def _read(path: Path) -> dict[str, object]:
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(path.read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else {}
    return {}

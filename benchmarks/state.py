"""Which results still count: fresh, stale and why, or never measured.

A result is fresh while the code that it is about, the minor version of Python and the version of torch are those that
it was measured with. `lib.sources` says which code that is.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.index import Benchmark
from benchmarks.lib import sources
from benchmarks.lib.result import RESULTS, torch_version, unfinished

Word = Literal["fresh", "stale", "never measured"]


@dataclass(frozen=True)
class State:
    word: Word
    #: in words; empty if there is nothing to say
    why: str = ""
    date: str = ""
    #: what the last measurement took
    seconds: float | None = None


@dataclass(frozen=True)
class Now:
    """What a result is held against."""

    sources: Mapping[str, str]
    torch: str
    python: str


def judge(result: Mapping[str, Any] | None, now: Now, unfinished_rows: int = 0) -> State:
    more = [f"{unfinished_rows} rows of an unfinished run"] if unfinished_rows else []
    if result is None:
        return State("never measured", "; ".join(more))
    reasons = _reasons(result, now)
    why = "; ".join(reasons + more)
    return State("stale" if reasons else "fresh", why, result.get("date", ""), result.get("seconds"))


def state_of(benchmark: Benchmark) -> State:
    path = RESULTS / f"{benchmark.result}.json"
    now = Now(sources.digests(benchmark.module), torch_version(), platform.python_version())
    return judge(_read(path), now, len((_read(unfinished(path)) or {}).get("rows", ())))


def _reasons(result: Mapping[str, Any], now: Now) -> list[str]:
    if "sources" not in result:
        return ["which code it is about was not recorded"]
    found = []
    if (there := str(result["torch"]).partition("+")[0]) != now.torch:
        found.append(f"torch was {there}, is {now.torch}")
    if (minor := _minor(result["python"])) != _minor(now.python):
        # Syntax trees of another Python have other hashes: comparing them would say nothing.
        return [*found, f"Python was {minor}, is {_minor(now.python)}"]
    before = result["sources"]
    changed = sorted(one for one in {*before, *now.sources} if before.get(one) != now.sources.get(one))
    if changed:
        found.append(f"changed: {', '.join(changed[:4])}{' ...' if len(changed) > 4 else ''}")
    return found


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _read(path: Path) -> dict[str, Any] | None:
    return json.loads(path.read_text()) if path.exists() else None

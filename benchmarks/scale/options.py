"""What the commands of this folder share: sizes by length, and a limit that is lifted."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.lib.options import Options
from benchmarks.lib.options import options as parse
from benchmarks.lib.result import RESULTS
from isoscale import limits

__all__ = ["SIZES", "Options", "kept", "lift_limit", "parse", "sizes"]

#: executors
SIZES = (10, 100, 1_000, 10_000)


def sizes(options: Options) -> tuple[int, ...]:
    return options.pick(smoke=(10, 40), quick=SIZES[:3], full=SIZES)


def kept(name: str) -> dict[str, Any]:
    """An earlier result."""
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def lift_limit() -> None:
    """A job may have 4,096 executors (`limits.EXECUTORS`), since they are all connected with each other. What ten
    thousand would cost can be asked all the same; of this process only."""
    limits.EXECUTORS = limits.Range(1, limits.LOGICAL_WORKERS.most, "beyond any model")

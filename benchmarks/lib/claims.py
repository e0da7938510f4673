"""What a folder gives to docs/claims.md: for each of its results, rows of what, target, measured and verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

Row = tuple[str, str, str, str]
Result = dict[str, Any]
#: by name of the result
Parts = dict[str, Callable[[Result], Iterator[Row]]]


def verdict(met: bool) -> str:
    return "met" if met else "**missed**"

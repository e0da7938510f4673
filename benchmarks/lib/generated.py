"""Tables of a page that are made from kept results.

A table stands between `<!-- generated: NAME -->` and `<!-- end -->`; everything else on such a page is written by hand.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

_SPOT = re.compile(r"(<!-- generated: (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)

Makers = Mapping[str, Callable[[], str]]


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    names = list(head)
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


def filled(text: str, makers: Makers) -> str:
    """The page with every table as the results say."""
    return _SPOT.sub(lambda spot: f"{spot[1]}\n{_made(makers[spot[2]])}\n{spot[4]}", text)


def _made(maker: Callable[[], str]) -> str:
    try:
        return maker()
    except FileNotFoundError as missing:
        return f"Not measured: there is no `{Path(missing.filename).name}`.\n"


def rewrite(path: Path, makers: Makers) -> int:
    """Writes the page anew; with `--check` only says, by 1, that it is not what the results say."""
    text = path.read_text(encoding="utf-8")
    if "--check" in sys.argv:
        return int(text != filled(text, makers))
    path.write_text(filled(text, makers), encoding="utf-8")
    return 0

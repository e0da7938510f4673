"""`.isoscaleignore`: patterns of files that are not kept with a run, in a small part of .gitignore's language.

One pattern a line; `#` begins a comment. `*` and `?` stay within a name, `**` crosses directories. A pattern
with a slash, other than at its end, counts from the file's own directory; one that ends with a slash means directories
only; `!` takes a file in again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["FILE_NAME", "Patterns"]

FILE_NAME = ".isoscaleignore"


@dataclass(frozen=True, slots=True)
class Patterns:
    """Of one file; the last that matches decides.

    >>> patterns = Patterns.parse("data/\\n*_old.py\\n!keep_old.py\\n/top.py")
    >>> [patterns.ignores(path) for path in ("a_old.py", "x/keep_old.py", "x/data", "top.py", "x/top.py")]
    [True, False, False, True, False]
    >>> patterns.ignores("x/data", is_directory=True)
    True
    """

    #: expression, for directories only, takes in again
    rules: tuple[tuple[re.Pattern[str], bool, bool], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Patterns:
        rules = []
        for line in text.splitlines():
            pattern = line.strip()
            if not pattern or pattern.startswith("#"):
                continue
            again = pattern.startswith("!")
            pattern = pattern.removeprefix("!")
            directories = pattern.endswith("/")
            pattern = pattern.rstrip("/")
            anchored = "/" in pattern
            expression = "".join(map(_translated, re.findall(r"\*\*/|\*\*|.", pattern.lstrip("/"))))
            rules.append((re.compile(expression if anchored else f"(?:.*/)?{expression}"), directories, again))
        return cls(tuple(rules))

    def ignores(self, path: str, *, is_directory: bool = False) -> bool:
        """`path` is relative to the file's directory, with slashes."""
        ignored = False
        for expression, directories, again in self.rules:
            if (is_directory or not directories) and expression.fullmatch(path):
                ignored = not again
        return ignored


def _translated(token: str) -> str:
    match token:
        case "**/":
            return "(?:.*/)?"
        case "**":
            return ".*"
        case "*":
            return "[^/]*"
        case "?":
            return "[^/]"
    return re.escape(token)

"""How much of each script in this folder porting changed, blank lines not counted.

python examples/porting/changed_lines.py
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
SCRIPTS = ("imagenet", "gpt", "finetune")


@dataclass(frozen=True)
class Change:
    before: int
    after: int
    removed: int
    added: int


def change_of(name: str) -> Change:
    """Lines of NAME_before.py and NAME_after.py, and what a line-by-line difference removes and adds."""
    before, after = ((HERE / f"{name}_{side}.py").read_text().splitlines() for side in ("before", "after"))
    lines = list(difflib.unified_diff(before, after, lineterm="", n=0))[2:]
    removed, added = (sum(line.startswith(sign) and len(line) > 1 for line in lines) for sign in "-+")
    return Change(len(before), len(after), removed, added)


def main() -> None:
    print(f"{'script':10} {'before':>6} {'after':>6} {'removed':>8} {'added':>6}")
    for name in SCRIPTS:
        one = change_of(name)
        print(f"{name:10} {one.before:6} {one.after:6} {one.removed:8} {one.added:6}")


if __name__ == "__main__":
    main()

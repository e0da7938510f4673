"""Reads the documentation: its pages, and the fenced blocks in them with the comment that stands above each.

Directives are HTML comments on the line above a block: `not run: REASON`, `long` (run by `pytest --long` only),
`exit: CODE`, `file: NAME`, `runnable`, `raises` (the block below it shows the
error), `help: COMMAND`, `diff: FILE FILE`, `events`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    #: name and value of the comment above it, empty if there is none
    directive: str
    value: str
    text: str

    @property
    def label(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    lines = page.read_text(encoding="utf-8").splitlines()
    start, language = None, ""
    for number, line in enumerate(lines):
        fence = re.fullmatch(r"```(\w*)", line)
        if fence and start is None:
            start, language = number, fence[1]
        elif fence:
            assert start is not None
            above = lines[start - 1] if start else ""
            comment = re.fullmatch(r"<!-- ([\w ]+?)(?:: (.*))? -->", above)
            yield Block(
                str(page.relative_to(ROOT)),
                start + 1,
                language,
                comment[1] if comment else "",
                (comment[2] or "") if comment else "",
                "\n".join(lines[start + 1 : number]),
            )
            start = None
    assert start is None, f"{page}: the block at line {start} has no end"


def all_blocks() -> list[Block]:
    return [block for page in PAGES for block in blocks(page)]


def commands(block: Block) -> list[tuple[str, list[str]]]:
    """Each command of a console or bash block with the lines of output that are shown below it."""
    found: list[tuple[str, list[str]]] = []
    continued = False
    for line in block.text.splitlines():
        if continued:
            found[-1] = (f"{found[-1][0]}\n{line}", [])
        elif block.language == "bash" and line.strip():
            found.append((line, []))
        elif line.startswith("$ "):
            found.append((line[2:], []))
        elif found:
            found[-1][1].append(line)
        continued = bool(found) and not found[-1][1] and found[-1][0].endswith("\\")
    return found


def headings(page: Path) -> set[str]:
    """Anchors as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}

"""Writes docs/tree.md: every module of the package with the first sentence of its docstring.

    python tests/docs/tree_page.py

A test says when the page is out of date.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "tree.md"

HEAD = """\
# Every module

Made by `python tests/docs/tree_page.py` from the modules themselves: the first sentence of each docstring. How they fit
together is told in [architecture.md](architecture.md); which to read first, in the [README](../README.md).
"""


def first_sentence(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(text.partition("\n\n")[0].split())
    # Not after an abbreviation, and not inside a file's name.
    found = re.match(r"(.*?(?<!e\.g)(?<!i\.e)(?<!al))\.(?=\s|$)", paragraph)
    return (found[1] if found else paragraph.rstrip(".")).strip()


def page() -> str:
    parts = [HEAD]
    folders = sorted({path.parent for path in (ROOT / "isoscale").rglob("*.py")})
    for folder in folders:
        modules = sorted(path for path in folder.glob("*.py") if path.name != "__init__.py")
        about = first_sentence(folder / "__init__.py") if (folder / "__init__.py").exists() else ""
        if not modules and not about:
            continue
        parts.append(f"\n## {folder.relative_to(ROOT).as_posix()}\n")
        if about:
            parts.append(f"\n{about}.\n")
        if modules:
            parts.append("\n| module | |\n|---|---|\n")
        for path in modules:
            link = f"../{path.relative_to(ROOT).as_posix()}"
            about = first_sentence(path).replace("|", "\\|").replace("[", "\\[")
            parts.append(f"| [{path.name}]({link}) | {about} |\n")
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE.relative_to(ROOT))

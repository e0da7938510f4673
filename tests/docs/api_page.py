"""Writes docs/api.md: every public name with its signature and docstring.

    python tests/docs/api_page.py

A test says when the page is out of date, and when a public name has no docstring.
"""

from __future__ import annotations

import functools
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import isoscale
import isoscale.testing
from isoscale.runtime.control.job_handle import JobHandle
from isoscale.runtime.training.loader import MapLoader
from isoscale.runtime.training.step import Step
from isoscale.runtime.training.stream import StreamLoader

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "api.md"

HEAD = """\
# API reference

Made by `python tests/docs/api_page.py` from the docstrings. What the parts are for is told in the
[tutorial](tutorial.md); what becomes of them while executors come and go, in [rescale.md](rescale.md).
"""

READERS = ("csv_rows", "iterable", "json_lines", "parquet_rows", "samples", "tar_samples", "text_lines")
ERRORS = tuple(name for name in isoscale.__all__ if name.endswith("Error"))
#: what a script is handed without naming it, and what programs use: titles, and where it comes from
HANDED: dict[str, tuple[type, str]] = {
    "Loader": (MapLoader, "What `job.loader` gives."),
    "StreamLoader": (StreamLoader, "What `job.stream` gives."),
    "Step": (Step, "What iterating a loader gives: one global step."),
    "JobHandle": (
        JobHandle,
        "`from isoscale.runtime.control.job_handle import JobHandle`: a running job, for programs.",
    ),
}
#: methods without an underscore that only isoscale calls
INTERNAL = ("end_pass", "complete", "try_size", "take_size", "keep_size", "num_samples", "steps_per_pass")
#: what is no method or property
ATTRIBUTES = [
    ("len(loader)", "Global steps of one pass."),
    ("loader.totals", "Sums of the present pass so far, over all logical workers (`step.sum`)."),
]


def described() -> Iterator[tuple[str, str, list[tuple[str, Any]]]]:
    """Sections: a heading, a sentence, and entries by title."""
    yield "Running", "", [("isoscale.run", isoscale.run)]
    yield "Job", doc(isoscale.Job), members(isoscale.Job, "job")
    for title in ("Loader", "StreamLoader", "Step"):
        more = {"Loader": ATTRIBUTES, "StreamLoader": ATTRIBUTES[1:]}.get(title, [])
        of = members(HANDED[title][0], title.lower().replace("streamloader", "loader"))
        yield title, HANDED[title][1], [*more, *of]
    yield "OnMain", doc(isoscale.OnMain), members(isoscale.OnMain, "it")
    yield "MainRun", doc(isoscale.MainRun), fields(isoscale.MainRun)
    yield "Sources for job.stream", "", [(f"isoscale.{name}", getattr(isoscale, name)) for name in READERS]
    yield "Errors", "", [(f"isoscale.{name}", getattr(isoscale, name)) for name in ERRORS]
    yield "JobHandle", HANDED["JobHandle"][1], members(JobHandle, "handle")
    names = [(f"isoscale.testing.{name}", getattr(isoscale.testing, name)) for name in isoscale.testing.__all__]
    yield "Testing", doc(isoscale.testing).partition("\n\n")[0], names


def public_names() -> list[str]:
    """All of `isoscale` that must be on the page."""
    return [name for name in isoscale.__all__ if name != "__version__"]


def members(one: type, prefix: str) -> list[tuple[str, Any]]:
    """Public methods and properties, those of its own first, in the order of the source."""
    found: dict[str, Any] = {}
    for base in inspect.getmro(one):
        if base.__module__.startswith("isoscale"):
            for name, value in vars(base).items():
                public = not name.startswith("_") and name not in INTERNAL
                if public and (callable(value) or isinstance(value, property | functools.cached_property)):
                    found.setdefault(f"{prefix}.{name}", value)
    return list(found.items())


def fields(one: type) -> list[tuple[str, Any]]:
    """Of a dataclass: what the comments before its fields say."""
    source, said, found = inspect.getsource(one), "", []
    for line in source.splitlines():
        text = line.strip()
        if text.startswith("#:"):
            said = f"{said} {text[2:].strip()}".strip()
        elif match := re.match(r"(\w+): (\S+)$", text):
            found.append((f"{match[1]}: {match[2]}", said))
            said = ""
    return found


def doc(thing: Any) -> str:
    return inspect.getdoc(thing) or ""


def signature(title: str, thing: Any) -> str:
    if isinstance(thing, property | functools.cached_property | str):
        return title
    if inspect.isclass(thing) and issubclass(thing, Exception):
        return title
    try:
        found = inspect.signature(thing)
    except (TypeError, ValueError):
        return title
    parameters = [
        one.replace(annotation=_Raw.of(one.annotation)) for name, one in found.parameters.items() if name != "self"
    ]
    plain = found.replace(parameters=parameters, return_annotation=_Raw.of(found.return_annotation))
    text = re.sub(r"<(function|object|isoscale\.).*? at 0x[0-9a-f]+>", "...", str(plain))
    return f"{title}{text}"


class _Raw:
    """An annotation as it is written."""

    def __init__(self, text: str) -> None:
        self._text = text

    @classmethod
    def of(cls, annotation: Any) -> Any:
        return cls(annotation) if isinstance(annotation, str) else annotation

    def __repr__(self) -> str:
        return self._text


def page() -> str:
    parts = [HEAD, "\n"]
    sections = list(described())
    parts += [f"- [{title}](#{title.lower().replace(' ', '-').replace('.', '')})\n" for title, _, _ in sections]
    for title, about, entries in sections:
        parts.append(f"\n## {title}\n")
        if about:
            parts.append(f"\n{about}\n")
        for name, thing in entries:
            text = thing if isinstance(thing, str) else doc(thing)
            parts.append(f"\n**`{signature(name, thing)}`**\n\n{_markdown(text)}\n" if text else f"\n**`{name}`**\n")
    return "".join(parts)


def _markdown(text: str) -> str:
    """A docstring whose indented parts and examples are blocks."""
    blocks = []
    for block in re.split(r"\n{2,}", text):
        if block.lstrip().startswith(">>>") or (block.startswith("    ") and "\n" in block):
            blocks.append(f"```text\n{textwrap.dedent(block)}\n```")
        elif "\n>>> " in f"\n{block}":
            words, _, example = block.partition(">>> ")
            blocks += [words.strip(), f"```text\n>>> {example}\n```"]
        else:
            blocks.append(block)
    return "\n\n".join(block for block in blocks if block)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE.relative_to(ROOT))

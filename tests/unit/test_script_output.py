"""Where news of an executor are shown among what it prints."""

from __future__ import annotations

import asyncio
from pathlib import Path

from isoscale.runtime.coordinator.script_output import Output
from isoscale.types import JobSpec


def follow(tmp_path: Path, text: str, news: list[tuple[int, str]]) -> list[str]:
    """What is shown of an output when such news have come before it was looked at."""
    shown: list[str] = []
    (tmp_path / "logs").mkdir(exist_ok=True)
    (tmp_path / "logs" / "executor-0.log").write_text(text)
    output = Output(JobSpec(workers=1, out=str(tmp_path)), lambda line: not shown.append(line), lambda *_: None)

    async def look() -> None:
        for number, (after, word) in enumerate(news):
            if number == 1:  # the first come before the output is looked at
                output._turn_to(0)
            output.then(0, after, lambda word=word: shown.append(word))
        if len(news) < 2:
            output._turn_to(0)
        await output._look()
        await output.finish()

    asyncio.run(look())
    return shown


def test_news_come_after_what_was_printed_before_them(tmp_path: Path) -> None:
    assert follow(tmp_path, "one\ntwo\nthree\n", [(4, "A"), (4, "B"), (8, "C")]) == [
        "one",
        "A",
        "B",
        "two",
        "C",
        "three",
    ]


def test_news_at_the_end_and_at_the_beginning(tmp_path: Path) -> None:
    assert follow(tmp_path, "one\n", [(0, "A"), (4, "B")]) == ["A", "one", "B"]


def test_news_after_output_that_never_comes_are_shown_at_the_end(tmp_path: Path) -> None:
    assert follow(tmp_path, "one\n", [(400, "A")]) == ["one", "A"]


def test_a_line_without_its_end_does_not_hold_news_back(tmp_path: Path) -> None:
    assert follow(tmp_path, "half of a line", [(4, "A")]) == ["A", "half of a line"]


def test_news_of_others_are_not_held_back(tmp_path: Path) -> None:
    shown: list[str] = []
    output = Output(JobSpec(workers=1, out=str(tmp_path)), lambda line: True, lambda *_: None)
    output._turn_to(0)
    output.then(3, 100, lambda: shown.append("at once"))
    assert shown == ["at once"]

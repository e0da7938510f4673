"""Where news of an executor are shown among what it prints."""

from __future__ import annotations

import asyncio
import threading
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


def test_news_that_come_in_a_look_after_a_long_silence_wait_for_their_output(tmp_path: Path) -> None:
    shown: list[str] = []
    log = tmp_path / "logs" / "executor-0.log"
    log.parent.mkdir()
    log.touch()

    class Late(Output):
        """The script prints and tells its news when the look has read the log, and before the look ends."""

        is_late = False

        def _read(self) -> bytes:
            data = super()._read()
            if self.is_late:
                self.is_late = False
                log.write_text("one\n")
                self.then(0, 4, lambda: shown.append("A"))
            return data

    output = Late(JobSpec(workers=1, out=str(tmp_path)), lambda line: not shown.append(line), lambda *_: None)
    output._turn_to(0)

    async def look() -> None:
        for _ in range(10):
            await output._look()
        output.is_late = True
        for _ in range(3):
            await output._look()

    asyncio.run(look())
    assert shown == ["one", "A"]


def test_news_of_output_that_is_not_here_are_shown_soon(tmp_path: Path) -> None:
    shown: list[str] = []
    output = Output(JobSpec(workers=1, out=str(tmp_path)), lambda line: True, lambda *_: None)
    output._turn_to(0)

    async def look() -> None:
        for number in range(6):
            output.then(0, 400, lambda number=number: shown.append(number))
            await output._look()

    asyncio.run(look())
    assert shown


def test_what_was_read_when_nobody_followed_any_more_is_shown_in_its_place(tmp_path: Path) -> None:
    shown: list[str] = []
    log = tmp_path / "logs" / "executor-0.log"
    log.parent.mkdir()
    log.write_text("one\n")
    has_read, may_go_on = threading.Event(), threading.Event()

    class Slow(Output):
        def _read(self) -> bytes:
            data = super()._read()
            has_read.set()
            may_go_on.wait(20)
            return data

    output = Slow(JobSpec(workers=1, out=str(tmp_path)), lambda line: not shown.append(line), lambda *_: None)

    async def look() -> None:
        following = asyncio.ensure_future(output.follow(lambda: 0))
        assert await asyncio.to_thread(has_read.wait, 20)
        following.cancel()
        await asyncio.wait([following])
        with log.open("a") as file:
            file.write("two\n")
        output.then(0, 4, lambda: shown.append("A"))
        output.then(0, 8, lambda: shown.append("B"))
        may_go_on.set()
        await output.finish()

    asyncio.run(look())
    assert shown == ["one", "A", "two", "B"]

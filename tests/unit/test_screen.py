from __future__ import annotations

import io
import os
import threading

import pytest
from rich.console import Console

from isoscale.cli import screen as screen_module
from isoscale.cli.screen import Screen, _Outlet


def on(descriptor: int) -> tuple[Screen, Console]:
    console = Console(file=_Outlet(descriptor, "utf-8"), soft_wrap=True)  # type: ignore[arg-type]
    return Screen(console), console


def test_things_are_drawn_in_order_and_before_it_closes() -> None:
    text = io.StringIO()
    console = Console(file=text)
    screen = Screen(console)
    for number in range(100):
        assert screen.say(lambda number=number: console.print(number))
    screen.redraw(lambda: console.print("line"))
    screen.close(lambda: console.print("last"))
    assert [int(word) for word in text.getvalue().split() if word.isdigit()] == list(range(100))
    assert text.getvalue().endswith("last\n")
    assert not screen.say(lambda: None)


def test_nobody_waits_for_a_pipe_that_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen_module, "_PATIENCE_S", 0.2)
    reads, writes = os.pipe()
    screen, console = on(writes)
    taken = [screen.say(lambda: console.print("x" * 1000)) for _ in range(10_000)]
    assert 2_000 <= sum(taken) < 2_200
    screen.close()
    console.print("nor for the last words")  # does not wait, either
    threads = [thread for thread in threading.enumerate() if thread.name == "screen"]
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    os.close(reads)
    os.close(writes)


def test_a_pipe_that_is_closed_is_no_error() -> None:
    reads, writes = os.pipe()
    os.close(reads)
    screen, console = on(writes)
    assert screen.say(lambda: console.print("lost"))
    screen.close()
    console.print("lost, too")
    os.close(writes)


def test_what_cannot_be_drawn_does_not_end_the_screen() -> None:
    text = io.StringIO()
    screen = Screen(Console(file=text))
    screen.say(lambda: 1 / 0)
    screen.say(lambda: text.write("still here"))
    screen.close()
    assert text.getvalue() == "still here"

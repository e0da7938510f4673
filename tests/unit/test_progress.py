from __future__ import annotations

import io

import pytest
from rich.console import Console

from isoscale.cli.outcome import show_traceback
from isoscale.cli.progress import Progress
from isoscale.protocol import messages as m


def step(number: int, total: int = 8) -> m.StepDone:
    return m.StepDone(step=number, epoch=0, loss=0.5, seconds=0.1, samples=64, generation=1, total=total)


def shown(*, width: int = 120, terminal: bool, steps: list[m.StepDone], label: str = "") -> str:
    text = io.StringIO()
    console = Console(file=text, width=width, force_terminal=terminal, color_system=None, legacy_windows=False)
    with Progress(console, label) as progress:
        progress.on_begin(2)
        for one in steps:
            progress.on_step(one, 2)
    return text.getvalue()


def test_a_log_gets_plain_lines_without_bars() -> None:
    lines = shown(terminal=False, steps=[step(1), step(2)]).splitlines()
    assert lines[0] == "training on 2 executors ..."
    assert lines[-1].startswith("step 2/8  epoch 0  loss 0.5000  ")
    assert not set("━─\x1b") & set("".join(lines))


def test_nothing_is_left_after_the_last_step() -> None:
    assert " left" in shown(terminal=False, steps=[step(6), step(7)])
    assert " left" not in shown(terminal=False, steps=[step(7), step(8)])


def test_a_script_s_words_are_not_markup() -> None:
    assert "[red]" in shown(terminal=False, steps=[step(1)], label="[red]")


@pytest.mark.parametrize(("width", "bar"), [(80, False), (100, True), (160, True)])
def test_a_wide_terminal_shows_how_far_it_is(width: int, bar: bool) -> None:
    text = shown(terminal=True, width=width, steps=[step(3), step(4)])
    assert ("━━━━━━━━────────" in text) == bar


@pytest.mark.parametrize("width", [20, 40, 80])
def test_the_live_line_is_one_line_on_every_terminal(width: int) -> None:
    text = shown(terminal=True, width=width, steps=[step(123456, 1234567), step(123457, 1234567)], label="elastic")
    assert "step 123457" in text or "…" in text
    # The cursor goes up once, when the line is cleared at the end; a second line would take it up with every redraw.
    assert text.count("\x1b[1A") == 1


@pytest.mark.parametrize(
    ("ratio", "aside", "words"),
    [
        (2.4, [], "executor 2 is 2.4x slower; logical workers now 3+1"),
        (1.1, [], "logical workers now 3+1: no executor is much slower than the others"),
        (6.0, [2], "executor 2 is 6.0x slower: 2 set aside, 1.50x faster without; logical workers now 3+1"),
    ],
)
def test_moves_of_logical_workers_are_told(ratio: float, aside: list[int], words: str) -> None:
    console = Console(file=io.StringIO(), width=120)
    fields = {"executor": 2, "ratio": ratio, "shares": [3, 1], "gain": 1.5, "set_aside": aside}
    with Progress(console) as progress:
        progress.on_event("straggler", fields)
    text = console.file
    assert isinstance(text, io.StringIO)
    assert text.getvalue().strip() == words


def test_a_narrow_terminal_gives_up_the_epoch_first() -> None:
    assert "epoch" in shown(terminal=True, width=80, steps=[step(3)])
    assert "epoch" not in shown(terminal=True, width=40, steps=[step(3)])


def test_no_line_of_a_traceback_is_cut_off_in_a_log() -> None:
    text = io.StringIO()
    line = f'  File "{"/long" * 40}/train.py", line 1234, in train'
    show_traceback(
        Console(file=text, width=80), f"Traceback:\n{line}\n    [bold]x[/bold]\nValueError: no\n", ", under DDP"
    )
    assert text.getvalue().splitlines() == [
        "the script's traceback, under DDP",
        "Traceback:",
        line,
        "    [bold]x[/bold]",
        "ValueError: no",
    ]

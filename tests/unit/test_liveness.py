"""Which variables a loop carries, seen from the iterator that it runs over, as a loader sees it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from isoscale.core.liveness import is_unpacked, live_names, store_line

Loop = Callable[[Iterable[int]], object]


def looked_at(loop: Loop) -> tuple[set[str], bool, dict[str, int]]:
    """What is live where the loop asks for more, whether it unpacks, and where it writes what (lines from its own)."""
    found: list[Any] = []

    def items() -> Iterator[int]:
        for item in range(3):
            frame = sys._getframe(1)
            code, last = frame.f_code, frame.f_lasti
            lines = {name: store_line(code, name, last) - code.co_firstlineno for name in code.co_varnames}
            found.append((set(live_names(code, last)) - {"more"}, is_unpacked(code, last), lines))
            yield item

    for _ in range(20):  # by then the interpreter has specialised it
        loop(items())
    assert all(one == found[0] for one in found)
    return found[0]  # type: ignore[no-any-return]


def carries(items: Iterable[int]) -> object:
    count, tau, best, seldom = 0, 1.0, 9.0, 0.0
    for item in items:
        for part in (1, 2):
            loss = part * item
        count += 1  # noqa: SIM113 - that is what is looked for
        try:
            tau = tau * 0.9
        except ValueError:
            tau = 1.0
        best = min(best, loss)
        if item == 2:
            seldom = loss
    return seldom


def writes_first(items: Iterable[int]) -> object:
    last = total = 0
    for item in items:
        for part in (1, 2):
            loss = part * item
        rows = [row * item for row in range(3)]
        last, total = loss, sum(rows)
        scaled = sorted(rows, key=lambda row: -row * last)
        rows = [row * total for row in scaled]
        with memoryview(b""):
            note = last + total
    return last, total, note


def pairs(items: Iterable[int]) -> object:
    for i, _item in enumerate(items):
        last = i
    return last


def calls_next(items: Iterable[int]) -> object:
    done, more = 0, iter(items)
    for number in range(3):
        item = next(more)
        done += number * item
    return done


def shares(items: Iterable[int]) -> object:
    calls = 0

    def call() -> None:
        nonlocal calls
        calls += 1

    for _ in items:
        call()
    return calls


@pytest.mark.parametrize(
    ("loop", "live", "unpacks"),
    [
        (carries, {"count", "tau", "best", "seldom"}, False),
        (writes_first, set(), False),
        (pairs, set(), True),
        (calls_next, {"done", "number"}, False),
        (shares, {"calls", "call"}, False),
    ],
)
def test_live_is_what_is_read_before_it_is_written(loop: Loop, live: set[str], unpacks: bool) -> None:
    found, unpacked, _ = looked_at(loop)
    assert found == live
    assert unpacked == unpacks


def test_the_line_is_that_of_the_next_write() -> None:
    _, _, lines = looked_at(carries)
    assert {name: lines[name] for name in ("count", "tau", "best", "seldom")} == {
        "count": 5,
        "tau": 7,
        "best": 10,
        "seldom": 12,
    }

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isoscale.backends.lines import MAX_SHOWN, Cut, Excerpt, clean


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (b"plain", "plain"),
        (b"a\tb", "a\tb"),
        (b"windows\r", "windows"),
        (b" 10%\r 20%\r100%", "100%"),
        (b"\x1b[31mred\x1b[0m \x1b[1;2Hmoved \x1b]0;title\x07set \x1b(Bset", "red moved set set"),
        (b"\x1b]0;a title without an end", ""),
        (b"bell\x07 back\x08space \x00null \x9bc1", "bell backspace null \ufffdc1"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        ("grüße 漢字".encode(), "grüße 漢字"),
    ],
)
def test_a_line_for_people(line: bytes, shown: str) -> None:
    assert clean(line) == shown


def test_a_long_line_is_cut() -> None:
    shown = clean(b"x" * 10**6)
    assert shown == "x" * MAX_SHOWN + " ... (a line of 1,000,000 bytes)"


def test_a_line_comes_in_pieces() -> None:
    excerpt = Excerpt()
    assert excerpt.add(b"a\nb", 0.0) == ["a"]
    assert excerpt.add(b"c", 0.1) == []
    assert excerpt.add(b"d\n", 0.2) == ["bcd"]
    assert excerpt.add(b"end", 0.3) == []
    assert excerpt.finish() == ["end"]
    assert excerpt.finish() == []


def test_a_line_without_an_end_takes_no_memory() -> None:
    excerpt, piece = Excerpt(), b"x" * 2**20
    tracemalloc.start()
    for number in range(100):
        assert excerpt.add(piece, number / 10) == []
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()
    (line,) = excerpt.add(b"\n", 11.0)
    assert isinstance(line, str)
    assert line.endswith(f" ... (a line of {100 * 2**20:,} bytes)")


def lines(first: int, last: int) -> bytes:
    return b"".join(b"%d\n" % number for number in range(first, last))


def test_of_a_flood_the_beginning_and_the_end_are_shown() -> None:
    excerpt = Excerpt()
    assert excerpt.add(lines(0, 100_000), 0.0) == [str(number) for number in range(400)]
    assert excerpt.add(lines(100_000, 200_000), 0.1) == []
    shown = excerpt.add(b"calm\n", 0.2)
    assert shown == [Cut(200_000 - 400 - 19), *(str(number) for number in range(199_981, 200_000)), "calm"]
    assert excerpt.add(b"as usual\n", 0.3) == ["as usual"]


def test_a_flood_that_goes_on_is_told_of_now_and_then() -> None:
    excerpt, told = Excerpt(), []
    for look in range(600):
        told += [one for one in excerpt.add(lines(0, 1000), look / 10) if isinstance(one, Cut)]
    assert 10 <= len(told) <= 13


def test_what_the_terminal_refuses_is_counted() -> None:
    excerpt = Excerpt()
    assert excerpt.add(lines(0, 50), 0.0)[20:] == [str(number) for number in range(20, 50)]
    excerpt.refused(30)
    assert excerpt.add(b"more\n", 0.1) == [Cut(30), "more"]


@given(st.lists(st.tuples(st.binary(max_size=300).map(lambda data: data * 20), st.floats(0, 2)), max_size=30))
def test_every_line_is_shown_or_counted_once(pieces: list[tuple[bytes, float]]) -> None:
    excerpt, now, shown = Excerpt(), 0.0, []
    for data, seconds in pieces:
        now += seconds
        shown += excerpt.add(data, now)
    shown += excerpt.finish()
    whole = b"".join(data for data, _ in pieces)
    expected = whole.count(b"\n") + (not whole.endswith(b"\n") and bool(whole))
    assert sum(one.lines if isinstance(one, Cut) else 1 for one in shown) == expected
    assert all(one.lines > 0 if isinstance(one, Cut) else "\n" not in one for one in shown)

"""What is known of executors' speeds, and how sure it is."""

from __future__ import annotations

import pytest

from isoscale.scheduling.speeds import Speeds

KINDS = ["cpu", "cpu", "cpu-sse"]


def learned(*rounds: dict[int, float]) -> Speeds:
    speeds = Speeds()
    for one in rounds:
        speeds.learn(one)
    return speeds


def test_what_slows_all_alike_says_nothing_about_one() -> None:
    speeds = learned(*[{0: scale, 1: 2 * scale} for scale in (1.0, 7.0, 0.1, 50.0)])
    first, second = speeds.relative([0, 1], KINDS[:2])
    assert second / first == pytest.approx(2.0)
    assert speeds.surely_differ([0, 1], 1.2)


def test_one_alone_is_compared_with_nobody() -> None:
    speeds = learned(*[{0: 1.0}] * 50)
    assert not speeds.surely_differ([0, 1], 1.2)
    speeds.learn({0: 1.0, 1: 3.0})
    first, second = speeds.relative([0, 1], KINDS[:2])
    assert second / first == pytest.approx(3.0)


def test_what_comes_and_goes_is_no_difference() -> None:
    speeds = learned(*[{0: 1.0, 1: 3.0 if n % 4 == 0 else 1.0} for n in range(41)])
    assert not speeds.surely_differ([0, 1], 1.2)


def test_the_newest_rounds_count_most() -> None:
    speeds = learned(*[{0: 1.0, 1: 3.0}] * 100, *[{0: 1.0, 1: 1.0}] * 20)
    first, second = speeds.relative([0, 1], KINDS[:2])
    assert second / first == pytest.approx(1.0, abs=0.05)
    assert not speeds.surely_differ([0, 1], 1.2)


def test_newcomers_are_taken_for_their_kind_and_else_for_all() -> None:
    speeds = learned(*[{0: 1.0, 2: 4.0}] * 10)
    fast, new, slow, slow_too = speeds.relative([0, 1, 2, 3], ["cpu", "cpu", "cpu-sse", "cpu-sse"])
    assert (new, slow_too) == (fast, slow)
    assert speeds.relative([0, 7], ["cpu", "cuda"])[1] == fast
    assert Speeds().relative([5, 6], ["cpu", "cpu"]) == [1.0, 1.0]


def test_few_rounds_prove_nothing() -> None:
    assert not learned(*[{0: 1.0, 1: 2.0}] * 3).surely_differ([0, 1], 1.2)
    assert learned(*[{0: 1.0, 1: 2.0}] * 4).surely_differ([0, 1], 1.2)


def test_a_round_that_is_far_off_does_not_hide_a_difference() -> None:
    speeds = learned(*[{0: 1.0, 1: 2.0}] * 6, {0: 9.0, 1: 2.0})
    assert speeds.surely_differ([0, 1], 1.2)


def test_whoever_is_gone_is_forgotten() -> None:
    speeds = learned(*[{0: 1.0, 1: 5.0}] * 10)
    speeds.forget(1)
    speeds.forget(77)
    assert not speeds.surely_differ([0, 1], 1.2)

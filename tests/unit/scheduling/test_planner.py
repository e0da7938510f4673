"""The exact split against every split there is, and EasyScale's worked figures."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isoscale.errors import UserError
from isoscale.scheduling.planner import best_split, best_use, plan_figures, split_seconds
from isoscale.types import Placement

turn = st.one_of(st.sampled_from([0.1, 0.3, 1.0, 1 / 3, 2.0, 7.0]), st.floats(1e-6, 1e6))


def every_split(workers: int, caps: Sequence[int]) -> list[tuple[int, ...]]:
    ranges = [range(1, cap + 1) for cap in caps]
    return [shares for shares in itertools.product(*ranges) if sum(shares) == workers]


@given(st.data())
def test_no_split_is_faster(data: st.DataObject) -> None:
    turns = data.draw(st.lists(turn, min_size=1, max_size=4))
    workers = data.draw(st.integers(len(turns), 9))
    caps = data.draw(st.lists(st.integers(1, workers), min_size=len(turns), max_size=len(turns)))
    if sum(caps) < workers:
        caps[0] = workers
    shares = best_split(workers, turns, max_share=caps)
    assert shares in every_split(workers, caps)
    assert split_seconds(shares, turns) == min(split_seconds(s, turns) for s in every_split(workers, caps))


@given(st.lists(turn, min_size=1, max_size=4), st.integers(0, 6))
def test_sorted_loads_are_smallest_throughout(turns: list[float], more: int) -> None:
    workers = len(turns) + more
    loads = [sorted((s * t for s, t in zip(shares, turns, strict=True)), reverse=True)
             for shares in every_split(workers, [workers] * len(turns))]  # fmt: skip
    shares = best_split(workers, turns)
    mine = sorted((s * t for s, t in zip(shares, turns, strict=True)), reverse=True)
    assert mine[0] == min(loads)[0]
    assert mine <= sorted((s * t for s, t in zip(Placement.even(workers, len(turns)).shares, turns, strict=True)),
                          reverse=True)  # fmt: skip


@given(st.integers(1, 40), st.integers(0, 400))
def test_equal_devices_get_the_even_placement(executors: int, more: int) -> None:
    workers = executors + more
    assert best_split(workers, [0.37] * executors) == Placement.even(workers, executors).shares


@given(st.lists(st.floats(0.01, 10), min_size=2, max_size=200), st.integers(0, 10_000))
def test_large_cases_are_whole_and_locally_optimal(turns: list[float], more: int) -> None:
    workers = len(turns) + more
    shares = best_split(workers, turns)
    assert sum(shares) == workers
    assert min(shares) >= 1
    slowest = split_seconds(shares, turns)
    # Taking one worker off any slowest executor must push another one at least as high: else the split was not best.
    culprit = max(range(len(turns)), key=lambda i: shares[i] * turns[i])
    others = [(shares[i] + 1) * turns[i] for i in range(len(turns)) if i != culprit]
    assert shares[culprit] == 1 or min(others) >= slowest


def test_turns_of_very_different_length() -> None:
    assert best_split(10, [1e-9, 1.0, 1e9]) == (8, 1, 1)
    assert best_split(10, [1e-9, 1.0, 1e9], max_share=[3, 10, 10]) == (3, 6, 1)


@given(st.lists(turn, min_size=1, max_size=4), st.integers(0, 5))
def test_no_use_of_the_devices_is_faster(turns: list[float], more: int) -> None:
    """Against every split in which some have nothing to do; and nobody is left out for nothing."""
    workers = len(turns) + more
    shares = best_use(workers, turns)
    every = [s for s in itertools.product(range(workers + 1), repeat=len(turns)) if sum(s) == workers]
    fastest = min(split_seconds(s, turns) for s in every)
    assert sum(shares) == workers
    assert split_seconds(shares, turns) == fastest
    assert [share == 0 for share in shares] == [seconds > fastest for seconds in turns]


@given(st.lists(turn, min_size=1, max_size=60), st.integers(0, 3000))
def test_leaving_devices_out_is_never_slower_and_the_same_where_it_does_not_pay(turns: list[float], more: int) -> None:
    workers = len(turns) + more
    shares, all_at_work = best_use(workers, turns), best_split(workers, turns)
    assert sum(shares) == workers
    assert split_seconds(shares, turns) <= split_seconds(all_at_work, turns)
    if min(shares) > 0:
        assert shares == all_at_work
    else:
        assert split_seconds(shares, turns) < split_seconds(all_at_work, turns)


def test_one_slow_device_and_several() -> None:
    assert best_use(4, [1.0, 1.0, 2.0]) == best_split(4, [1.0, 1.0, 2.0]) == (2, 1, 1), "as fast with it"
    assert best_use(8, [1.0, 9.0, 1.0, 9.0]) == (4, 0, 4, 0), "leaving out one of the slow ones alone would not help"
    assert best_use(1, [3.0]) == (1,)
    with pytest.raises(UserError):
        best_use(2, [1.0, float("nan")])


@pytest.mark.parametrize(
    ("workers", "turns", "caps", "field"),
    [
        (2, [1.0] * 3, None, "executors"),
        (2, [], None, "executors"),
        (4, [1.0, 0.0], None, "turn_seconds"),
        (4, [1.0, float("nan")], None, "turn_seconds"),
        (4, [1.0, float("inf")], None, "turn_seconds"),
        (4, [1.0, 1.0], [1, 2], "max_share"),
        (4, [1.0, 1.0], [4, 0], "max_share"),
        (4, [1.0, 1.0], [4], "max_share"),
    ],
)
def test_impossible_splits_name_the_field(workers: int, turns: list[float], caps: list[int] | None, field: str) -> None:
    with pytest.raises(UserError) as caught:
        best_split(workers, turns, max_share=caps)
    assert caught.value.field == field


def test_easyscale_vectors() -> None:
    """easyscale_edl.md 1.8: C = (2, 1), N = (1, 2) and one kind with C = 1, N = 3."""
    exact = plan_figures(4, [2, 1, 1], [0.5, 1.0, 1.0])
    assert (exact.capacity, exact.step_s, exact.waste, exact.perf) == (4, 1.0, 0.0, 4.0)
    uneven = plan_figures(5, [3, 1, 1], [0.5, 1.0, 1.0])
    assert uneven.step_s == 1.5
    assert uneven.waste == pytest.approx(2 / 3)
    assert uneven.waste_share == pytest.approx(1 / 6)
    assert uneven.perf == pytest.approx(10 / 3)
    roomy = plan_figures(4, [2, 2, 2], [1.0] * 3)
    assert (roomy.capacity, roomy.step_s, roomy.waste) == (6, 2.0, 1.0)
    assert roomy.waste_share == pytest.approx(1 / 3)
    with pytest.raises(ValueError, match="room for 3 of 4"):
        plan_figures(4, [1, 1, 1], [1.0] * 3)


@given(st.lists(st.tuples(turn, st.integers(1, 5)), min_size=1, max_size=6), st.integers(0, 3))
def test_least_waste_and_highest_perf_are_one_ordering(plan: list[tuple[float, int]], spare: int) -> None:
    turns, units = [t for t, _ in plan], [a for _, a in plan]
    workers = max(1, sum(units) - spare)
    figures = plan_figures(workers, units, turns)
    total = sum(1 / t for t in turns)
    assert figures.perf == pytest.approx(total - figures.waste, rel=1e-6, abs=1e-6 * total)

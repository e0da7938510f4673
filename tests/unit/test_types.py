from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isoscale.types import JobSpec, Placement


@settings(deadline=None)
@given(shares=st.lists(st.integers(1, 9), min_size=1, max_size=9).map(tuple))
def test_every_logical_rank_lives_in_exactly_one_place(shares: tuple[int, ...]) -> None:
    placement = Placement(shares=shares)
    blocks = [list(placement.ranks_of(e)) for e in range(placement.num_executors)]
    assert [rank for block in blocks for rank in block] == list(range(placement.num_logical_workers))
    assert tuple(map(len, blocks)) == shares
    for executor, block in enumerate(blocks):
        assert all(placement.executor_of(rank) == executor for rank in block)


@settings(deadline=None)
@given(n=st.integers(1, 40), executors=st.integers(1, 40))
def test_even_shares_differ_by_at_most_one(n: int, executors: int) -> None:
    if executors > n:
        with pytest.raises(ValueError, match="at least one logical worker"):
            Placement.even(n, executors)
        return
    shares = Placement.even(n, executors).shares
    assert (sum(shares), len(shares)) == (n, executors)
    assert max(shares) - min(shares) <= 1
    assert list(shares) == sorted(shares, reverse=True)


@pytest.mark.parametrize("shares", [(), (0,), (2, 0), (3, -1)])
def test_empty_executors_are_refused(shares: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="shares="):
        Placement(shares=shares)


@pytest.mark.parametrize("rank", [-1, 3])
def test_a_rank_outside_the_placement_has_no_executor(rank: int) -> None:
    with pytest.raises(ValueError, match=f"logical_rank={rank}"):
        Placement(shares=(2, 1)).executor_of(rank)


def test_placements_are_values() -> None:
    assert Placement(shares=(2, 1)) == Placement(shares=(2, 1))
    assert len({Placement(shares=(2, 1)), Placement(shares=(2, 1)), Placement(shares=(1, 2))}) == 2
    with pytest.raises(FrozenInstanceError):
        Placement(shares=(1,)).shares = (2,)  # type: ignore[misc]


def test_defaults_of_a_job() -> None:
    spec = JobSpec(workers=4)
    assert (spec.seed, spec.threads, spec.order, spec.determinism) == (0, 1, "ddp", "elastic")
    assert (spec.kinds, spec.profile, spec.until, spec.audit_every) == (("cpu",), "", 0, 100)

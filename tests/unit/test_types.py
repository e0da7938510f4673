from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, asdict

import msgspec
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


class Counted(tuple[int, ...]):
    """Shares that count how often somebody looks at all of them."""

    walks = 0

    def __iter__(self):  # type: ignore[no-untyped-def]
        Counted.walks += 1
        return super().__iter__()

    def __getitem__(self, key):  # type: ignore[no-untyped-def]
        Counted.walks += isinstance(key, slice)
        return super().__getitem__(key)


def test_looking_up_an_executor_does_not_walk_the_placement() -> None:
    placement = Placement(shares=Counted([2] * 500))
    placement.executor_of(0)
    Counted.walks = 0
    assert [placement.executor_of(rank) for rank in (0, 1, 2, 501, 999)] == [0, 0, 1, 250, 499]
    assert [placement.ranks_of(e) for e in (0, 499, -1)] == [range(2), range(998, 1000), range(998, 1000)]
    assert placement.num_logical_workers == 1000
    assert Counted.walks == 0


def test_what_a_lookup_keeps_is_no_part_of_a_placement() -> None:
    fresh, used = Placement(shares=(2, 1)), Placement(shares=(2, 1))
    assert used.executor_of(2) == 1
    assert (used, hash(used), repr(used)) == (fresh, hash(fresh), "Placement(shares=(2, 1))")
    assert asdict(used) == {"shares": (2, 1)}
    assert msgspec.json.encode(used) == b'{"shares":[2,1]}'
    for other in (copy.copy(used), copy.deepcopy(used), pickle.loads(pickle.dumps(used))):
        assert other == fresh
        assert other.executor_of(2) == 1


def test_defaults_of_a_job() -> None:
    spec = JobSpec(workers=4)
    assert (spec.seed, spec.threads, spec.order, spec.determinism) == (0, 1, "ddp", "elastic")
    assert (spec.kinds, spec.profile, spec.until, spec.audit_every) == (("cpu",), "", 0, 100)

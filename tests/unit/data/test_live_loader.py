"""A worker's list is read once and in order whatever batch sizes come, as stock DataLoaders over the rest would."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from isoscale.core.streams import rng
from isoscale.data.loader import LogicalLoaders
from isoscale.errors import UserError


@pytest.fixture(autouse=True)
def leave_streams() -> Iterator[None]:
    with rng.isolated():
        yield


class Numbers(Dataset[Any]):
    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> float:
        return index + random.random() + float(torch.rand(()))


def make(size: int, n: int, batch: int, options: dict[str, Any]) -> LogicalLoaders:
    return LogicalLoaders(
        Numbers(size),
        num_logical_workers=n,
        seed=3,
        batch_size=batch,
        shuffle=True,
        train=True,
        options=options,
        is_live=True,
    )


def ours(loaders: LogicalLoaders, n: int, changes: dict[int, int], moves: list[int]) -> list[list[list[float]]]:
    """A pass of all workers, each under streams of its own; `moves` are steps at which others go on from the state."""
    streams, out = [rng.seeded(rank) for rank in range(n)], [[] for _ in range(n)]  # type: ignore[var-annotated]

    def draw() -> list[int]:
        seeds = []
        for rank in range(n):
            seed, streams[rank] = rng.draw_base_seed(streams[rank])
            seeds.append(seed)
        return seeds

    loaders.begin(0, draw(), lambda rank, work: work())
    index = 0
    while True:
        if index in moves:
            state = loaders.state()
            loaders.load_state(state)
        if index in changes:
            if not loaders.has_left(index, changes[index]):
                break
            loaders.resize(index, changes[index], draw() if loaders.needs_draw(index) else None)
        if index >= loaders.num_steps:
            break
        loaders.open(range(n), index)
        for rank in range(n):
            rng.restore(streams[rank])
            out[rank].append(loaders.fetch(rank, index, None).tolist())  # type: ignore[attr-defined]
            streams[rank] = rng.capture()
        index += 1
    assert loaders.samples_before(index) == sum(len(batch) for one in out for batch in one)
    return out


def stock(size: int, n: int, rank: int, batch: int, drop_last: bool, changes: dict[int, int]) -> list[list[float]]:
    """What a rank of a stock script reads that leaves its loader for another one over the rest of its list."""
    rng.restore(rng.seeded(rank))
    sampler: Any = DistributedSampler(Numbers(size), n, rank, True, seed=3)
    order, at, out = list(sampler), 0, []
    batches = None
    while True:
        new = changes.get(len(out), batch)
        left = len(order) - at
        if not (left // new if drop_last else -(-left // new)):
            if batches is None:
                iter(DataLoader(Numbers(size), batch))
            return out
        if new != batch or batches is None:
            batch, batches = new, iter(DataLoader(Numbers(size), new, sampler=order[at:], drop_last=drop_last))
        out.append(next(batches).tolist())
        at += len(out[-1])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    size=st.integers(3, 50),
    n=st.integers(1, 3),
    batch=st.integers(1, 7),
    drop_last=st.booleans(),
    changes=st.dictionaries(st.integers(0, 9), st.integers(1, 7), max_size=4),
    moves=st.lists(st.integers(0, 9), max_size=3),
)
def test_sizes_change_as_stock_loaders_would_be_changed(
    size: int, n: int, batch: int, drop_last: bool, changes: dict[int, int], moves: list[int]
) -> None:
    before, real = batch, {}
    for index in sorted(changes):  # a change to the present size is none
        if changes[index] != before:
            real[index] = before = changes[index]
    loaders = make(size, n, batch, {"drop_last": drop_last})
    found = ours(loaders, n, real, moves)
    assert found == [stock(size, n, rank, batch, drop_last, real) for rank in range(n)]


def test_samplers_of_unequal_length_are_refused() -> None:
    with pytest.raises(UserError, match="different numbers of samples"):
        LogicalLoaders(
            Numbers(9),
            num_logical_workers=2,
            seed=0,
            batch_size=2,
            shuffle=False,
            train=True,
            options={"sampler": lambda rank, n: list(range(rank + 3))},
            is_live=True,
        )

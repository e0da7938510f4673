from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from isoscale.core import rng
from isoscale.data.loader import LogicalLoaders, sample_count
from isoscale.errors import UserError


@pytest.fixture(autouse=True)
def leave_streams() -> Iterator[None]:
    with rng.isolated():
        yield


class Numbers(Dataset[Any]):
    def __init__(self, size: int, *, noisy: bool = False) -> None:
        self._size, self._noisy = size, noisy

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> float:
        return index + (random.random() if self._noisy else 0.0)


def make(dataset: Any, n: int = 3, **changes: Any) -> LogicalLoaders:
    settings = {"seed": 11, "batch_size": 2, "shuffle": False, "train": True, "options": {}} | changes
    return LogicalLoaders(dataset, num_logical_workers=n, **settings)


def read(loaders: LogicalLoaders, rank: int, epoch: int = 0) -> list[list[float]]:
    loaders.start(rank, epoch)
    batches = []
    while (batch := loaders.next(rank, None)) is not None:
        batches.append(batch.tolist())
    return batches


@pytest.mark.parametrize("size", [12, 13, 2])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("options", [{}, {"drop_last": True}])
def test_a_worker_reads_what_its_ddp_rank_reads(size: int, shuffle: bool, options: dict[str, Any]) -> None:
    loaders = make(Numbers(size, noisy=True), shuffle=shuffle, options=options)
    for epoch in (0, 3):
        for rank in range(3):
            rng.seed_all(rank)
            ours = read(loaders, rank, epoch)
            rng.seed_all(rank)
            sampler = DistributedSampler(Numbers(size), 3, rank, shuffle, seed=11)
            sampler.set_epoch(epoch)
            stock = DataLoader(Numbers(size, noisy=True), 2, sampler=sampler, **options)
            assert ours == [batch.tolist() for batch in stock]
            assert len(ours) == loaders.num_steps
            after = torch.rand(())
            rng.seed_all(rank)
            iter(stock)
            assert torch.rand(()) == after  # one draw for the base seed, no other


def test_epochs_shuffle_differently() -> None:
    loaders = make(Numbers(30), shuffle=True)
    assert read(loaders, 0, 0) == read(loaders, 0, 0) != read(loaders, 0, 1)


@pytest.mark.parametrize(("size", "n"), [(12, 3), (13, 3), (2, 4), (7, 1)])
def test_evaluation_visits_every_sample_once(size: int, n: int) -> None:
    loaders = make(Numbers(size), n, train=False)
    shares = [[x for batch in read(loaders, rank) for x in batch] for rank in range(n)]
    assert sorted(x for share in shares for x in share) == list(map(float, range(size)))
    for rank, share in enumerate(shares):
        assert share == [float(i) for i in range(rank, size, n)]


def test_worker_zero_has_the_most_batches() -> None:
    loaders = make(Numbers(7), train=False)
    assert [len(read(loaders, rank)) for rank in range(3)] == [2, 1, 1]
    assert loaders.num_steps == 2


def test_workers_may_be_read_alternately() -> None:
    loaders = make(Numbers(8), 2)
    for rank in range(2):
        loaders.start(rank, 0)
    got = [loaders.next(rank, None).tolist() for _ in range(2) for rank in range(2)]
    assert got == [[0.0, 2.0], [1.0, 3.0], [4.0, 6.0], [5.0, 7.0]]
    assert loaders.next(0, "none left") == "none left"


def test_building_loaders_draws_nothing() -> None:
    rng.seed_all(1)
    first = random.random(), float(torch.rand(()))
    rng.seed_all(1)
    make(Numbers(9), shuffle=True)
    assert (random.random(), float(torch.rand(()))) == first


def test_options_reach_the_data_loader() -> None:
    loaders = make(Numbers(6), options={"collate_fn": lambda samples: torch.tensor(samples) * 10})
    assert read(loaders, 0) == [[0.0, 30.0]]


def test_a_stopped_loader_has_no_iterator() -> None:
    loaders = make(Numbers(6))
    loaders.start(0, 0)
    loaders.stop()
    with pytest.raises(KeyError):
        loaders.next(0, None)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"options": {"sampler": range(3)}}, ["sampler", "DistributedSampler"]),
        ({"options": {"batch_sampler": []}}, ["batch_sampler", "DistributedSampler"]),
        ({"options": {"generator": None}}, ["generator", "own torch stream"]),
        ({"options": {"num_worker": 2}}, ["num_worker", "no such option", "num_workers"]),
        ({"dataset": Stream()}, ["Stream", "map-style"]),
        ({"dataset": object()}, ["object", "map-style"]),
        ({"dataset": Numbers(0)}, ["0 samples"]),
        ({"batch_size": 0}, ["batch_size", "positive integer"]),
        ({"batch_size": None}, ["batch_size", "positive integer"]),
        ({"batch_size": 2.0}, ["batch_size", "positive integer"]),
        ({"shuffle": True, "train": False}, ["shuffle", "every sample once"]),
        ({"train": False, "options": {"drop_last": True}}, ["drop_last", "every sample once"]),
    ],
)
def test_what_could_not_be_reproduced_is_refused(changes: dict[str, Any], words: list[str]) -> None:
    dataset = changes.pop("dataset", Numbers(6))
    with pytest.raises(UserError) as caught:
        make(dataset, **changes)
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize(
    ("batch", "count"),
    [
        (torch.zeros(4, 2), 4),
        (torch.zeros(()), 1),
        ([torch.zeros(3), torch.zeros(9)], 3),
        ({"x": torch.zeros(5, 1), "name": "a"}, 5),
        (([{"x": torch.zeros(2)}],), 2),
        ([], 0),
        ({}, 0),
        ("text", 0),
    ],
)
def test_samples_of_a_batch(batch: Any, count: int) -> None:
    assert sample_count(batch) == count


def test_tensor_data_sets_are_map_style() -> None:
    loaders = make(TensorDataset(torch.arange(6.0)), 2, batch_size=3)
    loaders.start(1, 0)
    assert loaders.next(1, None)[0].tolist() == [1.0, 3.0, 5.0]

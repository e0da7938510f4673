from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from isoscale.core.streams import rng
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


def begin(loaders: LogicalLoaders, epoch: int = 0, seeds: list[int] | None = None) -> None:
    loaders.begin(epoch, seeds or [0] * 4, lambda rank, work: work())


def read(loaders: LogicalLoaders, rank: int, epoch: int = 0) -> list[list[float]]:
    """A whole pass of one worker, whose streams are those that are active now."""
    seed, after = rng.draw_base_seed(rng.capture())
    begin(loaders, epoch, [seed] * 4)
    rng.restore(after)
    loaders.open([rank], 0)
    batches = []
    while (batch := loaders.fetch(rank, len(batches), None)) is not None:
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
    begin(loaders)
    got = [loaders.fetch(rank, index, None).tolist() for index in range(2) for rank in range(2)]
    assert got == [[0.0, 2.0], [1.0, 3.0], [4.0, 6.0], [5.0, 7.0]]
    assert loaders.fetch(0, 2, "none left") == "none left"


def test_building_loaders_draws_nothing() -> None:
    rng.seed_all(1)
    first = random.random(), float(torch.rand(()))
    rng.seed_all(1)
    make(Numbers(9), shuffle=True)
    assert (random.random(), float(torch.rand(()))) == first


def test_options_reach_the_data_loader() -> None:
    loaders = make(Numbers(6), options={"collate_fn": lambda samples: torch.tensor(samples) * 10})
    assert read(loaders, 0) == [[0.0, 30.0]]


def test_a_stopped_loader_reads_on_where_it_is_asked_to() -> None:
    loaders = make(Numbers(12))
    begin(loaders)
    first = loaders.fetch(0, 0, None)
    loaders.stop()
    assert loaders.fetch(0, 1, None).tolist() == [6.0, 9.0]
    assert first.tolist() == loaders.fetch(0, 0, None).tolist() == [0.0, 3.0]


def test_only_the_workers_that_live_here_keep_their_place() -> None:
    loaders = make(Counted(12))
    begin(loaders)
    loaders.open([0, 1], 0)
    for rank in (0, 1):
        loaders.fetch(rank, 0, None)
    loaders.open([1, 2], 1)
    assert [loaders.fetch(rank, 1, None).tolist() for rank in (1, 2)] == [[7.0, 10.0], [8.0, 11.0]]
    # Worker 2 came in the middle of the pass: without loader processes nothing that lies before is read.
    assert Counted.read == [0, 3, 1, 4, 7, 10, 8, 11]


class Counted(Dataset[Any]):
    read: ClassVar[list[int]] = []

    def __init__(self, size: int) -> None:
        self._size = size
        self.read.clear()

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> float:
        self.read.append(index)
        return float(index)


@pytest.mark.parametrize("options", [{}, {"drop_last": True}], ids=str)
def test_any_batch_in_any_order_is_the_stock_loaders(options: dict[str, Any]) -> None:
    """As shares move and steps are done again; the worker's own streams move as they do in its DDP process."""
    batches: dict[tuple[int, int, int], list[float]] = {}
    before: dict[tuple[int, int, int], rng.Streams] = {}
    for rank in range(2):
        rng.seed_all(rank)
        sampler = DistributedSampler(Numbers(13), 2, rank, True, seed=11)
        stock = DataLoader(Numbers(13, noisy=True), 2, sampler=sampler, **options)
        for epoch in range(2):
            sampler.set_epoch(epoch)
            iterator = iter(stock)
            for index in range(len(stock)):
                before[epoch, rank, index] = rng.capture()
                batches[epoch, rank, index] = next(iterator).tolist()
            before[epoch, rank, len(stock)] = rng.capture()
    loaders = make(Numbers(13, noisy=True), 2, shuffle=True, options=options)
    assert loaders.num_steps == len(stock)
    last = len(stock) - 1
    for epoch in range(2):
        begin(loaders, epoch)
        for rank, index in [(0, 0), (0, 1), (1, 1), (0, last), (1, last), (1, 0), (0, 1), (1, last)]:
            rng.restore(before[epoch, rank, index])
            assert loaders.fetch(rank, index, None).tolist() == batches[epoch, rank, index]
            assert rng.capture().changes_since(before[epoch, rank, index + 1]) == [None] * 4


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"options": {"sampler": range(3)}}, ["sampler", "per logical worker"]),
        ({"options": {"batch_sampler": []}}, ["batch_sampler", "per logical worker"]),
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
    begin(loaders)
    assert loaders.fetch(1, 0, None)[0].tolist() == [1.0, 3.0, 5.0]

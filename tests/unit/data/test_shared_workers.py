"""Loader processes that several logical workers share read what each one's stock DataLoader would read."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler, get_worker_info
from torch.utils.data.distributed import DistributedSampler

from isoscale.core.streams import rng
from isoscale.data.loader import LogicalLoaders
from isoscale.data.virtual import LoaderError
from isoscale.errors import UserError

N, BATCH, SEED = 3, 2, 5
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


@pytest.fixture(autouse=True)
def leave_streams() -> Iterator[None]:
    with rng.isolated():
        yield


class Noisy(Dataset[Any]):
    """Draws from all three generators; says which worker of how many read it."""

    def __init__(self, size: int = 20) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> torch.Tensor:
        info = get_worker_info()
        assert info is not None
        drawn = [random.random(), float(np.random.rand()), float(torch.rand(())), random.gauss(0, 1)]
        return torch.tensor([index, *drawn, info.id, info.num_workers, info.seed % 1000], dtype=torch.float64)


def init(worker: int) -> None:
    """Draws, and seeds one generator anew."""
    random.random()
    np.random.seed(100 + worker)


Batches = dict[tuple[int, int, int], torch.Tensor]


def stock(epochs: int, dataset: Any = None, **options: Any) -> tuple[Batches, list[list[int]]]:
    """Batches by (epoch, rank, index), and the base seeds that iter() drew in every epoch."""
    dataset = dataset or Noisy()
    batches: Batches = {}
    seeds: list[list[int]] = [[] for _ in range(epochs)]
    for rank in range(N):
        rng.seed_all(SEED + rank)
        sampler = DistributedSampler(dataset, N, rank, True, seed=SEED)
        loader = DataLoader(dataset, BATCH, sampler=sampler, **options)
        for epoch in range(epochs):
            sampler.set_epoch(epoch)
            seeds[epoch].append(rng.draw_base_seed(rng.capture())[0])
            for index, batch in enumerate(loader):
                batches[epoch, rank, index] = batch
    return batches, seeds


def shared(dataset: Any = None, **options: Any) -> LogicalLoaders:
    return LogicalLoaders(
        dataset or Noisy(),
        num_logical_workers=N,
        seed=SEED,
        batch_size=BATCH,
        shuffle="sampler" not in options,
        train=True,
        options=options,
    )


def begin(loaders: LogicalLoaders, epoch: int, seeds: list[list[int]]) -> None:
    loaders.begin(epoch, seeds[epoch] if loaders.draws else [], lambda rank, work: work())


def step(loaders: LogicalLoaders, ranks: range | list[int], index: int) -> list[torch.Tensor]:
    """One step that is sealed."""
    loaders.mark()
    loaders.open(ranks, index)
    got = [loaders.fetch(rank, index, None) for rank in ranks]
    for rank in ranks:
        loaders.adopt(rank, loaders.changes_of(rank), here=True)
    return got


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 1},
        {"num_workers": 3, "prefetch_factor": 1},
        {"num_workers": 2, "prefetch_factor": 4, "drop_last": True, "worker_init_fn": init},
        {"num_workers": 2, "persistent_workers": True, "worker_init_fn": init},
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_every_worker_reads_what_its_ddp_rank_reads(options: dict[str, Any]) -> None:
    batches, seeds = stock(2, **options)
    loaders = shared(**options)
    for epoch in range(2):
        begin(loaders, epoch, seeds)
        for index in range(loaders.num_steps):
            for rank, got in enumerate(step(loaders, range(N), index)):
                assert torch.equal(got, batches[epoch, rank, index])
        loaders.stop()
    assert loaders.num_steps * 2 * N == len(batches)


@pytest.mark.parametrize("options", [{"num_workers": 2}, {"num_workers": 3, "persistent_workers": True}], ids=str)
def test_another_executor_goes_on_anywhere(options: dict[str, Any]) -> None:
    """Workers move between two executors that know only what seals told them, in mid-epoch and across epochs."""
    batches, seeds = stock(2, **options)
    here, there = shared(**options), shared(**options)
    chance = random.Random(3)
    for epoch in range(2):
        for loaders in (here, there):
            begin(loaders, epoch, seeds)
        for index in range(here.num_steps):
            split = chance.randrange(N + 1)
            for loaders, other, ranks in ((here, there, range(split)), (there, here, range(split, N))):
                loaders.mark()
                loaders.open(ranks, index)
                for rank in ranks:
                    assert torch.equal(loaders.fetch(rank, index, None), batches[epoch, rank, index])
                for rank in ranks:
                    changes = loaders.changes_of(rank)
                    loaders.adopt(rank, changes, here=True)
                    other.adopt(rank, changes, here=False)
        for loaders in (here, there):
            loaders.stop()


def test_a_step_that_is_done_again_reads_the_same() -> None:
    batches, seeds = stock(1, num_workers=2)
    loaders = shared(num_workers=2)
    begin(loaders, 0, seeds)
    step(loaders, range(N), 0)
    loaders.mark()
    loaders.open([0], 1)
    loaders.fetch(0, 1, None)
    loaders.rewind()
    for index in range(1, loaders.num_steps):
        for rank, got in enumerate(step(loaders, range(N), index)):
            assert torch.equal(got, batches[0, rank, index])
    loaders.stop()


def test_a_checkpoint_goes_on_in_mid_epoch() -> None:
    batches, seeds = stock(1, num_workers=3)
    loaders, later = shared(num_workers=3), shared(num_workers=3)
    begin(loaders, 0, seeds)
    for index in range(2):
        step(loaders, range(N), index)
    state = loaders.state()
    loaders.stop()
    rng.seed_all(99)
    later.begin(0, [1, 2, 3], lambda rank, work: work())
    later.load_state(state)
    for index in range(2, later.num_steps):
        for rank, got in enumerate(step(later, range(N), index)):
            assert torch.equal(got, batches[0, rank, index])
    later.stop()


def test_a_loader_process_that_is_killed_is_replaced() -> None:
    batches, seeds = stock(1, num_workers=2)
    loaders = shared(num_workers=2)
    begin(loaders, 0, seeds)
    step(loaders, range(N), 0)
    assert loaders._workers is not None
    assert loaders._workers._pool is not None
    for process in loaders._workers._pool._processes:
        os.kill(process.process.pid, signal.SIGKILL)
    for index in range(1, loaders.num_steps):
        for rank, got in enumerate(step(loaders, range(N), index)):
            assert torch.equal(got, batches[0, rank, index])
    loaders.stop()


class Broken(Noisy):
    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 7:
            raise KeyError("no such picture")
        return super().__getitem__(index)


class Deadly(Noisy):
    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 7:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


class Slow(Noisy):
    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(60)
        return super().__getitem__(index)


def read_all(loaders: LogicalLoaders) -> None:
    begin(loaders, 0, [[1, 2, 3]])
    try:
        for index in range(loaders.num_steps):
            step(loaders, range(N), index)
    finally:
        loaders.stop()


def test_an_error_in_a_loader_process_names_sample_and_logical_worker() -> None:
    with pytest.raises(LoaderError, match=r"KeyError in loader process \d for logical worker \d, batch \d, sample 7"):
        read_all(shared(Broken(), num_workers=2))


class Unsendable(Noisy):
    def __getitem__(self, index: int) -> Any:
        return lambda: index


def test_a_batch_that_cannot_be_sent_is_an_error_like_others() -> None:
    with pytest.raises(LoaderError, match=r"in loader process 0 for logical worker 0, batch 0\n(.*\n)+.*pickle"):
        read_all(shared(Unsendable(), num_workers=1, collate_fn=list))


def test_a_data_set_that_kills_its_process_is_named() -> None:
    with pytest.raises(
        UserError, match=r"process \d died 4 times, the last time reading sample 7 for logical worker \d"
    ):
        read_all(shared(Deadly(), num_workers=2))


def test_a_hang_runs_into_the_loaders_own_time_limit() -> None:
    with pytest.raises(TimeoutError, match="no batch 0 for logical worker 0 within 1 s"):
        read_all(shared(Slow(), num_workers=1, timeout=1))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_sampler_of_ones_own_per_logical_worker(num_workers: int) -> None:
    """torch's RandomSampler draws from the worker's stream when a pass begins."""
    dataset = list(range(12))
    expected, streams = [], []
    for rank in range(N):
        rng.seed_all(SEED + rank)
        streams.append(rng.capture())
        loader = DataLoader(dataset, BATCH, sampler=RandomSampler(dataset), num_workers=num_workers)  # type: ignore[arg-type]
        expected.append([batch.tolist() for batch in loader])
    drawn = [rng.draw_base_seed(one) for one in streams]

    def under(rank: int, work: Any) -> None:
        rng.restore(drawn[rank][1])
        work()

    loaders = LogicalLoaders(
        dataset,  # type: ignore[arg-type]
        num_logical_workers=N,
        seed=SEED,
        batch_size=BATCH,
        shuffle=False,
        train=True,
        options={"sampler": lambda rank, n: RandomSampler(dataset), "num_workers": num_workers},
    )
    loaders.begin(0, [seed for seed, _ in drawn], under)
    for index in range(loaders.num_steps):
        loaders.mark()
        loaders.open(range(N), index)
        assert [loaders.fetch(rank, index, None).tolist() for rank in range(N)] == [e[index] for e in expected]
    loaders.stop()


def test_samplers_of_unequal_length_are_refused() -> None:
    loaders = LogicalLoaders(
        list(range(12)),  # type: ignore[arg-type]
        num_logical_workers=2,
        seed=0,
        batch_size=2,
        shuffle=False,
        train=True,
        options={"sampler": lambda rank, n: range(4 + 2 * rank)},
    )
    with pytest.raises(UserError, match="3 batches for logical worker 1: logical worker 0 has 2"):
        loaders.begin(0, [0, 0], lambda rank, work: work())


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"prefetch_factor": 2}, "prefetch_factor"),
        ({"persistent_workers": True}, "persistent_workers"),
        ({"sampler": [1, 2]}, "per logical worker"),
        ({"generator": torch.Generator()}, "own torch stream"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_options_that_cannot_be(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        shared(**options)

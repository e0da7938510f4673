"""A batch size of the command line that does not reach the model is refused; samples are counted as they are."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from isoscale.core.reduction.exchange import LocalExchange
from isoscale.core.streams import rng
from isoscale.errors import UserError
from isoscale.runtime.training.execute import execute
from isoscale.runtime.training.job import Job
from isoscale.runtime.training.loop import TrainingLoop
from isoscale.types import JobSpec

DATA = TensorDataset(torch.randn(24, 3, generator=torch.Generator().manual_seed(0)))


class Samples:
    """A sink that notes how many samples each step had."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def step(self, **facts: Any) -> None:
        self.seen.append(facts["samples"])

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda **facts: None


class Lengths:
    """A batch sampler of one logical worker: batches of 1, 2, 3 ... samples."""

    def __init__(self, rank: int, workers: int) -> None:
        self._first = 12 * rank

    def __iter__(self) -> Iterator[list[int]]:
        first = self._first
        for size in (1, 2, 3, 4):
            yield list(range(first, first + size))
            first += size

    def __len__(self) -> int:
        return 4


class Opaque:
    """A batch of which nobody can tell how long it is, as of a library of tokenizers."""

    def __init__(self, rows: list[tuple[torch.Tensor]]) -> None:
        self.x = torch.stack([row[0] for row in rows])


def run(batch: int, *, given: Callable[[Any], Any] = lambda batch: batch.x, **options: Any) -> list[int]:
    sink = Samples()

    def train(job: Job) -> None:
        model = job.model(nn.Linear(3, 1))
        for _ in job.epochs(1):
            for step in job.loader(DATA, **({"batch_size": 4, "collate_fn": Opaque} | options)):
                for part in step:
                    model(given(part)).sum().backward()

    anything: Any = sink
    with rng.isolated():
        random.seed(0)
        execute(TrainingLoop(JobSpec(workers=2, batch=batch), LocalExchange(2), anything), train)
    return sink.seen


def test_samples_are_counted_whatever_a_batch_is() -> None:
    assert run(0) == [8, 8, 8]
    assert run(0, batch_sampler=Lengths, batch_size=1) == [2, 4, 6, 8]
    assert run(6) == [12, 12]


@pytest.mark.processes
def test_samples_that_loader_processes_read_are_counted() -> None:
    assert run(0, batch_sampler=Lengths, batch_size=1, num_workers=1) == [2, 4, 6, 8]


def test_a_batch_sampler_has_sizes_of_its_own() -> None:
    with pytest.raises(UserError, match=r"--batches=6: the script's training loader has a batch_sampler"):
        run(6, batch_sampler=Lengths, batch_size=1)


def test_a_loader_that_only_counts_steps_is_noticed() -> None:
    with pytest.raises(UserError, match=r"Linear gets \(5, 3\) in a turn whose loader gave 6 samples: the script"):
        run(6, given=lambda batch: torch.randn(5, 3))

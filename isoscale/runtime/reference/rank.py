"""One rank of the reference: its models and what it keeps, its random streams, how far it is.

What the API (`runtime.reference.run`), its loaders and its steps have in common. No call of torch.distributed.
"""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

from isoscale.core.encoding.digest import digest
from isoscale.runtime.training.probe import Probe
from isoscale.runtime.training.state import Stateful, Tree
from isoscale.types import JobSpec

if TYPE_CHECKING:
    from isoscale.runtime.reference.live import LiveSize

__all__ = ["Rank", "Streams", "Total", "get_streams", "seed_streams", "set_streams"]

#: of Python, NumPy and torch
Streams = tuple[Any, Any, torch.Tensor]
Total = int | float | torch.Tensor


class Rank:
    def __init__(self, spec: JobSpec, out: Path, number: int) -> None:
        self.spec = spec
        self.out = out
        self.number = number
        self.models: dict[str, DistributedDataParallel] = {}
        self.kept: dict[str, Stateful] = {}
        self.values: dict[str, Any] = {}
        self.probe: Probe | None = None
        #: the size of batches, where it may change
        self.live: LiveSize | None = None
        #: committed steps, samples that all ranks read in them, and the present epoch
        self.step = 0
        self.samples = 0
        self.epoch = 0
        #: steps after which the script wants to end; 0 if it did not say
        self.limit = 0
        self.stopped = False
        #: a turn runs, and whether it has asked to stop: all ranks stop after its step
        self.in_turn = False
        self.turn_stop = False
        #: its own random streams, from its first turn on
        self.streams: Streams | None = None
        #: logged values of every step of this rank, as float hex; written as they come once there is a file
        self.records: list[dict[str, str]] = []
        self.file: TextIO | None = None

    def has_ended(self) -> bool:
        return self.stopped or any(self.step >= limit for limit in (self.limit, self.spec.until) if limit)

    def record(self, values: dict[str, str]) -> None:
        self.records.append(values)
        if self.file is not None:
            self.file.write(json.dumps(values) + "\n")
            self.file.flush()

    @contextlib.contextmanager
    def own_streams(self) -> Iterator[None]:
        """Inside, this rank's random streams; outside, the ones that all ranks share."""
        shared = get_streams()
        if self.streams is None:
            seed_streams(self.spec.seed + self.number)
        else:
            set_streams(self.streams)
        try:
            yield
        finally:
            self.streams = get_streams()
            set_streams(shared)

    def result(self) -> Tree:
        """The contents of final.pt."""
        models = {name: dict(model.module.state_dict()) for name, model in self.models.items()}
        out: Tree = {"model": next(iter(models.values()))} if len(models) == 1 else {"models": models}
        out |= {name: thing.state_dict() for name, thing in self.kept.items()}
        if self.values:
            out["state"] = self.values
        return out | {"step": self.step}

    def digest(self) -> str:
        optimizers = {n: t.state_dict() for n, t in self.kept.items() if isinstance(t, torch.optim.Optimizer)}
        return digest({name: model.module.state_dict() for name, model in self.models.items()}, optimizers)


def seed_streams(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def get_streams() -> Streams:
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def set_streams(streams: Streams) -> None:
    random.setstate(streams[0])
    np.random.set_state(streams[1])
    torch.set_rng_state(streams[2])

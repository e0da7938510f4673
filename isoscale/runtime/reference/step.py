"""A step of the reference: one turn of this rank, and what all ranks logged and summed in theirs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import numpy as np
import torch
import torch.distributed as dist
from torch.utils._pytree import tree_map_only

from isoscale.data.loader import sample_count
from isoscale.runtime.reference.rank import Rank, Total

__all__ = ["Step"]


class Step:
    def __init__(
        self,
        rank: Rank,
        batches: Iterator[object],
        train: bool,
        index: int,
        num_samples: Callable[[object], int] = sample_count,
    ) -> None:
        self._rank = rank
        self._batches = batches
        self._train = train
        self._num_samples, self._count = num_samples, 0
        self.index = index
        self.logical_rank = rank.number
        self._logged: dict[str, list[float]] = {}
        self._summed: dict[str, torch.Tensor] = {}
        self._given: dict[str, list[object]] = {}
        self.totals: dict[str, Total] = {}
        self.means: dict[str, float] = {}
        self.gathered: dict[str, list[object]] = {}

    def __iter__(self) -> Iterator[object]:
        rank, nothing = self._rank, object()
        probe = rank.probe if self._train else None
        with rank.own_streams():
            batch = next(self._batches, nothing)
            self._count = 0 if batch is nothing else self._num_samples(batch)
            rank.in_turn = True
            if batch is not nothing:
                if probe is not None:
                    probe.turn_begins(rank.number, batch)
                yield batch
                if probe is not None:
                    probe.turn_ends(rank.number)
            else:
                for model in rank.models.values():
                    # The other ranks broadcast buffers in their first evaluation forward: take part.
                    if model.will_sync_module_buffers():  # type: ignore[no-untyped-call]
                        model._sync_buffers()  # type: ignore[no-untyped-call]
                        model.require_forward_param_sync = False
            rank.in_turn = False
        self._combine()
        if self._train:
            rank.step += 1
            rank.record({name: _mean(values).hex() for name, values in self._logged.items()})
            if probe is not None:
                probe.reduced(rank.step)

    def log(self, **values: float | torch.Tensor) -> None:
        for name, value in values.items():
            number = float(value.detach() if isinstance(value, torch.Tensor) else value)
            self._logged.setdefault(name, []).append(number)

    def sum(self, **values: float | torch.Tensor) -> None:
        for name, value in values.items():
            tensor = torch.as_tensor(value, dtype=torch.float64 if isinstance(value, float) else None).detach()
            wide = tensor.to(torch.float64 if tensor.is_floating_point() else torch.int64, copy=True)
            self._summed[name] = self._summed[name] + wide if name in self._summed else wide

    def gather(self, **values: object) -> None:
        for name, value in values.items():
            one = torch.from_numpy(value) if isinstance(value, np.ndarray) else value
            copied = tree_map_only(torch.Tensor, lambda tensor: tensor.detach().clone(), one)
            self._given.setdefault(name, []).append(copied)

    @contextlib.contextmanager
    def accumulate(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for model in self._rank.models.values():
                stack.enter_context(model.no_sync())
            yield

    def _combine(self) -> None:
        rank = self._rank
        means = {name: _mean(v) for name, v in self._logged.items()}
        mine = (means, self._summed, rank.turn_stop, self._given, self._count)
        every = [mine] * rank.spec.workers
        dist.all_gather_object(every, mine)
        rank.turn_stop = False
        rank.stopped = rank.stopped or any(stop for _, _, stop, *_ in every)
        rank.samples += sum(count for *_, count in every) if self._train else 0
        for name in sorted({name for logged, *_ in every for name in logged}):
            self.means[name] = _mean([logged[name] for logged, *_ in every if name in logged])
        for name in sorted({name for _, summed, *_ in every for name in summed}):
            values = [summed[name] for _, summed, *_ in every if name in summed]
            total = values[0]
            for value in values[1:]:
                total = total + value
            self.totals[name] = total if total.dim() else total.item()
        for *_, given, _ in every:
            for name, things in given.items():
                self.gathered.setdefault(name, []).extend(things)


def _mean(values: list[float]) -> float:
    total = values[0]
    for value in values[1:]:
        total += value
    return total / len(values)

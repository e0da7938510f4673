"""One global step as the user's loop sees it, and the engine that runs it on one executor.

`Step` hands out the turns of the logical workers that live here; when the last is done the engine
finishes the gradients, moves worker 0's buffers, and seals the step. After the inner loop `.grad`
holds the average over all N logical workers. The engine knows no loader, file or socket.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from isoscale.core.context import ContextSwitch
from isoscale.core.exchange import Exchange
from isoscale.core.position import PositionGate
from isoscale.core.rules import Turn, user_location
from isoscale.core.seal import Seal, Sealed
from isoscale.core.totals import Combined, Tally, Total
from isoscale.core.tracked import TrackedModel
from isoscale.core.unkept import AttributeWatch

__all__ = ["NO_BATCH", "Step", "StepEngine"]


class _NoBatch:
    """What a fetch returns for a logical worker that has no batch left in an evaluation step."""


NO_BATCH = _NoBatch()


class StepEngine:
    """Everything of a job that a step touches. One per executor process."""

    def __init__(self, exchange: Exchange, contexts: ContextSwitch, turn: Turn) -> None:
        self.exchange = exchange
        self.contexts = contexts
        self.turn = turn
        self.models: list[TrackedModel] = []
        self.seal = Seal(exchange)
        self.gate = PositionGate(exchange)
        #: line at which an inner loop was left early; raised at the next occasion
        self.broken_at: str | None = None
        #: watch the models' attributes in the next step (costs a walk over all modules)
        self.watch_attributes = True
        self._expected_buffers: dict[str, list[bool]] = {}

    @property
    def ranks(self) -> range:
        return self.exchange.placement.ranks_of(self.exchange.index)

    def begin(self, training: bool, position: str) -> None:
        self.check_not_broken()
        self.turn.training = training
        self.gate.announce(position)
        if not training:
            return
        for model in self.models:
            self.check_no_stray_backward()
            model.begin_step()

    def open_turn(self, logical_rank: int, *, last: bool) -> None:
        self.contexts.enter(logical_rank)
        self.turn.logical_rank = logical_rank
        for model in self.models:
            if self.turn.training:
                # With several models a bucket may only leave once it is known that all workers use its model.
                model.open_turn(logical_rank, launch_if=self.gate.agrees if last and len(self.models) == 1 else None)
            else:
                model.buffers.open_turn(logical_rank)

    def close_turn(self, logical_rank: int) -> None:
        if self.turn.training:
            took_part = [model.close_turn(logical_rank) for model in self.models]
            if not any(took_part):
                raise self.turn.error("the turn ended without backward()", "call loss.backward() in every turn")
        else:
            self.check_no_stray_backward()
            for model in self.models:
                model.buffers.close_turn(logical_rank)
        self.turn.accumulating = False
        self.turn.logical_rank = None

    def finish(self, tally: Tally, *, digest: str, stop: bool) -> Sealed:
        """Exchange what the turns left, then seal. The caller's streams are the job-wide ones from here on."""
        self.contexts.leave()
        self.gate.check()
        if self.turn.training:
            self._finish_gradients()
        for model in self.models:
            if self.turn.training:
                model.buffers.end_step(self._share_buffers(model))
            else:
                model.buffers.end_step({})
        return self.seal.close(tally, digest=digest, stop=stop)

    def _finish_gradients(self) -> None:
        for model in self._models_of_step():
            used_by_any = None
            if model.find_unused:
                counts = torch.tensor(list(model.used.values()), dtype=torch.int64).sum(0)
                self.exchange.sum_int64(counts)
                used_by_any = (counts > 0).tolist()
            model.finish(used_by_any)
            if not model.sync.layout.final:
                order = torch.tensor(model.ready_order or range(len(model.params)), dtype=torch.int64)
                self.exchange.broadcast([order], self.exchange.placement.executor_of(0))
                model.sync.rebuild(order.tolist())

    def _models_of_step(self) -> list[TrackedModel]:
        """The models that all logical workers used; one that only some used is an error, as it is in stock DDP."""
        if len(self.models) == 1:
            return self.models
        counts = torch.tensor([len(model.used) for model in self.models], dtype=torch.int64)
        self.exchange.sum_int64(counts)
        taking_part = []
        for model, count in zip(self.models, counts.tolist(), strict=True):
            if count == self.exchange.placement.num_logical_workers:
                taking_part.append(model)
            elif count:
                raise self.turn.error(
                    f"only {count} of the logical workers called backward() on model {model.name!r}",
                    "use the same models in every turn of a step",
                )
            else:
                model.abandon()
        return taking_part

    def _share_buffers(self, model: TrackedModel) -> dict[int, torch.Tensor]:
        """Worker 0's changed buffers, from the executor that hosts it. Usually one message.

        The message is laid out for the buffers that changed last time, with a flag for each that changed now.
        """
        buffers, source = model.buffers, self.exchange.placement.executor_of(0)
        if not len(buffers) or self.exchange.placement.num_executors == 1:
            return buffers.fresh()
        fresh, here = buffers.fresh(), self.exchange.index == source
        expected = self._expected_buffers.get(model.name, [False] * len(buffers))
        flags = torch.tensor([i in fresh for i in range(len(buffers))], dtype=torch.uint8)
        values = (
            [fresh.get(i, b).clone() for i, b in enumerate(buffers.shared)]
            if here
            else [torch.empty_like(b) for b in buffers.shared]
        )
        self._send_bytes([flags, *(v for v, e in zip(values, expected, strict=True) if e)], source)
        changed = flags.bool().tolist()
        late = [v for v, e, c in zip(values, expected, changed, strict=True) if c and not e]
        if late:
            self._send_bytes(late, source)
        self._expected_buffers[model.name] = changed
        return {i: values[i] for i, c in enumerate(changed) if c}

    def _send_bytes(self, tensors: list[torch.Tensor], source: int) -> None:
        parts = [t.contiguous().reshape(-1).view(torch.uint8) for t in tensors]
        message = torch.cat(parts)
        self.exchange.broadcast([message], source)
        if self.exchange.index != source:
            for tensor, part in zip(tensors, torch.split(message, [p.numel() for p in parts]), strict=True):
                # A split may start at any byte; the copy gives the dtype its alignment.
                tensor.copy_(part.clone().view(tensor.dtype).view(tensor.shape))

    def check_not_broken(self) -> None:
        if self.broken_at is not None:
            location, self.broken_at = self.broken_at, None
            raise self.turn.error(
                "the inner loop over a step was left before its last turn",
                "let the inner loop run to its end; to end training early call job.stop(reason)",
                location=location,
            )

    def check_no_stray_backward(self) -> None:
        for model in self.models:
            location = model.backward_outside()
            if location is not None:
                raise self.turn.error(
                    "backward() outside a training turn leaves gradients that are never averaged",
                    "call backward() inside the inner loop over a step of a training loader",
                    location=location,
                )

    def before_optimizer_step(self) -> None:
        """Called before every `optimizer.step()` in the process."""
        self.check_not_broken()
        if self.turn.logical_rank is not None:
            raise self.turn.error(
                "optimizer.step() inside a turn would use one logical worker's gradients",
                "call it after the inner loop, once per global step",
            )


class Step:
    """One global step. Iterate it to get the batches of the logical workers that live here."""

    def __init__(
        self,
        engine: StepEngine,
        fetch: Callable[[int], Any],
        commit: Callable[[Tally], Sealed],
        *,
        training: bool,
        position: str,
    ) -> None:
        self._engine = engine
        self._position = position
        self._fetch = fetch
        self._commit = commit
        self._training = training
        self._tally = Tally()
        self._iterated = False
        self._combined: Combined | None = None

    @property
    def complete(self) -> bool:
        return self._combined is not None

    @property
    def totals(self) -> dict[str, Total]:
        """Sums over all logical workers; known after the inner loop."""
        return self._after().sums

    @property
    def means(self) -> dict[str, float]:
        """Means of what was logged over all logical workers; known after the inner loop."""
        return self._after().means

    def log(self, **values: Any) -> None:
        """Report values of this turn; the step's value is the float64 mean over logical workers."""
        self._tally.log(self._rank("step.log"), values)

    def sum(self, **values: Any) -> None:
        """Add integers, floats or tensors of this turn into `step.totals` and `loader.totals`."""
        self._tally.sum(self._rank("step.sum"), values)

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        """Forward and backward inside stay local to the turn, as under DDP's `no_sync`."""
        self._rank("step.accumulate")
        self._engine.turn.accumulating = True
        try:
            yield
        finally:
            self._engine.turn.accumulating = False

    def __iter__(self) -> Iterator[Any]:
        if self._iterated:
            raise self._engine.turn.error("a step was iterated twice", "iterate each step of a loader once")
        self._iterated = True
        return self._turns()

    def _turns(self) -> Iterator[Any]:
        engine = self._engine
        engine.begin(self._training, self._position)
        watches = []
        if engine.watch_attributes and self._training:
            watches = [AttributeWatch(model.module) for model in engine.models]
        ranks = engine.ranks
        for rank in ranks:
            engine.open_turn(rank, last=rank == ranks[-1])
            batch = self._fetch(rank)
            if batch is not NO_BATCH:
                try:
                    yield batch
                except GeneratorExit:
                    engine.broken_at = user_location()
                    raise
            for model, watch in zip(engine.models, watches, strict=False):
                late = model.buffers.search_silent(rank)
                if late is not None:
                    raise engine.turn.error(
                        f"the buffer {type(model.module).__name__}.{late} is written past torch's version counter (by "
                        "a kernel, or through .data), which began after the first step",
                        "write it with tensor operations under torch.no_grad(), or in every step from the first on",
                    )
                name = watch.changed()
                if name is not None:
                    raise engine.turn.error(
                        f"forward changed the attribute {type(model.module).__name__}.{name}, "
                        "which logical workers would share",
                        "make it a buffer (register_buffer) or keep it with job.keep_per_worker",
                    )
            if batch is NO_BATCH:
                engine.turn.logical_rank = None
            else:
                engine.close_turn(rank)
        engine.watch_attributes = False
        self._combined = self._commit(self._tally).values

    def _rank(self, call: str) -> int:
        rank = self._engine.turn.logical_rank
        if rank is None:
            raise self._engine.turn.error(f"{call}() outside a turn", "call it inside the inner loop over the step")
        return rank

    def _after(self) -> Combined:
        if self._combined is None:
            raise self._engine.turn.error(
                "totals are known only when all logical workers have had their turn", "read them after the inner loop"
            )
        return self._combined

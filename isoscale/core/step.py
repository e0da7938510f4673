"""One global step as the user's loop sees it, and the engine that runs it on one executor.

`Step` hands out the turns of the logical workers that live here; when the last is done the engine
gathers the averaged gradients, worker 0's buffers and all contexts, and seals the step. After the inner
loop `.grad` holds the average over all N logical workers. Until the seal nothing is applied, so a step in
which an executor was lost is done again by those that are left. The engine knows no loader, file or socket.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
import torch

from isoscale.core import audit, codec
from isoscale.core.audit import Audits
from isoscale.core.context import ContextSwitch
from isoscale.core.exchange import Exchange, ExchangeBrokenError
from isoscale.core.position import PositionGate
from isoscale.core.rules import Turn, user_location
from isoscale.core.seal import Seal, Sealed, short_hash
from isoscale.core.totals import Combined, Tally, Total
from isoscale.core.tracked import TrackedModel
from isoscale.core.unkept import AttributeWatch
from isoscale.errors import AuditError

__all__ = ["NO_BATCH", "Carried", "Recovery", "Step", "StepEngine"]


class _NoBatch:
    """What a fetch returns for a logical worker that has no batch left in an evaluation step."""


NO_BATCH = _NoBatch()

#: logical rank, its context's parts, its own buffers model by model, what its loader carries: None or b"" where
#: nothing changed
_ContextChanges = tuple[int, list[bytes | None], list[bytes], bytes]
_contexts: msgspec.msgpack.Decoder[list[_ContextChanges]] = msgspec.msgpack.Decoder(list[_ContextChanges])
_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class Recovery:
    """How to go on after an exchange broke."""

    exchange: Exchange
    #: what all executors had put into the seal that this one did not leave, if another one did; None: do the step again
    vector: torch.Tensor | None


class Carried(Protocol):
    """What a loader knows of each logical worker that other executors must know too, once a step is sealed."""

    def mark(self) -> None:
        """A step begins."""

    def rewind(self) -> None:
        """It will be done again: everything is as it was at the mark."""

    def changes_of(self, logical_rank: int) -> bytes:
        """What a local worker's turn changed."""

    def adopt(self, logical_rank: int, changes: bytes, *, here: bool) -> None:
        """The step is sealed: take over what a turn changed, on another executor or, known already, here."""


class _AgainError(Exception):
    """The step must be done again with the same executors: some turns gave different bits elsewhere."""

    def __init__(self, audits: Audits) -> None:
        self.audits = audits


@dataclass(slots=True)
class _Gathered:
    """What a step's turns gave, held until it is sealed."""

    gradients: list[tuple[TrackedModel, list[torch.Tensor], list[bool] | None]] = field(default_factory=list)
    ready_orders: list[tuple[TrackedModel, list[int]]] = field(default_factory=list)
    buffers: dict[str, dict[int, torch.Tensor]] = field(default_factory=dict)
    #: by executor
    contexts: list[list[_ContextChanges]] = field(default_factory=list)


class StepEngine:
    """Everything of a job that a step touches. One per executor process."""

    def __init__(self, exchange: Exchange, contexts: ContextSwitch, turn: Turn) -> None:
        self.exchange = exchange
        self.contexts = contexts
        self.turn = turn
        self.models: list[TrackedModel] = []
        self.seal = Seal(exchange)
        self.gate = PositionGate(exchange)
        #: seals left since the job began: the job's own clock, equal on all executors
        self.seals = 0
        #: what all executors put into the last seal
        self.last_vector: torch.Tensor | None = None
        #: is this executor ready to switch to the next generation? asked at every seal
        self.ready: Callable[[], bool] = lambda: False
        #: a seal has shown that all are
        self.switch_agreed = False
        #: finds the executors that are left and agrees with them how to go on; None where there are no others
        self.on_broken: Callable[[], Recovery] | None = None
        #: line at which an inner loop was left early; raised at the next occasion
        self.broken_at: str | None = None
        #: watch the models' attributes in the next step (costs a walk over all modules)
        self.watch_attributes = True
        #: which turns of a step are to be run on several executors, by committed seals
        self.audits: Callable[[], Audits] = dict
        #: an executor, by position, was found to compute other bits than the rest; the second argument says where
        self.on_suspect: Callable[[int, str], None] = lambda index, reason: None
        self.on_doubt: Callable[[str], None] = lambda reason: None
        #: what the loader of the present step carries along
        self.carried: Carried | None = None
        self._audits: Audits = {}
        self._audit_digests: dict[int, int] = {}
        self._expected_buffers: dict[str, list[bool]] = {}
        self._gathered: _Gathered | None = None

    @property
    def ranks(self) -> range:
        return self.exchange.placement.ranks_of(self.exchange.index)

    @property
    def alone(self) -> bool:
        return self.exchange.placement.num_executors == 1

    def use(self, exchange: Exchange) -> None:
        """Go on with another exchange: other executors, other shares. Between steps or before one is done again."""
        before, self.exchange = self.exchange, exchange
        self.seal, self.gate = Seal(exchange), PositionGate(exchange)
        self._expected_buffers = {}
        self.switch_agreed = False
        # gloo may write into an abandoned exchange's memory until its sockets are closed.
        before.retire([model.sync.move(exchange) for model in self.models])

    def begin(self, training: bool, position: str, audits: Audits | None = None) -> None:
        self.check_not_broken()
        self.turn.training = training
        self._audits, self._audit_digests = (audits or {}), {}
        self.contexts.start()
        self.contexts.mark(shared=not self.alone)
        if self.carried is not None:
            self.carried.mark()
        for model in self.models:
            if training:
                self.check_no_stray_backward()
                model.begin_step()
            else:
                model.begin_evaluation()
        # Last: an exchange that is broken already must find a step that can be done again.
        self.gate.announce(position)

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
            if logical_rank in self._audits:
                self._audit_digests[logical_rank] = self._gradient_digest()
            took_part = [model.close_turn(logical_rank) for model in self.models]
            if not any(took_part):
                raise self.turn.error("the turn ended without backward()", "call loss.backward() in every turn")
        else:
            self.check_no_stray_backward()
            for model in self.models:
                model.buffers.close_turn(logical_rank)
        self.turn.accumulating = False
        self.turn.logical_rank = None

    def audited_here(self) -> list[int]:
        """Logical workers of other executors whose turns are to be run here too."""
        return [rank for rank, executors in self._audits.items() if self.exchange.index in executors[1:]]

    def close_audit(self, logical_rank: int) -> None:
        """A turn that was run only to be compared leaves nothing but its digest."""
        self._audit_digests[logical_rank] = self._gradient_digest()
        for model in self.models:
            model.discard_turn()
        self.contexts.rewind_one(logical_rank)
        self.turn.accumulating = False
        self.turn.logical_rank = None

    def _gradient_digest(self) -> int:
        return short_hash("/".join(model.gradient_digest() for model in self.models))

    def finish(self, tally: Tally, *, digest: str, stop: bool) -> Sealed:
        """Exchange what the turns left, seal, and only then apply it: until the seal the step can be done again.

        The caller's streams are the job-wide ones from here on.
        """
        self.contexts.leave()
        self.gate.check()
        self._gathered = self._gather()
        places = [(rank, e) for rank, executors in self._audits.items() for e in executors]
        mine = [self._audit_digests[rank] if e == self.exchange.index else 0 for rank, e in places]
        sealed = self.seal.close(tally, digest=digest, stop=stop, ready=self.ready(), extra=mine)
        if places:
            self._judge(dict(zip(places, sealed.extra, strict=True)))
        return self._settle(sealed)

    def _judge(self, digests: dict[tuple[int, int], int]) -> None:
        """Turns that were run on several executors must have given the same gradients; if not, who is wrong?"""
        audits = self._audits
        verdict = audit.judge(audits, {rank: [digests[rank, e] for e in audits[rank]] for rank in audits})
        refereed = any(len(executors) > 2 for executors in audits.values())
        if not verdict.differing:
            if refereed:
                self.on_doubt(f"turns of logical workers {list(audits)} gave other bits once, and not again")
            return
        where = f"gradients of logical worker {verdict.differing[0]} differ"
        if verdict.culprit is not None:
            self.on_suspect(verdict.culprit, where)
            raise ExchangeBrokenError(f"an executor is suspected: {where}")
        if refereed or self.exchange.placement.num_executors < 3:
            raise AuditError(
                tensor=f"the gradient of logical worker {verdict.differing[0]}",
                executors=audits[verdict.differing[0]],
                remedy="one of them miscomputes, and it takes a third executor to tell which",
            )
        raise _AgainError(audit.with_referees(audits, verdict.differing, self.exchange.placement))

    def seal_end(self, position: str, digest: str) -> Sealed:
        """A last seal without turns: all executors stand at the end, and hold the same bits."""
        while True:
            try:
                self.begin(False, position)
                return self.finish(Tally(), digest=digest, stop=False)
            except ExchangeBrokenError as broken:
                sealed = self.recover(broken)
            if sealed is not None:
                return sealed

    def recover(self, broken: ExchangeBrokenError) -> Sealed | None:
        """The exchange broke in a step. The step as others have sealed it, or None: it is to be done again."""
        if self.on_broken is None:
            raise broken
        self.turn.logical_rank = None
        self.turn.accumulating = False
        recovery = self.on_broken()
        sealed = None
        if recovery.vector is not None:
            # Whoever left that seal knew that this executor had entered it, so it holds everything.
            self.contexts.leave()
            self.seal.vector = recovery.vector
            sealed = self._settle(self.seal.read(recovery.vector))
        else:
            self.rewind()
        self.use(recovery.exchange)
        return sealed

    def rewind(self) -> None:
        """Everything is again as the step found it."""
        self.contexts.rewind()
        if self.carried is not None:
            self.carried.rewind()
        for model in self.models:
            model.rewind()

    def _gather(self) -> _Gathered:
        """Everything that the step's turns gave, from all executors; nothing of it in force yet."""
        gathered = _Gathered()
        if self.turn.training:
            self._gather_gradients(gathered)
            for model in self.models:
                gathered.buffers[model.name] = self._share_buffers(model)
        if not self.alone:
            gathered.contexts = self._share_contexts()
        return gathered

    def _settle(self, sealed: Sealed) -> Sealed:
        """The step is sealed: what was gathered comes into force."""
        gathered, self._gathered = self._gathered, None
        assert gathered is not None
        for model, results, used_by_any in gathered.gradients:
            model.publish(results, used_by_any)
        for model in self.models:
            model.buffers.end_step(gathered.buffers.get(model.name, {}))
        for model, ready_order in gathered.ready_orders:
            model.sync.rebuild(ready_order)
        if self.alone and self.carried is not None:
            for rank in self.ranks:
                own = self.carried.changes_of(rank)
                if own:
                    self.carried.adopt(rank, own, here=True)
        for index, changes in enumerate(gathered.contexts):
            self._adopt_contexts(changes, here=index == self.exchange.index)
        self.seals += 1
        self.last_vector = self.seal.vector
        self.switch_agreed |= sealed.all_ready
        return sealed

    def _gather_gradients(self, gathered: _Gathered) -> None:
        for model in self._models_of_step():
            used_by_any = None
            if model.find_unused:
                counts = torch.tensor(list(model.used.values()), dtype=torch.int64).sum(0)
                self.exchange.sum_int64(counts)
                used_by_any = (counts > 0).tolist()
            gathered.gradients.append((model, model.sync.finish(), used_by_any))
            if not model.sync.layout.final:
                order = torch.tensor(model.ready_order or range(len(model.params)), dtype=torch.int64)
                self.exchange.broadcast([order], self.exchange.placement.executor_of(0))
                gathered.ready_orders.append((model, order.tolist()))

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

    def _share_contexts(self) -> list[list[_ContextChanges]]:
        """What every turn changed in its logical worker's context, by executor: from here on all hold all contexts."""
        mine = [
            (
                rank,
                self.contexts.changes_of(rank),
                [_pack_buffers(model.buffers.own_changes(rank)) for model in self.models],
                b"" if self.carried is None else self.carried.changes_of(rank),
            )
            for rank in self.ranks
        ]
        return [_contexts.decode(data) for data in self.exchange.gather_bytes(_encode(mine))]

    def _adopt_contexts(self, changes: list[_ContextChanges], *, here: bool) -> None:
        for rank, context, buffers, carried in changes:
            self.contexts.adopt(rank, context, here=here)
            if self.carried is not None and carried:
                self.carried.adopt(rank, carried, here=here)
            if not here:
                for model, packed in zip(self.models, buffers, strict=True):
                    if packed:
                        model.buffers.adopt_own(rank, _unpack_buffers(packed))

    def _share_buffers(self, model: TrackedModel) -> dict[int, torch.Tensor]:
        """Worker 0's changed buffers, from the executor that hosts it. Usually one message.

        The message is laid out for the buffers that changed last time, with a flag for each that changed now.
        """
        buffers, source = model.buffers, self.exchange.placement.executor_of(0)
        if not len(buffers) or self.alone:
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
        on_sealed: Callable[[Sealed], Sealed],
        *,
        training: bool,
        position: str,
    ) -> None:
        self._engine = engine
        self._position = position
        self._fetch = fetch
        self._commit = commit
        self._on_sealed = on_sealed
        self._training = training
        self._tally = Tally()
        self._iterated = False
        #: the turn that runs is another executor's, and counts only there
        self._auditing = False
        self._audits: Audits | None = None
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
        rank = self._rank("step.log")
        if not self._auditing:
            self._tally.log(rank, values)

    def sum(self, **values: Any) -> None:
        """Add integers, floats or tensors of this turn into `step.totals` and `loader.totals`."""
        rank = self._rank("step.sum")
        if not self._auditing:
            self._tally.sum(rank, values)

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
        """All local turns and the commit; again, with more turns, if an executor is lost before the step is sealed."""
        engine = self._engine
        while True:
            try:
                yield from self._attempt()
                return
            except ExchangeBrokenError as broken:
                sealed = engine.recover(broken)
                self._audits = None
            except _AgainError as again:
                engine.rewind()
                sealed, self._audits = None, again.audits
            if sealed is not None:
                self._combined = self._on_sealed(sealed).values
                return
            self._tally = Tally()

    def _attempt(self) -> Iterator[Any]:
        engine = self._engine
        audits = self._audits if self._audits is not None else engine.audits() if self._training else {}
        engine.begin(self._training, self._position, audits)
        for rank in engine.audited_here():
            engine.open_turn(rank, last=False)
            self._auditing = True
            try:
                yield self._fetch(rank)
            except GeneratorExit:
                engine.broken_at = user_location()
                raise
            finally:
                self._auditing = False
            engine.close_audit(rank)
        watches = []
        if engine.watch_attributes and self._training:
            watches = [AttributeWatch(model.module) for model in engine.models]
        ranks = engine.ranks
        for rank in ranks:
            if engine.exchange.broken:
                raise ExchangeBrokenError("before the turn of another logical worker")
            engine.open_turn(rank, last=rank == ranks[-1])
            batch = self._fetch(rank)
            if batch is not NO_BATCH:
                try:
                    yield batch
                except GeneratorExit:
                    engine.broken_at = user_location()
                    raise
            self._check_watches(watches, rank)
            if batch is NO_BATCH:
                engine.turn.logical_rank = None
            else:
                engine.close_turn(rank)
        engine.watch_attributes = False
        self._combined = self._on_sealed(self._commit(self._tally)).values

    def _check_watches(self, watches: list[AttributeWatch], rank: int) -> None:
        engine = self._engine
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


def _pack_buffers(buffers: dict[int, torch.Tensor]) -> bytes:
    return codec.pack(buffers).numpy().tobytes() if buffers else b""


def _unpack_buffers(packed: bytes) -> dict[int, torch.Tensor]:
    buffers: dict[int, torch.Tensor] = codec.unpack(torch.frombuffer(bytearray(packed), dtype=torch.uint8))
    return buffers

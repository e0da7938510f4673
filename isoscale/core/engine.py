"""The engine that runs global steps on one executor: turns in, averaged gradients out, sealed by all.

When the last local turn is done it gathers the averaged gradients, worker 0's buffers and all contexts, and seals the
step; only then is any of it applied. So a step in which an executor was lost is done again by those that are left. The
engine knows no loader, file or socket; `runtime.training.step` is what the user's loop sees of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch

from isoscale.core import audit
from isoscale.core.audit import Audits, AuditSample
from isoscale.core.context import ContextSwitch
from isoscale.core.position import PositionGate
from isoscale.core.reduction.exchange import Exchange, ExchangeBrokenError
from isoscale.core.rules import Turn
from isoscale.core.seal import Seal, Sealed, short_hash
from isoscale.core.sharing import Carried, ContextChanges, Sharing
from isoscale.core.totals import Gathered, Tally, in_logical_order
from isoscale.core.tracked import TrackedModel
from isoscale.core.turn_end import TurnEnd
from isoscale.errors import AuditError

__all__ = ["Peers", "Recovery", "StepAgainError", "StepEngine", "SuspectedError"]


@dataclass(frozen=True, slots=True)
class Recovery:
    """How to go on after an exchange broke."""

    exchange: Exchange
    #: what all executors had put into the seal that this one did not leave, if another one did; None: do the step again
    vector: torch.Tensor | None


class Peers(Protocol):
    """Knows how to find the other executors again."""

    def recover(self, broken: ExchangeBrokenError) -> Recovery:
        """The exchange broke in a step: agree with those that are left how to go on."""


class SuspectedError(ExchangeBrokenError):
    """An executor computes other bits than the rest: nothing more is to be exchanged with it."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(f"an executor is suspected: {reason}")
        #: its position in the placement, and where its bits differ
        self.index = index
        self.reason = reason


class StepAgainError(Exception):
    """The step must be done again with the same executors: some turns gave different bits elsewhere."""

    def __init__(self, audits: Audits) -> None:
        self.audits = audits


@dataclass(slots=True)
class _Gathered:
    """What a step's turns gave, held until it is sealed."""

    gradients: list[tuple[TrackedModel, list[torch.Tensor]]] = field(default_factory=list)
    #: of the models among them that may leave parameters unused: by how many logical workers here each was used
    used: list[int] = field(default_factory=list)
    ready_orders: list[tuple[TrackedModel, list[int]]] = field(default_factory=list)
    buffers: dict[str, dict[int, torch.Tensor]] = field(default_factory=dict)
    #: models whose buffers travel with contexts
    riding: list[TrackedModel] = field(default_factory=list)
    #: by executor
    contexts: list[list[ContextChanges]] = field(default_factory=list)
    #: by turns to all, by executor
    given: list[Gathered] = field(default_factory=list)
    #: for the seal, if it carries messages
    message: bytes | None = None


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
        #: None where there are no other executors
        self.peers: Peers | None = None
        #: line at which an inner loop was left early; raised at the next occasion
        self.broken_at: str | None = None
        #: watch the models' attributes in the next step (costs a walk over all modules)
        self.watch_attributes = True
        #: which turns are to be run on several executors
        self.audit_sample = AuditSample()
        #: is shown the end of every training turn that counts, its gradients and random streams still in place
        self.on_turn_end: Callable[[int], None] | None = None
        #: is shown the same in steps of which the gradients are measured
        self.on_gradients: Callable[[int], None] | None = None
        #: a training step is open: whatever it has done so far, `rewind` makes everything as the step found it
        self.is_open = False
        #: held while that changes, and while it must not
        self.opening = threading.Lock()
        #: contexts are remembered though nobody else is there to do a step again with
        self.can_abandon = False
        #: what the loader of the present step carries along
        self.carried: Carried | None = None
        #: whose training turn was over last, until another one begins or the step is sealed or given up
        self._ended: int | None = None
        self._audits: Audits = {}
        self._audit_digests: dict[int, int] = {}
        self._sharing = Sharing(exchange, contexts, self.models)
        self._gathered: _Gathered | None = None
        #: in the last seal every executor said a word
        self._says_words = False

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
        self._sharing = Sharing(exchange, self.contexts, self.models)
        # gloo may write into an abandoned exchange's memory until its sockets are closed.
        before.retire([model.sync.move(exchange) for model in self.models])

    def begin(self, training: bool, position: str, audits: Audits | None = None) -> None:
        self.check_not_broken()
        self.turn.training = training
        self._ended = None
        self._audits, self._audit_digests = (audits or {}), {}
        self.contexts.start()
        self.contexts.mark(shared=self.can_abandon or not self.alone, anew=self.alone)
        if self.carried is not None:
            self.carried.mark()
        for model in self.models:
            if training:
                self.check_no_stray_backward()
                model.begin_step()
            else:
                model.begin_evaluation()
        with self.opening:
            self.is_open = training
        # Last: an exchange that is broken already must find a step that can be done again.
        self.gate.announce(position)

    def open_turn(self, logical_rank: int, *, last: bool) -> None:
        self._ended = None
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
            if self.on_turn_end is not None:
                self.on_turn_end(logical_rank)
            if self.on_gradients is not None:
                self.on_gradients(logical_rank)
            if logical_rank in self._audits:
                self._audit_digests[logical_rank] = self._gradient_digest()
            took_part = [model.close_turn(logical_rank) for model in self.models]
            if not any(took_part):
                if not self.models:
                    raise self.turn.error("the job has no model", "give it the one that is trained: job.model(model)")
                raise self.turn.error("the turn ended without backward()", "call loss.backward() in every turn")
            self._ended = logical_rank
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

    def keep_turn(self) -> TurnEnd | None:
        """Called when an exchange broke, before `recover`: the last turn that is over here, if there is one.

        Not in a step of which turns are audited: its bits are in doubt. Nor where a probe is to see all of every turn.
        """
        if self._ended is None or self._audits or self.on_turn_end is not None:
            return None
        self.contexts.leave()
        return TurnEnd(self._ended, self.contexts.end_of(self._ended), [model.end() for model in self.models])

    def put_turn(self, end: TurnEnd) -> None:
        """The turn that is open is what it was when it ended in an earlier attempt at this step; it is still open."""
        self.contexts.put_end(end.context)
        for model, one in zip(self.models, end.models, strict=True):
            model.put_end(one)

    def _gradient_digest(self) -> int:
        return short_hash("/".join(model.gradient_digest() for model in self.models))

    def finish(self, tally: Tally, *, digest: str, stop: bool, ready: bool = False, word: int | None = None) -> Sealed:
        """Exchange what the turns left, seal, and only then apply it: until the seal the step can be done again.

        `ready`: this executor can switch to the next generation. `word` is told to all, if all say one: what comes out
        of it is sealed with the step. The caller's streams are the job-wide ones from here on.
        """
        self.contexts.leave()
        self.gate.check()
        self._gathered = self._gather(tally.gathered)
        places = [(rank, e) for rank, executors in self._audits.items() for e in executors]
        mine = list(self._gathered.used)
        mine += [self._audit_digests[rank] if e == self.exchange.index else 0 for rank, e in places]
        self._says_words = word is not None
        if word is not None:
            mine += [word if e == self.exchange.index else 0 for e in range(self.exchange.placement.num_executors)]
        told = self._gathered.message
        sealed = self.seal.close(tally, digest=digest, stop=stop, ready=ready, extra=mine, message=told)
        sealed = self._with_words(sealed)
        if places:
            doubt = self._judge(dict(zip(places, sealed.extra[len(self._gathered.used) :], strict=False)))
            sealed = replace(sealed, doubt=doubt)
        return self._settle(sealed)

    def _with_words(self, sealed: Sealed) -> Sealed:
        if not self._says_words:
            return sealed
        return replace(sealed, words=sealed.extra[-self.exchange.placement.num_executors :])

    def _judge(self, digests: dict[tuple[int, int], int]) -> str:
        """Turns that were run on several executors must have given the same gradients; if not, who is wrong?

        What was odd about them though they agree, or "".
        """
        audits = self._audits
        verdict = audit.judge(audits, {rank: [digests[rank, e] for e in audits[rank]] for rank in audits})
        refereed = any(len(executors) > 2 for executors in audits.values())
        if not verdict.differing:
            return f"turns of logical workers {list(audits)} gave other bits once, and not again" if refereed else ""
        where = f"gradients of logical worker {verdict.differing[0]} differ"
        if verdict.culprit is not None:
            raise SuspectedError(verdict.culprit, where)
        if refereed or self.exchange.placement.num_executors < 3:
            raise AuditError(
                tensor=f"the gradient of logical worker {verdict.differing[0]}",
                executors=audits[verdict.differing[0]],
                remedy="one of them miscomputes, and it takes a third executor to tell which",
            )
        raise StepAgainError(audit.with_referees(audits, verdict.differing, self.exchange.placement))

    def seal_end(self, position: str, digest: str, *, stop: bool = False) -> Sealed:
        """A seal without turns: all executors stand at the same place, and hold the same bits. `stop` is what any of
        them says."""
        while True:
            try:
                self.begin(False, position)
                return self.finish(Tally(), digest=digest, stop=stop)
            except ExchangeBrokenError as broken:
                sealed = self.recover(broken)
            if sealed is not None:
                return sealed

    def recover(self, broken: ExchangeBrokenError) -> Sealed | None:
        """The exchange broke in a step. The step as others have sealed it, or None: it is to be done again."""
        if self.peers is None:
            raise broken
        _let_go_of_frames(broken)
        self._shut()
        self.turn.logical_rank = None
        self.turn.accumulating = False
        recovery = self.peers.recover(broken)
        sealed = None
        if recovery.vector is not None:
            # Whoever left that seal knew that this executor had entered it, so it holds everything.
            self.contexts.leave()
            self.seal.vector = recovery.vector
            # All were ready for a generation that is given up by now.
            sealed = self._settle(self._with_words(replace(self.seal.read(recovery.vector), all_ready=False)))
        else:
            self.rewind()
        self.use(recovery.exchange)
        return sealed

    def _shut(self) -> None:
        """From here on the step is not what `rewind` undoes."""
        self._ended = None
        with self.opening:
            self.is_open = False

    def rewind(self) -> None:
        """Everything is again as the step found it."""
        self.contexts.rewind()
        if self.carried is not None:
            self.carried.rewind()
        for model in self.models:
            model.rewind()

    def _gather(self, given: Gathered) -> _Gathered:
        """Everything that the step's turns gave, from all executors; nothing of it in force yet."""
        gathered = _Gathered()
        training = self.turn.training
        wait = None
        if not self.alone:
            message = self._sharing.message(self.carried, given, training=training)
            gathered.riding = [model for model in self.models if training and self._sharing.rides(model)]
            if self.seal.carries:
                gathered.message = message
            else:
                # On its way while buckets are.
                wait = self.exchange.start_gather_bytes(message)
        if training:
            self._gather_gradients(gathered)
            for model in self.models:
                if model not in gathered.riding:
                    gathered.buffers[model.name] = self._sharing.buffers(model)
        if wait is not None:
            self._take_in(gathered, wait())
        elif self.alone:
            gathered.given = [given]
        return gathered

    def _take_in(self, gathered: _Gathered, messages: list[bytes]) -> None:
        """What all executors have told in the step."""
        told = self._sharing.told(messages)
        gathered.contexts, gathered.given = told.contexts, told.gathered()
        for model in gathered.riding:
            here, at = self._sharing.hosts_worker_0, self.models.index(model)
            gathered.buffers[model.name] = model.buffers.fresh() if here else told.buffers(at, model.buffers.shared)
        self.seal.expect(messages)

    def _settle(self, sealed: Sealed) -> Sealed:
        """The step is sealed: what was gathered comes into force."""
        self._shut()
        gathered, self._gathered = self._gathered, None
        assert gathered is not None
        if gathered.message is not None:
            self._take_in(gathered, self.seal.messages)
        used = iter(sealed.extra)
        for model, results in gathered.gradients:
            model.publish(results, [next(used) > 0 for _ in results] if model.find_unused else None)
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
            self._sharing.adopt(changes, self.carried, here=index == self.exchange.index)
        sealed.values.gathered = in_logical_order(gathered.given)
        self.seals += 1
        self.last_vector = self.seal.vector
        return sealed

    def _gather_gradients(self, gathered: _Gathered) -> None:
        for model in self._models_of_step():
            gathered.gradients.append((model, model.sync.finish()))
            if model.find_unused:
                # Summed in the seal: nobody needs it before.
                gathered.used += map(sum, zip(*model.used.values(), strict=True))
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

    def after_backward(self) -> None:
        """Called after every `backward()` in the process."""
        if self.turn.logical_rank is None and not self.models:
            raise self.turn.error(
                "backward() outside a turn, of a model that the job does not know, trains in each process by itself",
                "give the model to job.model, and call backward() inside the inner loop over a step of job.loader",
            )
        self.check_no_stray_backward()

    def before_optimizer_step(self) -> None:
        """Called before every `optimizer.step()` in the process."""
        self.check_not_broken()
        if self.turn.logical_rank is not None:
            raise self.turn.error(
                "optimizer.step() inside a turn would use one logical worker's gradients",
                "call it after the inner loop, once per global step",
            )


def _let_go_of_frames(error: BaseException | None) -> None:
    """Frames of an error hold what they worked with, and whoever lets go of a group last joins its threads.

    gloo may have forgotten one of those, which then sleeps for half an hour: that is for `Exchange.retire` to wait for.
    """
    while error is not None and error.__traceback__ is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__

"""The batch size of a job that may change while it trains: what is declared, what is pending, and how a change is made.

A change comes from the plan, which every executor knows, or from a request that all executors had when they sealed a
step (`StepEngine.finish`): either way all know it when that step is committed, and a snapshot of that step holds it as
pending. It is made at `next()` of the loader that declares the sizes: the rule runs on every executor, a seal without
turns shows whether it raised anywhere, and then all have the new size or none has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from isoscale.batches import BatchChange, due
from isoscale.core.reduction.exchange import ExchangeBrokenError
from isoscale.core.seal import Sealed
from isoscale.errors import UserError
from isoscale.runtime.training.batch_rules import BatchRule, factor_of, scale_rates, step_schedulers
from isoscale.runtime.training.snapshot import take_back, take_snapshot

if TYPE_CHECKING:
    from isoscale.runtime.training.loader import Loader, Place
    from isoscale.runtime.training.loop import TrainingLoop

__all__ = ["LiveBatches", "Rebatched", "Wish"]


class Wish(Protocol):
    """A request for another size; those with higher ids count."""

    @property
    def id(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def reason(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebatched:
    """What became of a change."""

    step: int
    old: int
    new: int
    reason: str
    #: of the request; 0 for a plan's
    request: int = 0
    factor: float | None = None
    #: the factor comes from a measurement
    measured: bool = False
    learning_rates: tuple[float, ...] = ()
    #: why it was undone; "" if it was not
    error: str = ""
    #: nothing has changed yet: the pass ends for its sake, and it is made in the next one
    awaited: bool = False


@dataclass(frozen=True, slots=True)
class _Pending:
    size: int
    reason: str
    request: int = 0
    #: recorded, and not to be measured again
    factor: float | None = None
    #: False: a pass ends for its sake, as is recorded, and it is not made
    made: bool = True


class LiveBatches:
    def __init__(self, loop: TrainingLoop, loader: Loader, sizes: tuple[int, ...], size: int) -> None:
        self.loader, self.sizes, self.size = loader, sizes, size
        self.rule: BatchRule | None = None
        self._loop = loop
        #: changes that were made, oldest first
        self.history: list[BatchChange] = []
        self._pending: _Pending | None = None
        #: entries of the plan up to so many steps have come into force, or were overtaken
        self._considered = -1
        #: what an earlier life of the job did before it came to `reached` steps, which is done alike
        self._recorded: tuple[BatchChange, ...] = ()
        self._reached = 0
        #: the last request that all agreed on, and the one that was offered in the seal that is under way
        self._agreed = 0
        self._offered: Wish | None = None
        self._has_begun = False

    # ---- what is to be ----

    def follow(self, recorded: Sequence[BatchChange], reached: int) -> None:
        """Everybody was lost: up to `reached` steps the job does what it did."""
        self._recorded, self._reached = tuple(recorded), reached

    def check_plan(self) -> None:
        """Before the first step. Raises UserError if a planned change could not be made."""
        plan = self._loop.spec.batch_plan
        for entry in plan:
            if entry.size not in self.sizes:
                raise UserError(
                    field="--batch-plan",
                    value=f"{entry.step}:{entry.size}",
                    problem=f"the script declares batch_sizes={self.sizes}",
                    remedy="give one of them, or declare it",
                )
        if plan and self.rule is None:
            raise UserError(
                field="--batch-plan",
                value=f"{plan[0].step}:{plan[0].size}",
                problem="the script does not say what becomes of the learning rate",
                remedy="give job.loader(batch_rule=...) or call job.on_batch_change(f)",
            )
        unknown = any(entry.factor is None for entry in plan if entry.made)
        if self.rule == "adascale" and not self._loop.spec.measure_noise and unknown:
            raise UserError(
                field="batch_rule",
                value="adascale",
                problem="needs the noise scale, which is not measured",
                remedy="give --measure-noise K, or another rule",
            )

    def offer(self) -> int:
        """About to seal a training step: the id of the request that this executor knows; 0 for none."""
        loop = self._loop
        wish = loop.elastic.wish(loop) if loop.elastic is not None and loop.step + 1 >= self._reached else None
        self._offered = wish if wish is not None and wish.id > self._agreed else None
        return 0 if self._offered is None else self._offered.id

    def sealed(self, sealed: Sealed) -> None:
        """The step is committed: what all offered is pending."""
        wish, self._offered = self._offered, None
        if wish is None or any(word != wish.id for word in sealed.words):
            return
        self._agreed = wish.id
        self._pending = _Pending(wish.size, wish.reason, wish.id)

    # ---- at next() of the loader ----

    def begin(self) -> None:
        """A pass begins."""
        if not self._has_begun:
            self._has_begun = True
            self.check_plan()
            if self._loop.on_batches is not None:
                rule = self.rule if isinstance(self.rule, str) else "own" if self.rule is not None else ""
                self._loop.on_batches(self.sizes, self.size, rule)

    def arrive(self) -> bool:
        """Make what is due. False if the pass ends before a step of the new size, which comes with the next pass."""
        self._look_up()
        pending = self._pending
        if pending is None:
            return True
        if pending.size == self.size:
            self._done(pending, factor=1.0)
            return True
        error = "" if pending.size in self.sizes else f"the script declares batch_sizes={self.sizes}"
        if not error and self.rule is None:
            error = "the script says nothing of the learning rate: no batch_rule, no job.on_batch_change(f)"
        if error:
            self._done(pending, error=error)
            return True
        if self.loader.try_size(pending.size):
            if pending.made:
                self._make(pending)
            else:
                self.loader.keep_size(self.size)
                self._pending = None
            return True
        if self.loader.index:
            self._tell(replace(self._rebatched(pending), awaited=True))
            return False
        self.loader.keep_size(self.size)
        self._done(pending, error="a whole pass has not enough samples for a batch of this size")
        return True

    def _look_up(self) -> None:
        loop, step = self._loop, self._loop.step
        recorded = {entry.step: entry for entry in self._recorded}
        later = (e for e in loop.spec.batch_plan if e.step >= self._reached and not _is_made(recorded.get(e.step)))
        entry = due(sorted([*self._recorded, *later], key=lambda e: e.step), self._considered, step)
        self._considered = step
        if entry is not None and not entry.made and self._pending is not None and step >= self._reached:
            entry = None  # the earlier life came no further: this one may make it
        elif entry is not None:
            self._overtake()
            self._pending = _Pending(entry.size, "plan", 0, entry.factor, entry.made)
        elif self._pending is not None and step < self._reached and step not in recorded:
            self._pending = None  # it was tried, and undone

    def _overtake(self) -> None:
        if self._pending is not None and self._pending.request:
            self._tell(replace(self._rebatched(self._pending), error="overtaken by the plan"))

    def _rebatched(self, one: _Pending) -> Rebatched:
        step = self._loop.step
        return Rebatched(step=step, old=self.size, new=one.size, reason=one.reason, request=one.request)

    def _make(self, pending: _Pending) -> None:
        loop, old = self._loop, self.size
        factor, undo, error = self._run_rule(pending)
        where = f"{self.loader.name}, batch size {old} to {pending.size}"
        loop.engine.carried = self.loader.batches
        sealed = loop.engine.seal_end(loop.position(where, training=False), "", stop=bool(error))
        loop.committed_evaluation(sealed)
        if sealed.stop:
            undo()
            self.loader.keep_size(old)
            self._done(pending, error=self._told(error))
            return
        self.loader.take_size(pending.size)
        self.size = pending.size
        self._warn_of_schedulers()
        self._done(pending, old=old, factor=factor)

    def _run_rule(self, pending: _Pending) -> tuple[float | None, Callable[[], None], str]:
        """The factor, what takes it back, and why it raised."""
        loop, rule = self._loop, self.rule
        assert rule is not None
        if not callable(rule):
            try:
                factor = pending.factor
                if factor is None:
                    noise = loop.noise.scale.value if loop.noise is not None else None
                    factor = factor_of(rule, self.size, pending.size, num_workers=loop.spec.workers, noise_scale=noise)
                return factor, scale_rates(loop.state.kept.values(), factor), ""
            except (UserError, ValueError) as error:
                return None, lambda: None, str(error)
        before = take_snapshot(loop, self.loader, copy=True)
        undo = partial(take_back, loop, before)
        try:
            rule(self.size, pending.size)
        except Exception as error:
            return None, undo, f"{type(error).__name__}: {error}"
        return None, undo, ""

    def _told(self, error: str) -> str:
        """Why it raised, from whoever knows."""
        try:
            texts = self._loop.engine.exchange.gather_text(error[:500])
        except ExchangeBrokenError:  # the next step will find that out
            texts = [error]
        return next((text for text in texts if text), "the rule raised on an executor that is gone")

    def _warn_of_schedulers(self) -> None:
        loop = self._loop
        names = step_schedulers(loop.state.kept.items(), loop.step, loop.epoch)
        if names:
            message = f"{', '.join(names)}: its length is in steps, which hold another number of samples from now on"
            loop.tell(partial(loop.sink.warned, message=f"batch size {self.size}: {message}"))

    def _done(self, pending: _Pending, *, old: int = 0, factor: float | None = None, error: str = "") -> None:
        self._pending = None
        step, old = self._loop.step, old or self.size
        measured = self.rule == "adascale" and not error and pending.size != old
        if pending.size != old and not error:
            self.history.append(BatchChange(step, pending.size, factor if measured else None))
        self._tell(
            Rebatched(
                step=step,
                old=old,
                new=pending.size,
                reason=pending.reason,
                request=pending.request,
                factor=factor,
                measured=measured,
                learning_rates=tuple(self._loop.state.learning_rates()),
                error=error,
            )
        )

    def _tell(self, one: Rebatched) -> None:
        self._loop.tell(partial(self._loop.sink.rebatched, one))

    def total_steps(self, place: Place) -> int:
        """How many steps there will be if the size stays what it is: done, left in this pass, and in passes to come."""
        loop, per_pass = self._loop, self.loader.steps_per_pass()
        if not per_pass or not loop.horizon.num_epochs:
            return loop.horizon.total_steps(place.of)
        to_come = max(0, loop.horizon.end_epoch - loop.epoch - 1)
        return loop.horizon.nearest(loop.step + max(0, place.of - place.batch - 1) + to_come * per_pass)

    # ---- whole state, for checkpoints and newcomers ----

    def to_state(self) -> dict[str, Any]:
        one = self._pending
        return {
            "size": self.size,
            "history": [_entry(change) for change in self.history],
            "pending": None if one is None else [one.size, one.reason, one.request, one.factor, one.made],
            "considered": self._considered,
            "agreed": self._agreed,
            "recorded": [_entry(change) for change in self._recorded],
            "reached": self._reached,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self.size = int(state["size"])
        self.history = [BatchChange(*one) for one in state["history"]]
        self._pending = None if state["pending"] is None else _Pending(*state["pending"])
        self._considered, self._agreed = int(state["considered"]), int(state["agreed"])
        if int(state["reached"]) > self._reached:  # a coordinator may know of more than a checkpoint
            self.follow([BatchChange(*one) for one in state["recorded"]], int(state["reached"]))


def _entry(change: BatchChange) -> list[int | float | None]:
    return [change.step, change.size, change.factor, change.made]


def _is_made(change: BatchChange | None) -> bool:
    return change is not None and change.made

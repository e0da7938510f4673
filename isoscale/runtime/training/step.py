"""One global step as the user's loop sees it.

`Step` hands out the turns of the logical workers that live here, and then the values of all. After the inner loop
`.grad` holds the average over all N logical workers. If an executor is lost before the step is sealed, turns appear
again, those of adopted logical workers among them; but not the last one that was over here, which is kept
(`core.turn_end`) if its logical worker stays. What a turn and a commit are is `core.engine`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from isoscale.core.audit import Audits
from isoscale.core.engine import StepAgainError, StepEngine
from isoscale.core.reduction.exchange import ExchangeBrokenError
from isoscale.core.rules import user_location
from isoscale.core.seal import Sealed
from isoscale.core.sharing import Carried
from isoscale.core.totals import Combined, Tally, Total
from isoscale.core.turn_end import TurnEnd
from isoscale.core.unkept import AttributeWatch

__all__ = ["NO_BATCH", "Step"]


class _NoBatch:
    """What a fetch returns for a logical worker that has no batch left in an evaluation step."""


NO_BATCH = _NoBatch()


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
        committed: int = 0,
        index: int = 0,
        carried: Carried | None = None,
        keeps_turns: bool = True,
    ) -> None:
        """`committed` are the steps before this one, `index` those of the present pass; `carried` its loader's.

        `keeps_turns`: what a turn leaves is what the engine and the tally know of.
        """
        self._engine = engine
        self._position = position
        self._committed = committed
        self._index = index
        self._carried = carried
        self._fetch = fetch
        self._commit = commit
        self._on_sealed = on_sealed
        self._training = training
        self._tally = Tally()
        self._keeps_turns = keeps_turns
        #: by logical rank, turns that need not run again in the next attempt
        self._kept: dict[int, tuple[TurnEnd, Tally]] = {}
        #: how many did not run again in the present one
        self.num_kept = 0
        self._iterated = False
        #: the turn that runs is another executor's, and counts only there
        self._auditing = False
        self._audits: Audits | None = None
        self._combined: Combined | None = None

    @property
    def complete(self) -> bool:
        return self._combined is not None

    @property
    def index(self) -> int:
        """Which step of the present pass over the loader it is, from 0; also where an executor joined in mid-epoch."""
        return self._index

    @property
    def logical_rank(self) -> int:
        """Whose turn it is; known inside the inner loop only."""
        return self._rank("step.logical_rank")

    @property
    def totals(self) -> dict[str, Total]:
        """Sums over all logical workers; known after the inner loop."""
        return self._after().sums

    @property
    def means(self) -> dict[str, float]:
        """Means of what was logged over all logical workers; known after the inner loop."""
        return self._after().means

    @property
    def gathered(self) -> dict[str, list[Any]]:
        """What turns gave with `step.gather`, in logical order; known after the inner loop."""
        return self._after().gathered

    def log(self, **values: Any) -> None:
        """Report values of this turn; the step's value is the float64 mean over logical workers."""
        rank = self._rank("step.log()")
        if not self._auditing:
            self._tally.log(rank, values)

    def sum(self, **values: Any) -> None:
        """Add integers, floats or tensors of this turn into `step.totals` and `loader.totals`."""
        rank = self._rank("step.sum()")
        if not self._auditing:
            self._tally.sum(rank, values)

    def gather(self, **values: Any) -> None:
        """Give something of this turn to all: tensors, numbers, strings, or lists and dicts of them, of any size.

        `step.gathered[name]` is, after the inner loop, the list of what was given, in logical order.
        """
        rank = self._rank("step.gather()")
        if not self._auditing:
            self._tally.gather(rank, values)

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        """Forward and backward inside stay local to the turn, as under DDP's `no_sync`."""
        self._rank("step.accumulate()")
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
                self._kept.clear()
                return
            except ExchangeBrokenError as broken:
                self._keep_turn()
                sealed = engine.recover(broken)
                self._audits = None
            except StepAgainError as again:
                self._kept.clear()
                engine.rewind()
                sealed, self._audits = None, again.audits
            if sealed is not None:
                self._kept.clear()
                self._combined = self._on_sealed(sealed).values
                return
            self._tally = Tally()

    def _keep_turn(self) -> None:
        """An exchange broke: the last turn that is over need not run again, if its logical worker stays here."""
        end = self._engine.keep_turn() if self._keeps_turns else None
        if end is not None:
            self._kept[end.logical_rank] = end, self._tally.of(end.logical_rank)

    def _attempt(self) -> Iterator[Any]:
        engine = self._engine
        audits = self._audits
        if self._carried is not None:
            engine.carried = self._carried  # a loader may have been iterated since this step was handed out
        if audits is None and self._training:
            audits = engine.audit_sample.of(engine.exchange.placement, self._committed)
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
        self._kept, self.num_kept = {rank: kept for rank, kept in self._kept.items() if rank in ranks}, 0
        for rank in ranks:
            if engine.exchange.broken:
                raise ExchangeBrokenError("before the turn of another logical worker")
            engine.open_turn(rank, last=rank == ranks[-1])
            batch = self._fetch(rank)  # also if nobody gets it: the loader goes on as ever
            if not self._put_turn(rank) and batch is not NO_BATCH:
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

    def _put_turn(self, rank: int) -> bool:
        """If the turn that is open was kept, it is over."""
        if rank not in self._kept:
            return False
        # Out of hand: gradients of turns that are over again need no memory.
        end, tally = self._kept.pop(rank)
        if not end.is_whole:
            return False
        self._engine.put_turn(end)
        self._tally.add(tally)
        self.num_kept += 1
        return True

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
            raise self._engine.turn.error(f"{call} outside a turn", "use it inside the inner loop over the step")
        return rank

    def _after(self) -> Combined:
        if self._combined is None:
            raise self._engine.turn.error(
                "totals are known only when all logical workers have had their turn", "read them after the inner loop"
            )
        return self._combined

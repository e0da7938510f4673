"""An executor's side of the rescale protocol: what it does when it is told to prepare, switch, recover or leave.

Orders come in on the connection's thread and are only written down there; groups form on threads of their
own. The training thread acts on them at two kinds of places: at `next()` of a training loader (`arrive`, and
for newcomers `hold` before it), and where an exchange has broken (`recover`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from isoscale.backends.local import restore_priority
from isoscale.clock import Instant
from isoscale.core.audit import chosen_audits
from isoscale.core.engine import Recovery
from isoscale.core.reduction.exchange import Exchange, ExchangeBrokenError
from isoscale.errors import ExecutorLostError
from isoscale.protocol import messages as m
from isoscale.runtime.control.executor_link import Link
from isoscale.runtime.executor.checkpoint_writer import CheckpointWriter
from isoscale.runtime.executor.resync import FellBehindError, agree
from isoscale.runtime.executor.state_transfer import Handover
from isoscale.runtime.training.loader import Loader
from isoscale.runtime.training.loop import TrainingLoop
from isoscale.runtime.training.snapshot import epoch_of, is_place_of, load_snapshot
from isoscale.runtime.training.speed import Pace
from isoscale.runtime.transport import groups
from isoscale.types import Settings

__all__ = ["Leaving", "Member"]

Result = TypeVar("Result")

#: a coordinator whose connection broke comes again within this, if it is alive
_RETURN_S = 5.0


class Leaving(BaseException):
    """Ends the training function of an executor that is not needed any more; scripts that catch errors let it pass."""


@dataclass(slots=True)
class _Prepared:
    """The next generation, as far as it has been formed here."""

    order: m.Prepare
    exchange: Exchange | None = None
    #: a group of its own for the state, where nobody who has it stays
    handover: Any = None


class Member:
    def __init__(self, executor: int, settings: Settings, host: str) -> None:
        """`host` is the address under which the other executors reach this one."""
        self.executor = executor
        self.settings = settings
        self.host = host
        self.pace = Pace()
        self.link: Link
        self.writer: CheckpointWriter
        self.hello: m.Hello | None = None
        self.generation = 0
        self.members: tuple[int, ...] = ()
        self.shares: tuple[int, ...] = ()
        #: of the coordinator
        self.term = 0
        #: warm, approaching, held, member, leaving or finished
        self.state = "warm"
        self.step = 0
        self._orders = threading.Condition()
        self._begin: m.Begin | m.Approach | None = None
        self._prepared: _Prepared | None = None
        self._switch: m.Switch | None = None
        self._recover: m.Recover | None = None
        self._leave = ""
        self._save_result = self._dismissed = False
        #: whoever waits for the end of the job shall not any more
        self._goes_on = False
        self._waiting_broken = False
        self._highest = 0
        self._hold_at: int | None = None
        #: the job's state, received but not loaded yet
        self._staged: dict[str, Any] | None = None
        self._landing: Exchange | None = None
        self._exchange: Exchange | None = None
        self._reported = 0
        self._newest_step = 0
        self._handover = Handover()
        self._generation_step = 0
        self._loop: TrainingLoop | None = None
        #: what was reported at the end of the training function
        self.finished: m.Finished | None = None
        #: it was told to go, and why
        self.noticed = ""

    # ---- on the connection's thread ----

    def on_message(self, message: m.FromCoordinator) -> None:
        with self._orders:
            match message:
                case m.Begin() | m.Approach():
                    self._begin = message
                case m.Prepare():
                    self._on_prepare(message)
                case m.Switch():
                    if self._prepared is not None and message.generation == self._prepared.order.generation:
                        self._switch = message
                case m.Recover():
                    self._on_recover(message)
                case m.Leave():
                    self._leave = message.reason
                    # Nobody may ever come to a generation that has not sealed a step.
                    waits = self.state == "member" and (self._waiting_broken or self._reported != self.generation)
                    groups.break_off(self._exchange if waits else None)
                    self._drop_prepared()
                case m.TakeCheckpoint():
                    self.writer.ask(message.id, final=message.final)
                case m.GoOn():
                    self._goes_on = True
                case m.Welcome():
                    # A successor knows nothing of an end that was asked of the coordinator before it.
                    self._goes_on |= message.term > self.term
                    self.term = max(self.term, message.term)
                case m.SaveResult():
                    self._save_result = True
                case m.Dismiss():
                    self._dismissed = True
            self._orders.notify_all()

    def on_refused(self, reason: str) -> None:
        """The others have gone on without this one, which was taken for dead: end, wherever it is."""
        with self._orders:
            self._leave = reason
            self._drop_prepared()
            groups.break_off(self._exchange)
            self._orders.notify_all()

    def rejoin(self) -> m.Rejoin | None:
        """For a coordinator that has just come; None as long as this executor is not set up."""
        return (
            None
            if self.hello is None
            else m.Rejoin(
                hello=self.hello,
                state=self.state,
                generation=self.generation,
                members=self.members,
                shares=self.shares,
                step=self.step,
                highest=self._highest,
                waiting=self._waiting_broken,
                sealed=self._reported == self.generation,
                finished=self.finished,
                noticed=self.noticed,
            )
        )

    def _on_prepare(self, order: m.Prepare) -> None:
        if order.generation <= self._highest:
            return
        self._highest = order.generation
        self._drop_prepared()
        self._prepared = _Prepared(order)
        threading.Thread(target=self._form, args=(self._prepared,), name="form group", daemon=True).start()

    def _on_recover(self, order: m.Recover) -> None:
        if order.generation <= self.generation:
            return
        self._highest = max(self._highest, order.generation)
        self._recover = order
        self._drop_prepared()
        groups.break_off(self._exchange)

    def _drop_prepared(self) -> None:
        prepared, self._prepared, self._switch = self._prepared, None, None
        if prepared is not None:
            groups.break_off(prepared.exchange)
            if prepared.handover is not None:
                groups.break_off_handover(prepared.handover, prepared.order)

    def _form(self, prepared: _Prepared) -> None:
        """On a thread of its own: the group of the next generation, beside training."""
        order = prepared.order
        try:
            if order.index >= 0:
                prepared.exchange = self._connect(order)
            if order.sender >= 0 and (order.index in order.senders or order.sender == self.executor):
                prepared.handover = groups.connect_handover(order, self.host)
        except ExchangeBrokenError as error:
            if prepared is self._prepared:
                self._cannot_form(order, error)
            return
        with self._orders:
            if prepared is not self._prepared:
                groups.break_off(prepared.exchange)
                if prepared.handover is not None:
                    groups.break_off_handover(prepared.handover, order)
                return
            self._orders.notify_all()
        if order.index >= 0 or order.sender == self.executor:
            self.link.send(m.Prepared(generation=order.generation))

    def _cannot_form(self, order: m.Prepare | m.Recover, error: ExchangeBrokenError) -> None:
        apart = groups.unreachable(order)
        self.link.send(m.Broken(generation=order.generation, reason=str(error), unreachable=apart))

    def _connect(self, order: m.Prepare | m.Recover | m.Begin) -> Exchange:
        return groups.connect(order, self.host)

    # ---- on the training thread: orders ----

    def wait_to_begin(self) -> m.Begin | m.Approach:
        """A set-up executor waits until it is needed."""

        self._wait(lambda: True if self._begin is not None else None)
        assert self._begin is not None
        return self._begin

    def begin(self, order: m.Begin) -> Exchange:
        """A member of the first generation, with the others."""
        self._highest = max(self._highest, order.generation)
        if order.checkpoint:
            from isoscale.runtime.checkpoint.state_file import read

            self._staged = read(Path(order.checkpoint))
        try:
            self._exchange = self._connect(order)
        except ExchangeBrokenError:
            # Somebody is gone already: the first step will find that out, and go on with the others.
            self._exchange = groups.without_group(order)
        self._enter(order, self._exchange)
        return self._exchange

    def attach(self, loop: TrainingLoop) -> None:
        """Take charge of a job's joins, switches and recoveries."""
        self._loop = loop
        loop.elastic = self
        loop.pace = self.pace
        loop.engine.on_broken = self.recover
        loop.engine.ready = self._is_ready
        loop.engine.on_suspect = self._suspect
        loop.engine.on_doubt = lambda reason: self.link.send(m.Warned(message=reason))
        if self.settings.audit_turns > 0:
            loop.engine.audits = lambda: chosen_audits(
                loop.engine.exchange.placement, loop.spec.seed, loop.step, self.settings.audit_turns
            )

    def _loop_of(self) -> TrainingLoop:
        assert self._loop is not None
        return self._loop

    def _suspect(self, index: int, reason: str) -> None:
        self.link.send(m.Suspect(executor=self.members[index], reason=reason))

    def _is_ready(self) -> bool:
        # A plan's step may be over: an earlier coordinator ordered that change, and its successor does not know.
        switch = self._switch
        return switch is not None and (switch.at_step is None or self._loop_of().step > switch.at_step)

    def _wait(self, ready: Callable[[], Result | None]) -> Result:
        """Until `ready` gives something. Ends if this executor is to leave, or if nobody is there to tell."""
        with self._orders:
            while True:
                found = ready()
                if found is not None:
                    return found
                if self._leave:
                    raise Leaving(self._leave)
                if self.link.lost_for() > self.settings.orphan_s:
                    raise ExecutorLostError(
                        executor=self.executor,
                        pid=0,
                        generation=self.generation,
                        reason=f"no coordinator for {self.settings.orphan_s:.0f} s while it was needed",
                    )
                self._orders.wait(0.5)

    def _enter(self, order: m.Begin | m.Prepare | m.Recover, exchange: Exchange) -> None:
        with self._orders:
            self.generation, self.members, self.shares = order.generation, order.members, order.shares
            self._hold_at, self._exchange, self.state = order.hold_at, exchange, "member"
            self._prepared = self._switch = None
            self._waiting_broken = False
            if self._recover is not None and self._recover.generation <= order.generation:
                self._recover = None
        self._generation_step = self._loop.step if self._loop is not None else 0
        if self._loop is not None:
            # Not at once: whoever does a step again has passed the place for it.
            self._loop.audit_at = self._generation_step + 1
        self.pace.restart()

    # ---- newcomers ----

    def hold(self, loop: TrainingLoop) -> int | None:
        """Wait for the job's state, if this executor comes later; the epoch to go on in."""
        if self.state == "approaching":
            self.state = "held"
            self.link.send(m.Held())
            while self._staged is None:
                self._receive_state()
        return epoch_of(self._staged) if self._staged is not None else None

    def _receive_state(self) -> None:
        def formed() -> _Prepared | None:
            prepared = self._prepared
            if prepared is None or prepared.exchange is None:
                return None
            needs_handover = prepared.order.senders.get(prepared.order.index) == -1
            return prepared if not needs_handover or prepared.handover is not None else None

        prepared = self._wait(formed)
        order = prepared.order
        source = order.senders[order.index]
        group = prepared.handover if source < 0 else prepared.exchange.group  # type: ignore[union-attr]
        try:
            self._staged = self._handover.receive(group, max(source, 0))
        except ExchangeBrokenError:
            with self._orders:
                if self._prepared is prepared:
                    self._prepared = None
            return
        self.link.send(m.Received(generation=order.generation))
        self._landing = prepared.exchange
        self._enter(order, prepared.exchange)  # type: ignore[arg-type]
        self._generation_step = int(self._staged["step"])
        self._loop_of().audit_at = self._generation_step + 1

    def _land(self, loop: TrainingLoop, loader: Loader) -> bool:
        """At a training loader with the state in hand: load it, if this is the place it was taken at."""
        assert self._staged is not None
        if not is_place_of(self._staged, loader):
            loader.end_pass()
            return False
        load_snapshot(loop, loader, self._staged)
        self._staged = None
        loop.approaching = False
        if self._landing is not None:
            restore_priority()
            loop.engine.use(self._landing)
            self._landing = None
            self.link.send(m.Landed(generation=self.generation))
        return True

    # ---- between steps ----

    def arrive(self, loop: TrainingLoop, loader: Loader) -> None:
        self.step = loop.step
        if self.state == "approaching":
            self.hold(loop)  # a script without job.epochs
        if self._staged is not None and not self._land(loop, loader):
            return
        if loop.at_end():
            return
        if self._prepared is not None and self._sends(self._prepared.order):
            self._handover.make_room(loop, loader)
        while True:
            self._goes_on = False
            if self.writer.arrive(loop, loader, self.generation):
                self._hold_for_end()
            if self._recover is not None:
                loop.engine.use(self._find_others().exchange)
            elif self._leave:
                raise Leaving(self._leave)
            elif loop.engine.switch_agreed:
                self._go_over(loop, loader, Instant(), 0.0)
            elif self._hold_at is not None and loop.step >= self._hold_at:
                self._hold_for_plan(loop, loader)
            else:
                return

    def _hold_for_end(self) -> None:
        """A last checkpoint is written. Wait to be ended, or to be told to go on; the others wait for this executor in
        the next exchange. Where nobody is there to end the job it goes on."""

        def released() -> bool | None:
            alone = self.link.lost_for() > _RETURN_S or self.writer.silent_for() > self.settings.orphan_s
            return True if self._goes_on or self._recover is not None or alone else None

        self.pace.outside()
        self._wait(released)

    def _sends(self, order: m.Prepare) -> bool:
        """Will this executor hand the state to somebody?"""
        return order.sender == self.executor or (order.index >= 0 and order.index in order.senders.values())

    def _hold_for_plan(self, loop: TrainingLoop, loader: Loader) -> None:
        left = Instant()
        self.pace.outside()
        if self._reported != self.generation:
            # Nobody seals a step before the plan's change, which waits for this generation's first seal: this is one.
            try:
                loop.engine.exchange.gather_text("")
            except ExchangeBrokenError:
                loop.engine.use(self.recover().exchange)
                return
            self.sealed(loop)
        # Any switch will do, also one that was meant for the next seal: all stand at the same step.
        self._wait(
            lambda: True if self._recover is not None or self._switch is not None or self.writer.wants(loop) else None
        )
        if self._recover is None and self._switch is not None:
            self._go_over(loop, loader, left, left.seconds_ago())

    def _go_over(self, loop: TrainingLoop, loader: Loader, left: Instant, waited_s: float) -> None:
        """Into the generation that was prepared: hand the state to newcomers, and go on; or leave."""
        with self._orders:
            prepared = self._prepared
            loop.engine.switch_agreed = False
            if prepared is None:
                return
        order = prepared.order
        mine = [i for i, source in order.senders.items() if source == order.index]
        if order.index < 0:
            self._hand_over_and_leave(loop, loader, prepared)
            return
        assert prepared.exchange is not None
        if mine:
            self._handover.send(prepared.exchange.group, mine, loop, loader)  # type: ignore[attr-defined]
        self._enter(order, prepared.exchange)
        loop.engine.use(prepared.exchange)
        self.link.send(
            m.Switched(
                generation=order.generation,
                step=loop.step,
                left_at=left.unix,
                started_at=left.unix_now(),
                waited_s=waited_s,
            )
        )

    def _hand_over_and_leave(self, loop: TrainingLoop, loader: Loader, prepared: _Prepared) -> None:
        """One who leaves stays, with the state, until the others have sealed a step without it."""
        self.state = "leaving"
        if prepared.handover is not None:
            self._handover.send(prepared.handover, range(1, len(prepared.order.senders) + 1), loop, loader)
        self._wait(lambda: self._recover)  # or Leaving
        self.state = "member"

    def sealed(self, loop: TrainingLoop) -> None:
        """After every seal; the first one of a generation is news."""
        self.step = loop.step
        if self._reported != self.generation:
            self._reported = self.generation
            self.link.send(
                m.Sealed(
                    generation=self.generation, step=self._generation_step, members=self.members, shares=self.shares
                )
            )

    # ---- failures ----

    def recover(self) -> Recovery:
        """The exchange broke in a step: with whom, and how, to go on."""
        with self._orders:
            self._waiting_broken = True
        if self._recover is None:
            self.link.send(m.Broken(generation=self.generation, reason="a peer is gone or cannot be reached"))
        return self._find_others()

    def _find_others(self) -> Recovery:
        left = Instant()
        while True:
            order = self._wait(lambda: self._recover)
            self._waiting_broken = True
            try:
                exchange = self._connect_unless_newer(order)
                if exchange is None:
                    continue
                with self._orders:
                    self._exchange = exchange
                    newer = self._recover is not order
                if newer:
                    groups.break_off(exchange)
                    continue
                vector = self._agree(exchange)
            except ExchangeBrokenError as error:
                with self._orders:
                    if self._recover is order:
                        self._recover = None
                self.generation = order.generation
                self._cannot_form(order, error)
                continue
            self._enter(order, exchange)
            self._loop_of().audit_at = self._newest_step + 1
            self.link.send(
                m.Switched(
                    generation=order.generation,
                    step=self.step,
                    left_at=left.unix,
                    started_at=left.unix_now(),
                    waited_s=0.0,
                )
            )
            return Recovery(exchange, vector)

    def _connect_unless_newer(self, order: m.Recover) -> Exchange | None:
        """The group of a recovery; None when a newer order came first: one of those who were to form it has died, too,
        and whoever waits for a group with it waits for long."""
        formed: Future[Exchange] = Future()

        def form() -> None:
            try:
                formed.set_result(self._connect(order))
            except Exception as error:
                formed.set_exception(error)
            with self._orders:
                self._orders.notify_all()

        threading.Thread(target=form, name="form group", daemon=True).start()
        self._wait(lambda: True if formed.done() or self._recover is not order else None)
        if formed.done():
            return formed.result()
        formed.add_done_callback(lambda one: None if one.exception() else groups.break_off(one.result()))
        return None

    def _agree(self, exchange: Exchange) -> torch.Tensor | None:
        loop = self._loop_of()
        try:
            agreed = agree(exchange, loop.engine, loop.step)
        except FellBehindError:
            raise Leaving("the others have gone on") from None
        self._newest_step = agreed.newest_step
        return agreed.vector

    # ---- the end ----

    def wait_dismissed(self, save: Callable[[], None]) -> None:
        """The training function has returned. Stay until the result is safe; write it if asked to."""
        self.state = "finished"

        def told() -> bool | None:
            return True if self._save_result or self._dismissed or self._leave else None

        while not (self._dismissed or self._leave):
            self._wait(told)
            if self._save_result:
                self._save_result = False
                save()

"""An executor's side of the rescale protocol: what it does when it is told to prepare, switch, recover or leave.

`Member` is what the process, the connection and the training API see of it. Orders come in on the connection's thread;
the training thread acts on them at two kinds of places: at `next()` of a training loader (`arrive`, and for newcomers
`hold` before it), and where an exchange has broken (`Recoveries.recover`). What they mean is decided by
`runtime.executor.state_machine`, which is reached through `runtime.executor.orders` only.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from isoscale.backends.system import restore_session
from isoscale.clock import Instant
from isoscale.core.audit import AuditSample
from isoscale.core.reduction.exchange import Exchange, ExchangeBrokenError
from isoscale.core.seal import Sealed
from isoscale.protocol import messages as m
from isoscale.runtime.checkpoint.state_file import read
from isoscale.runtime.control.executor_link import Link
from isoscale.runtime.executor.abandonment import Abandonment
from isoscale.runtime.executor.checkpoint_writer import CheckpointWriter
from isoscale.runtime.executor.generations import Phase
from isoscale.runtime.executor.instructions import GoOver, HoldForPlan, Meet, Quit, Train
from isoscale.runtime.executor.newcomer import Newcomer
from isoscale.runtime.executor.orders import Leaving, Orders
from isoscale.runtime.executor.recovery import Recoveries
from isoscale.runtime.executor.state_machine import MemberState
from isoscale.runtime.executor.switching import Switching
from isoscale.runtime.training.loader import Loader
from isoscale.runtime.training.loop import TrainingLoop
from isoscale.runtime.training.speed import Pace
from isoscale.runtime.transport import groups
from isoscale.types import Settings

__all__ = ["Leaving", "Member"]

#: a coordinator whose connection broke comes again within this, if it is alive
_RETURN_S = 5.0


class Member:
    def __init__(self, executor: int, settings: Settings, host: str, term: int = 0) -> None:
        """`host` is the address under which the other executors reach this one, `term` the coordinator's."""
        self.executor = executor
        self.settings = settings
        self.pace = Pace()
        self.writer: CheckpointWriter
        #: of a checkpoint that the coordinator speaks of
        self.read_checkpoint: Callable[[str], dict[str, object]] = lambda path: read(Path(path))
        self.hello: m.Hello | None = None
        #: it was told to go, and why; set by a signal's handler, which must not wait for a lock
        self.noticed = ""
        self.orders = Orders(MemberState(executor, term), settings, host)
        self.recoveries = Recoveries(self.orders, self.pace)
        self.newcomer = Newcomer(self.orders, self.pace)
        self.switching = Switching(self.orders, self.recoveries, self.pace)
        self.abandonment = Abandonment(lambda: self.generation, lambda: self.writer)

    @property
    def link(self) -> Link:
        return self.orders.link

    @link.setter
    def link(self, link: Link) -> None:
        self.orders.link = link

    @property
    def state(self) -> Phase:
        return self.orders.ask(lambda state: state.phase)

    @property
    def step(self) -> int:
        return self.orders.ask(lambda state: state.step)

    @property
    def generation(self) -> int:
        return self.orders.ask(lambda state: state.generation.number)

    @property
    def members(self) -> tuple[int, ...]:
        return self.orders.ask(lambda state: state.generation.members)

    # ---- on the connection's thread ----

    def on_message(self, message: m.FromCoordinator) -> None:
        if isinstance(message, m.TakeCheckpoint):
            self.writer.ask(message.id, final=message.final)
        if isinstance(message, m.Abandon):
            self.abandonment.begin(message.id)
        self.orders.tell(lambda state: state.on_order(message))

    def on_refused(self, reason: str) -> None:
        """The others have gone on without this one, which was taken for dead: end, wherever it is."""
        self.orders.tell(lambda state: state.on_refused(reason))

    def rejoin(self) -> m.Rejoin | None:
        """For a coordinator that has just come; None as long as this executor is not set up."""
        hello, noticed = self.hello, self.noticed
        return None if hello is None else self.orders.ask(lambda state: state.rejoin(hello, noticed))

    # ---- on the training thread ----

    def wait_to_begin(self) -> m.Begin | m.Approach:
        """A set-up executor waits until it is needed."""
        order = self.orders.wait(lambda state: state.first)
        assert isinstance(order, m.Begin | m.Approach)
        return order

    def begin(self, order: m.Begin) -> Exchange:
        """A member of the first generation, with the others."""
        restore_session()  # it may have been a spare of executors that are all gone
        self.orders.tell(lambda state: state.begin(order))
        if order.checkpoint:
            self.newcomer.staged = self.read_checkpoint(order.checkpoint)
        try:
            exchange = self.orders.connect(order)
        except ExchangeBrokenError:
            # Somebody is gone already: the first step will find that out, and go on with the others.
            exchange = groups.without_group(order)
        self.orders.keep(order.generation, exchange)
        self.pace.restart()
        return exchange

    def approach(self) -> None:
        """A newcomer: everything on its way to the place where it waits is to no effect."""
        self.orders.tell(lambda state: state.approach())

    def attach(self, loop: TrainingLoop) -> None:
        """Take charge of a job's joins, switches and recoveries."""
        self.recoveries.loop = self.newcomer.loop = self.abandonment.loop = loop
        loop.engine.can_abandon = self.settings.granted
        loop.elastic = self
        loop.pace = self.pace
        loop.main_objects.enabled = self.settings.lasting
        if self.newcomer.staged is not None:
            loop.main_objects.begin_step = int(self.newcomer.staged["step"])
            self.writer.has(loop.main_objects.begin_step)
        loop.engine.peers = self.recoveries
        loop.engine.audit_sample = AuditSample(loop.spec.seed, self.settings.audit_turns)

    def hold(self, loop: TrainingLoop) -> int | None:
        """Wait for the job's state, if this executor comes later; the epoch to go on in."""
        return self.newcomer.hold()

    def arrive(self, loop: TrainingLoop, loader: Loader) -> None:
        """Between steps: join, load the state, write a checkpoint, switch, recover, leave; or train on."""
        self.newcomer.hold()  # a script without job.epochs has not yet
        if self.newcomer.staged is not None and not self.newcomer.land(loader):
            return
        if self.settings.lasting and loop.is_at_last_place():
            self.writer.last(loop, loader, self.generation)
        if loop.at_end():
            return
        while True:
            self.orders.tell(lambda state: state.arrived(loop.step))
            if self.writer.arrive(loop, loader, self.generation):
                self._hold_for_end()
            match self.orders.ask(lambda state: state.next_action()):
                case Meet():
                    loop.engine.use(self.recoveries.find_others().exchange)
                case Quit(reason):
                    raise Leaving(reason)
                case GoOver(order):
                    self.switching.go_over(order, loop, loader, Instant(), 0.0)
                case HoldForPlan():
                    self.switching.hold_for_plan(loop, loader, lambda: self.writer.wants(loop))
                case Train():
                    return

    def _hold_for_end(self) -> None:
        """A last checkpoint is written. Wait to be ended, or to be told to go on; the others wait for this executor in
        the next exchange. Where nobody is there to end the job it goes on."""

        def released(state: MemberState) -> bool | None:
            alone = self.link.lost_for() > _RETURN_S or self.writer.silent_for() > self.settings.orphan_s
            return True if state.goes_on or state.recover is not None or alone else None

        self.pace.outside()
        self.orders.wait(released)

    def ready(self, loop: TrainingLoop) -> bool:
        """To go over to the next generation after the seal that comes now."""
        return self.orders.ask(lambda state: state.is_ready())

    def wish(self, loop: TrainingLoop) -> m.Rebatch | None:
        return self.orders.ask(lambda state: state.wish())

    def sealed(self, loop: TrainingLoop, sealed: Sealed) -> None:
        if sealed.doubt:
            self.link.send(m.Warned(message=sealed.doubt))
        self.orders.tell(lambda state: state.sealed(loop.step, all_ready=sealed.all_ready))

    # ---- the end ----

    def finish(self, finished: m.Finished) -> None:
        """The training function has returned."""
        self.orders.tell(lambda state: state.finish(finished))

    def wait_dismissed(self, save: Callable[[], None]) -> None:
        """Stay until the result is safe; write it if asked to."""
        while self.orders.wait(lambda state: state.take_last_word()) == "save":
            save()

"""A job under a cluster service: it has the devices that it is granted, and nobody else scales, pauses or ends it.

Obeys the newest grant on the disk (`runtime.coordinator.holdings`) by way of `runtime.membership.desk`: says what is to
be done, and which executors must be ended so that their devices are free in time.
"""

from __future__ import annotations

from isoscale.errors import UserError
from isoscale.protocol import messages as m
from isoscale.runtime.control.grants import under_service
from isoscale.runtime.coordinator.holdings import Holdings
from isoscale.runtime.coordinator.residence import Residence
from isoscale.runtime.membership.desk import Desk
from isoscale.runtime.membership.instructions import Instruction
from isoscale.runtime.membership.progress import Progress
from isoscale.runtime.membership.reclaim import Reclaim
from isoscale.runtime.membership.scale_request import parse_target
from isoscale.runtime.membership.state_machine import Membership

__all__ = ["Grantee"]


class Grantee:
    def __init__(self, holdings: Holdings, membership: Membership, desk: Desk, residence: Residence) -> None:
        self.holdings = holdings
        self._membership = membership
        self._desk = desk
        self._residence = residence

    def has_devices(self) -> bool:
        """As the newest grant says."""
        return bool(self.holdings.look().devices)

    def check(self, request: m.FromClient) -> None:
        """Nobody but the service changes its devices. Raises UserError."""
        if isinstance(request, m.Scale | m.Stop):
            verb = "scale" if isinstance(request, m.Scale) else "cancel" if request.now else "pause"
            raise under_service("DIR", self._residence.place, self.holdings.grant.job, verb)

    def on_grant(self, request: m.Grant, now: float) -> tuple[int, list[Instruction]]:
        """The service says that there is a newer one. Raises UserError."""
        newest = self.holdings.look().number
        if request.number != newest:
            remedy = "write a grant down before it is sent" if request.number > newest else "obey the newest one"
            problem = f"the newest grant on the disk is {newest}"
            raise UserError(field="grant", value=request.number, problem=problem, remedy=remedy)
        if request.cancel:
            return self._desk.on_cancel(request.reason, now)
        return self._obey(request.reason, now, request.within_s)

    def catch_up(self, now: float) -> list[Instruction]:
        """With what was granted before this coordinator came."""
        if self.holdings.strangers() or not self.has_devices():
            return self._obey("granted before this coordinator came", now)[1]
        return []

    def begin_with_nothing(self, now: float) -> list[Instruction]:
        """Nobody trains, and the newest grant is of nothing."""
        return self._desk.on_pause("nothing is granted", now)[1]

    def _obey(self, reason: str, now: float, within_s: float | None = None) -> tuple[int, list[Instruction]]:
        """Go over to the granted devices. Those that were taken back must be free in time, if one is given."""
        holdings, members = self.holdings, self._membership.members
        grant, away = holdings.grant, holdings.strangers()
        holdings.reclaim = None
        # In time: nobody who has the state would be left to hand it over.
        if grant.target is None or (within_s is not None and members and set(members) <= set(away)):
            return self._desk.on_pause(reason, now, within_s)
        target = parse_target(str(grant.target), self._membership.goal.target, self._membership.spec)
        if within_s is not None and away:
            holdings.reclaim = Reclaim(now + within_s, writes=False)
        holdings.open_batch()  # it goes with the devices
        return self._desk.on_grant(target, away, reason, now, grant.batch)

    def ask_for_batch(self, present: int | None, now: float) -> list[Instruction]:
        """The grant that this coordinator began by may name a batch size; nobody knew then whether it is allowed."""
        size = self.holdings.open_batch()
        return [] if size is None or size == present else self._desk.on_granted_batch(size, "granted", now)

    def overdue(self, progress: Progress, now: float) -> tuple[int, ...]:
        """Devices are wanted back: who cannot leave in time. They are ended, and those who stay do the step again."""
        if (reclaim := self.holdings.reclaim) is None:
            return ()
        late = self.holdings.strangers()
        if late and not reclaim.is_over(now) and not reclaim.is_hopeless(progress, now):
            return ()
        self.holdings.reclaim = None
        if set(late) & set(self._membership.members):
            self._desk.abandoned_s += progress.since_step_s
        return late

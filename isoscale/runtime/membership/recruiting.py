"""Calls up executors for a device set, waits for them and lets them go; keeps spares. Pure: gives instructions.

Knows who is on the way. When they are there, what becomes of them is `runtime.membership.rescaling`'s affair.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from isoscale.kinds import DeviceSet
from isoscale.protocol import messages as m
from isoscale.runtime.membership.instructions import Instruction, Start, Tell
from isoscale.runtime.membership.retry_limits import RetryLimits
from isoscale.runtime.membership.roster import Roster, Wanted
from isoscale.types import Settings

__all__ = ["Recruiting"]


@dataclass(slots=True)
class Recruiting:
    roster: Roster
    settings: Settings
    #: after executors that were lost, the next ones are not started at once
    limits: RetryLimits = field(default_factory=RetryLimits)
    #: newcomers on their way to the place where they wait for the job's state
    _awaited: set[int] = field(default_factory=set)
    #: while executors gather: at least so many must still be set up
    _lacking: int = 0

    # ---- before training ----

    def gather(self, target: DeviceSet) -> list[Instruction]:
        """See to it that all come that the target needs."""
        wanted = self.roster.choose(target, ())
        coming = set(wanted.coming)
        for one in self.roster:
            one.needed = one.executor in coming
        return [*self._start(wanted.missing), *self._refill_spares(target)]

    def gathered(self, target: DeviceSet) -> tuple[int, ...]:
        """All that the target needs, when they are set up; nobody before."""
        wanted = self.roster.choose(target, ())
        self._lacking = len(wanted.missing) + sum(self.roster[e].state != "warm" for e in wanted.coming)
        return () if self._lacking else wanted.coming

    def one_more(self) -> bool:
        """One is set up. False if there cannot be enough of them yet: each brings at most one nearer, so that with ten
        thousand of them nobody looks at all every time."""
        self._lacking -= 1
        return self._lacking <= 0

    # ---- beside training ----

    def call(self, executor: int) -> list[Instruction]:
        """One that is set up becomes a newcomer."""
        self.roster[executor].state = "approaching"
        return [Tell(executor, m.Approach())]

    def call_up(self, wanted: Wanted, members: tuple[int, ...], target: DeviceSet) -> list[Instruction]:
        """Whoever is wanted and no member yet; whoever is not wanted any more goes."""
        instructions: list[Instruction] = []
        for executor in wanted.coming:
            self.roster[executor].needed = True
            if self.roster[executor].state == "warm":
                instructions += self.call(executor)
        instructions += self._release({*wanted.staying, *wanted.coming}, set(members))
        instructions += self._start(wanted.missing)
        instructions += self._refill_spares(target)
        self._awaited = {e for e in wanted.coming if self.roster[e].state != "held"}
        return instructions

    def are_there(self, wanted: Wanted) -> bool:
        """All that were called up, and nobody is missing."""
        return not wanted.missing and not self._awaited

    def wait_already(self, wanted: Wanted) -> bool:
        """All that are wanted wait for the job's state, whoever was called up."""
        return not wanted.missing and all(self.roster[e].state == "held" for e in wanted.coming)

    def arrived(self, executor: int) -> bool:
        """A newcomer waits for the job's state. True if it was the last one that was awaited."""
        self.roster[executor].state = "held"
        self._awaited.discard(executor)
        return not self._awaited

    def let_go(self, executor: int, reason: str) -> list[Instruction]:
        if executor not in self.roster:
            return []
        self.roster[executor].state = "leaving"
        return [Tell(executor, m.Leave(reason=reason))]

    def _release(self, wanted: set[int], members: set[int]) -> list[Instruction]:
        """Newcomers that nobody wants any more go; warm ones are spares again."""
        instructions: list[Instruction] = []
        for one in self.roster:
            if one.executor in wanted or one.executor in members or one.state == "leaving":
                continue
            if one.state in ("approaching", "held"):
                instructions += self.let_go(one.executor, "not wanted any more")
            one.needed = False
        return instructions

    def _start(self, kinds: tuple[str, ...]) -> list[Instruction]:
        if not self.settings.spawn:
            return []  # somebody will start them and let them join
        if self.limits.newcomers.waits(self.limits.now):
            return []
        return [Start(self.roster.add(kind, needed=True).executor, kind) for kind in kinds]

    def _refill_spares(self, target: DeviceSet) -> list[Instruction]:
        if not self.settings.spares or self.limits.spares.waits(self.limits.now):
            return []
        kind, lacking = target.kinds[0], self.settings.spares - len(self.roster.spares())
        return [Start(self.roster.add(kind, needed=False).executor, kind) for _ in range(lacking)]

"""The generation that a job is in and the next one in the making: who is in it, and what its members are told.

The mechanism below `runtime.membership.rescaling`, which says when a generation is formed, of whom and why. Pure:
gives instructions. Executors keep the same from their side (`runtime.executor.generations`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from isoscale.batches import BatchChange
from isoscale.protocol import messages as m
from isoscale.runtime.membership.change import Attempt, Change, pause_of
from isoscale.runtime.membership.instructions import Emit, Instruction, Tell
from isoscale.runtime.membership.orders import Formation, addresses_of, generation_events, meeting_place, rescale_event
from isoscale.runtime.membership.roster import Roster
from isoscale.runtime.membership.takeover import Census

__all__ = ["Generations", "Origin"]


@dataclass(frozen=True, slots=True)
class Origin:
    """What the first generation begins with: a checkpoint, or nothing; up to `reached` steps with these batch sizes."""

    checkpoint: str = ""
    batches: tuple[BatchChange, ...] = ()
    reached: int = 0


@dataclass(slots=True)
class Generations:
    roster: Roster
    #: prefix of the places where the members of a generation meet
    store: str
    #: members may be on machines that share no files
    apart: bool = False
    #: the highest one that was ever announced
    highest: int = 0
    #: the one the members are in, and whether it has sealed a step
    current: int = 0
    members: tuple[int, ...] = ()
    shares: tuple[int, ...] = ()
    sealed: bool = False
    #: the next one
    attempt: Attempt | None = None
    #: newcomers with the state of a generation that a recovery has overtaken: needed until that one has sealed a step
    overtaken: set[int] = field(default_factory=set)
    #: all newcomers of such generations, also those who have not said that they have the state: they may be about to
    stranded: set[int] = field(default_factory=set)
    #: who has gone over in a recovery, and how many trained before it; 0 outside recoveries
    _recovered: dict[int, m.Switched] = field(default_factory=dict)
    _before: int = 0

    # ---- looking ----

    @property
    def switching(self) -> Attempt | None:
        """The attempt, if the order to switch is out: it must end first, in a seal or in a failure."""
        return self.attempt if self.attempt is not None and self.attempt.switch_sent else None

    @property
    def is_recovery(self) -> bool:
        """The present one goes on after a failure, and has not sealed a step yet."""
        return self._before > 0

    @property
    def recovered_at(self) -> int:
        """Committed steps, as those tell who have agreed in a recovery."""
        return max((one.step for one in self._recovered.values()), default=0)

    @property
    def is_settled(self) -> bool:
        """All members are in the present one, and nobody else is needed: it has sealed a step, or goes on after a
        failure and they have agreed on how far they are. The next one may be formed beside what they do."""
        agreed = self.is_recovery and len(self._recovered) == len(self.members)
        return self.sealed or (agreed and not self.overtaken)

    def gone(self) -> list[int]:
        """Members that are no more."""
        return [executor for executor in self.members if executor not in self.roster]

    def present(self) -> list[int]:
        return [executor for executor in self.members if executor in self.roster]

    def all_are_noticed(self) -> bool:
        """Everybody who is there was told to go."""
        # Every tick asks: the first one who may stay answers for all.
        noticed = (one.noticed for e in self.members if (one := self.roster.get(e)) is not None)
        return next(noticed, False) and all(noticed)

    def needs(self, executor: int, *, holds: bool) -> bool:
        """The present one, or the one that all go over to, cannot go on without it. `holds`: it has the job's state."""
        switching = self.switching
        return (holds and executor in self.members) or (switching is not None and executor in switching.members)

    def holders(self) -> list[int]:
        """Who may go on after a failure, the members of the newest generation first."""
        candidates = [*(self.switching.members if self.switching is not None else ()), *self.members]
        holders = [e for e in dict.fromkeys(candidates) if e in self.roster and self.roster[e].state == "member"]
        # Those who left before this coordinator came wait, with the state, until the others have sealed a step.
        holders = holders or self.roster.holders()
        holders = holders or sorted(executor for executor in self.overtaken if executor in self.roster)
        if not holders and self.attempt is not None:
            holders = [e for e in self.attempt.members if e in self.attempt.received and e in self.roster]
        return holders

    def may_hold(self, executor: int) -> bool:
        """It is a newcomer that has got the state, or may have and be about to say so."""
        coming = self.switching.coming if self.switching is not None else ()
        return executor in coming or executor in self.stranded

    def awaits_word(self) -> bool:
        """Where nobody is known to hold the state, somebody may be about to say so."""
        return any(self.may_hold(one.executor) for one in self.roster)

    # ---- the first ----

    def begin(
        self, members: tuple[int, ...], shares: tuple[int, ...], origin: Origin, step: int, hold_at: int | None
    ) -> list[Instruction]:
        self.attempt = None
        for executor in members:
            one = self.roster[executor]
            one.state, one.needed, one.joined_step = "member", True, step
        self._enter(self._next(), members, shares)
        self._before = 0
        orders = self._formation(self.current, members, shares, hold_at)
        return orders.begin(origin.checkpoint, origin.batches, origin.reached)

    # ---- the next ----

    def prepare(self, change: Change, shares: tuple[int, ...], reason: str, hold_at: int | None) -> list[Instruction]:
        """Form the one that a change leads to."""
        self.attempt = attempt = Attempt(
            self._next(),
            change.members,
            shares,
            frozenset(change.coming),
            change.leaving,
            reason,
            {*change.members, change.sender} - {-1},
            change.at_step,
        )
        orders = self._formation(attempt.generation, attempt.members, shares, hold_at)
        return orders.prepare(attempt.coming, attempt.leaving, change.sender)

    def drop(self) -> None:
        """The next one will not be: for another target, or it cannot be formed."""
        self.attempt = None

    def prepared(self, executor: int, generation: int, batch: m.Rebatch | None) -> list[Instruction]:
        """Somebody has formed the next one's group: when all have, the members are told to switch, and to change the
        batch size with it unless a plan names the step."""
        attempt = self.attempt
        if attempt is None or attempt.generation != generation or attempt.switch_sent:
            return []
        attempt.forming.discard(executor)
        if attempt.forming:
            return []
        attempt.switch_sent = True
        switch = m.Switch(
            generation=generation, at_step=attempt.at_step, batch=batch if attempt.at_step is None else None
        )
        return [Tell(member, switch) for member in self.members]

    def switched(self, executor: int, switched: m.Switched) -> None:
        if self.attempt is not None and self.attempt.generation == switched.generation:
            self.attempt.switched[executor] = switched
        elif switched.generation == self.current:
            self._recovered[executor] = switched

    def landed(self, executor: int, generation: int) -> None:
        one = self.roster.get(executor)
        if one is not None and self.attempt is not None and self.attempt.generation == generation:
            one.state = "member"

    def complete(self, attempt: Attempt, step: int) -> None:
        """The next one has sealed a step: it is the present one now."""
        self.attempt = None
        for executor in attempt.members:
            if executor in self.roster:
                self.roster[executor].state = "member"
                if executor in attempt.coming:
                    self.roster[executor].joined_step = step
        self.hear_of(attempt.generation)
        self._enter(attempt.generation, attempt.members, attempt.shares)
        self.sealed = True

    # ---- failures ----

    def recover(
        self, holders: list[int], kept: tuple[int, ...], shares: tuple[int, ...], hold_at: int | None
    ) -> list[Instruction]:
        """Go on with those who are `kept`, of all who hold the job's state."""
        attempt, self.attempt = self.attempt, None
        for executor in holders:
            self.roster[executor].state = "member"
        self._before = self._before or len(self.members)
        self._enter(self._next(), kept, shares)
        self.overtaken |= attempt.received if attempt is not None else set()
        self.stranded |= attempt.coming if attempt is not None and attempt.switch_sent else set()
        self.overtaken -= set(kept)
        return self._formation(self.current, kept, shares, hold_at).recover()

    def seal(self, step: int, reason: str) -> list[Instruction]:
        """The present one has sealed its first step."""
        for executor in self.members:
            if executor in self.roster and self.roster[executor].state == "held":
                self.roster[executor].state = "member"
        self.sealed = True
        before, self._before = self._before, 0
        return [self.rescaled(before, step, pause_of(self._recovered), reason)] if before else []

    def release_overtaken(self) -> list[int]:
        """Nobody needs them any more."""
        released, self.overtaken, self.stranded = sorted(self.overtaken), set(), set()
        return [executor for executor in released if executor in self.roster and executor not in self.members]

    def lose(self) -> None:
        """Everybody is gone."""
        self.members, self.shares, self.sealed, self.overtaken, self.stranded = (), (), False, set(), set()

    # ---- those of an earlier coordinator ----

    def hear_of(self, generation: int) -> None:
        self.highest = max(self.highest, generation)

    def adopt(self, found: Census) -> None:
        self.current, self.sealed, self.members, self.shares = (
            found.generation,
            found.sealed,
            found.members,
            found.shares,
        )
        self.stranded = set(found.uncertain)

    def follow(self, generation: int, members: tuple[int, ...], shares: tuple[int, ...]) -> None:
        """They have gone over to one that an earlier coordinator had prepared."""
        self.attempt = None
        self._enter(generation, members, shares)
        self.sealed = True
        for executor in self.present():
            self.roster[executor].state = "member"

    # ---- the event log ----

    def announced(self, step: int, reason: str, joined: frozenset[int] | None = None) -> list[Instruction]:
        fresh = [executor for executor in self.members if joined is None or executor in joined]
        return generation_events(self.current, step, self.members, self.shares, reason, fresh)

    def rescaled(self, before: int, step: int, pause: tuple[float, float], reason: str) -> Emit:
        return rescale_event(self.current, before, step, pause, self.members, self.shares, reason)

    # ---- parts ----

    def _next(self) -> int:
        self.highest += 1
        return self.highest

    def _enter(self, generation: int, members: tuple[int, ...], shares: tuple[int, ...]) -> None:
        self.current, self.members, self.shares = generation, members, shares
        self.sealed, self._recovered = False, {}

    def _formation(
        self, generation: int, members: tuple[int, ...], shares: tuple[int, ...], hold_at: int | None
    ) -> Formation:
        hellos = [one.hello if (one := self.roster.get(e)) is not None else None for e in members]
        addresses = addresses_of(hellos, apart=self.apart)
        place = meeting_place(addresses, self.store, generation)
        return Formation(generation, members, shares, place, hold_at, addresses)

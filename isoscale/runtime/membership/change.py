"""A change of a job's executors, as values: who comes and who leaves, and a generation in the making."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from isoscale.protocol import messages as m
from isoscale.runtime.membership.roster import Wanted

__all__ = ["Attempt", "Change", "Orphaned", "change_towards", "pause_of"]

#: a newcomer that has got the state has said so within this
_RECEIPT_S = 3.0


@dataclass(frozen=True, slots=True)
class Change:
    """Who trains then, and who of them comes, who of the present members leaves; at a step, if a plan names one."""

    members: tuple[int, ...]
    coming: tuple[int, ...] = ()
    leaving: tuple[int, ...] = ()
    at_step: int | None = None

    def __bool__(self) -> bool:
        """Is it one?"""
        return bool(self.coming or self.leaving) or self.at_step is not None

    @property
    def sender(self) -> int:
        """Who of those who leave hands the state over: the first, where nobody stays who has it; -1 elsewhere."""
        return self.leaving[0] if self.leaving and set(self.members) == set(self.coming) else -1


def change_towards(
    wanted: Wanted, members: tuple[int, ...], *, ready: bool, noticed: Collection[int], at_step: int | None
) -> Change:
    """What can be done now, from the present `members`: everything, once all who come are `ready`."""
    staying = set(wanted.staying)
    leaving = tuple(e for e in members if e not in staying)
    if not ready:
        # A notice does not wait for a replacement, unless nobody else is there; one who is to be replaced is.
        leaving = tuple(e for e in leaving if e in noticed)
        leaving = leaving if len(leaving) < len(members) else ()
    going, coming = set(leaving), wanted.coming if ready else ()
    stay = tuple(e for e in members if e not in going)
    return Change((*stay, *coming), coming, leaving, at_step if ready else None)


@dataclass(slots=True)
class Attempt:
    """A generation in the making."""

    generation: int
    members: tuple[int, ...]
    shares: tuple[int, ...]
    coming: frozenset[int]
    leaving: tuple[int, ...]
    reason: str
    #: who has not formed the group yet
    forming: set[int]
    at_step: int | None = None
    switch_sent: bool = False
    #: newcomers that have got the state
    received: set[int] = field(default_factory=set)
    #: who has gone over: unix seconds of leaving the old and of starting in the new generation, seconds waited
    switched: dict[int, m.Switched] = field(default_factory=dict)

    def leads_to(self, change: Change) -> bool:
        """It is what this change asks for."""
        return (self.members, self.leaving, self.at_step) == (change.members, change.leaving, change.at_step)


@dataclass(slots=True)
class Orphaned:
    """Nobody is known to hold the job's state any more. A newcomer may have got it, and be about to say so."""

    reason: str = ""
    _since: float | None = None

    def __bool__(self) -> bool:
        """Is it so?"""
        return bool(self.reason)

    def begin(self, reason: str) -> None:
        """The first reason counts."""
        self.reason = self.reason or reason

    def is_overdue(self, now: float) -> bool:
        """Nobody has said in all this time that it has got the state."""
        self._since = now if self._since is None else self._since
        return now - self._since >= _RECEIPT_S

    def end(self) -> None:
        self.reason, self._since = "", None


def pause_of(switched: dict[int, m.Switched]) -> tuple[float, float]:
    """Seconds from the last one leaving its old step to the first one starting a new one, and of them those waited."""
    if not switched:
        return 0.0, 0.0
    waited = max(one.waited_s for one in switched.values())
    left = max(one.left_at for one in switched.values())
    started = min(one.started_at for one in switched.values())
    return max(0.0, started - left - waited), waited

"""What the executors of an earlier coordinator say of themselves, put together: how far has the job come? Pure.

They may not agree: some may have gone over to a generation that others have not heard of. The newest one that any of
them trains in is taken to be the job's.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from isoscale.protocol import messages as m
from isoscale.runtime.membership.roster import Roster, State

__all__ = ["Census", "seat", "standing_of"]


@dataclass(slots=True)
class Census:
    #: committed steps
    step: int = 0
    #: the newest generation that somebody trains in, and whether it has sealed a step
    generation: int = 0
    members: tuple[int, ...] = ()
    shares: tuple[int, ...] = ()
    sealed: bool = False
    #: they may still go over to a generation that the earlier coordinator had prepared
    uncertain: set[int] = field(default_factory=set)
    #: somebody's exchange is broken, and it waits to be told how to go on
    waits: bool = False
    finished: dict[int, m.Finished] = field(default_factory=dict)

    def count(self, rejoin: m.Rejoin) -> None:
        executor = rejoin.hello.executor
        self.step = max(self.step, rejoin.step)
        if rejoin.state in ("member", "leaving", "finished") and rejoin.generation >= self.generation:
            self.sealed = rejoin.sealed or (self.sealed and rejoin.generation == self.generation)
            self.generation, self.members, self.shares = rejoin.generation, rejoin.members, rejoin.shares
        if rejoin.finished is not None:
            self.finished[executor] = rejoin.finished
        if rejoin.state == "leaving" or rejoin.highest > rejoin.generation:
            self.uncertain.add(executor)
        self.waits |= rejoin.waiting


def standing_of(rejoin: m.Rejoin) -> State:
    """Whoever leaves, or has come to the end, holds the job's state as members do."""
    states: dict[str, State] = {"warm": "warm", "approaching": "approaching", "held": "held"}
    return states.get(rejoin.state, "member")


def seat(rejoin: m.Rejoin, roster: Roster) -> None:
    """Whoever says so is known from now on, as if this coordinator had started it."""
    hello = rejoin.hello
    one = roster.adopt(hello.executor, hello.kind)
    one.hello, one.pid, one.needed = hello, hello.pid, rejoin.state != "warm"
    one.state, one.noticed = standing_of(rejoin), bool(rejoin.noticed)

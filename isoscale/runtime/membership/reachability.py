"""Executors that cannot reach each other, although the coordinator reaches them all: who is to be left out? Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

__all__ = ["Outcast", "Reachability", "strangers_of"]


@dataclass(frozen=True, slots=True)
class Outcast:
    """An executor without whom more of the others can work together."""

    executor: int
    #: who cannot reach it, or cannot be reached by it
    apart_from: tuple[int, ...]

    def __str__(self) -> str:
        names = ", ".join(str(executor) for executor in self.apart_from)
        plural = "s" if len(self.apart_from) > 1 else ""
        return f"it and executor{plural} {names} cannot reach each other"


def strangers_of(executor: int, unreachable: Sequence[int], newcomers: Collection[int]) -> list[Outcast]:
    """The newcomers among those who cannot reach each other, as `executor` says."""
    found = [*(Outcast(other, (executor,)) for other in unreachable), Outcast(executor, tuple(unreachable))]
    return [one for one in found if one.executor in newcomers]


@dataclass(slots=True)
class Reachability:
    _pairs: set[frozenset[int]] = field(default_factory=set)

    def complain(self, executor: int, unreachable: Collection[int]) -> None:
        """An executor could open no connection to these."""
        self._pairs |= {frozenset((executor, other)) for other in unreachable if other != executor}

    def clear(self) -> None:
        """They all reach each other again, as a step that was sealed has shown."""
        self._pairs = set()

    def outcasts(self, members: Sequence[int]) -> list[Outcast]:
        """Always the one who is apart from most others, of several the last one, until nobody is apart from anybody.

        One whose own network is at fault complains of everybody and everybody of it, so it has the most pairs.
        """
        apart: dict[int, set[int]] = {executor: set() for executor in members}
        for one, other in self._pairs:
            if one in apart and other in apart:
                apart[one].add(other)
                apart[other].add(one)
        found: list[Outcast] = []
        while most := max((len(others) for others in apart.values()), default=0):
            executor = [one for one, others in apart.items() if len(others) == most][-1]
            found.append(Outcast(executor, tuple(sorted(apart.pop(executor)))))
            for others in apart.values():
                others.discard(executor)
        return found

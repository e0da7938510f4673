"""Who hosted what from when on: the placement at the beginning of every generation.

Taken from `generation` events; where a log has none for a generation, from `rescale` events that name members, and
failing that from `executor_joined`. Shares that no event tells are as even as possible, if the number of logical
workers is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from isoscale.timelines.fields import Event, ExecutorId, executor_of, items, whole
from isoscale.types import Placement

__all__ = ["Generation", "generations", "in_order", "shares_of", "workers_of"]

#: an event with its time since the start of the log
Timed = tuple[float, Event]


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    t: float
    generation: int
    members: tuple[ExecutorId, ...]
    #: logical workers per member, contiguous in this order; empty if unknown
    shares: tuple[int, ...]

    def blocks(self) -> dict[ExecutorId, tuple[int, int] | None]:
        """First and last logical rank of every member."""
        if not self.shares:
            return dict.fromkeys(self.members)
        placement = Placement(shares=self.shares)
        ranks = [placement.ranks_of(index) for index in range(len(self.members))]
        return {member: (block[0], block[-1]) for member, block in zip(self.members, ranks, strict=True)}


def generations(events: Sequence[Timed], num_logical_workers: int | None) -> list[Generation]:
    """In order of time."""
    told = [_told(t, event, num_logical_workers) for t, event in events if event["event"] == "generation"]
    found = [one for one in told if one]
    known = {one.generation for one in found}
    for t, event in events:
        if event["event"] == "rescale" and whole(event, "generation") not in known:
            one = _told(t, event, num_logical_workers)
            if one:
                found.append(one)
                known.add(one.generation)
    return sorted(found + _guessed(events, known, num_logical_workers), key=lambda one: one.t)


def workers_of(events: Sequence[Timed]) -> int | None:
    """The number of logical workers, if any event tells all shares."""
    totals = [sum(shares_of(event)) for _, event in events if event["event"] in ("generation", "rescale")]
    return max(totals, default=0) or None


def shares_of(event: Event) -> tuple[int, ...]:
    """Logical workers per member; empty if they are missing or make no sense."""
    shares = items(event, "shares")
    sound = all(isinstance(share, int) and not isinstance(share, bool) and share > 0 for share in shares)
    return tuple(shares) if sound else ()


def in_order(executor: ExecutorId) -> tuple[bool, int, str]:
    """Sort key: numbers by value, then names."""
    return (False, executor, "") if isinstance(executor, int) else (True, 0, executor)


def _told(t: float, event: Event, num_logical_workers: int | None) -> Generation | None:
    ids = [executor_of({"executor": member}) for member in items(event, "members")]
    members = tuple(dict.fromkeys(member for member in ids if member is not None))
    if not members:
        return None
    shares = shares_of(event)
    if len(shares) != len(members):
        shares = _even(num_logical_workers, len(members))
    return Generation(t=t, generation=whole(event, "generation") or 0, members=members, shares=shares)


def _guessed(events: Sequence[Timed], known: set[int], num_logical_workers: int | None) -> list[Generation]:
    """Members of a generation that only `executor_joined` tells of: those who joined, and those still there."""
    members: set[ExecutorId] = set()
    found: dict[int, Generation] = {}
    for t, event in events:
        executor = executor_of(event)
        if executor is None:
            continue
        if event["event"] in ("executor_left", "executor_lost"):
            members.discard(executor)
        elif event["event"] == "executor_joined":
            members.add(executor)
            generation = whole(event, "generation") or 0
            if generation not in known:
                ordered = tuple(sorted(members, key=in_order))
                shares = _even(num_logical_workers, len(ordered))
                # Members join one line after another; the placement holds from the last of them on.
                found[generation] = Generation(t=t, generation=generation, members=ordered, shares=shares)
    return list(found.values())


def _even(num_logical_workers: int | None, num_executors: int) -> tuple[int, ...]:
    if num_logical_workers is None or num_logical_workers < num_executors:
        return ()
    return Placement.even(num_logical_workers, num_executors).shares

"""The devices of a cluster by name: which are free, lent away, broken, or wanted back by whoever lent them.

Pure bookkeeping for `scheduling.driver`, which knows who holds the others. Devices are numbered here; a number stands
for a name, and lower numbers are given out first.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from isoscale.scheduling.driving import ReturnDevices
from isoscale.scheduling.state import Allocation

__all__ = ["DevicePool", "Reclaim"]


@dataclass(slots=True)
class Reclaim:
    """Devices of a node that go back to their owner as they become free."""

    id: str
    node: int
    count: int
    deadline_s: float = math.inf
    devices: list[int] = field(default_factory=list)
    abandoned_s: float = 0.0


class DevicePool:
    def __init__(self, names: Sequence[Sequence[str]]) -> None:
        """`names`: of each node's devices. All are there and free."""
        self.names: list[str] = [name for node in names for name in node]
        self.node_of: list[int] = [node for node, devices in enumerate(names) for _ in devices]
        self.numbers = {name: number for number, name in enumerate(self.names)}
        if len(self.numbers) < len(self.names):
            raise ValueError("two devices have one name")
        #: of each node, the lowest number first out
        self.free_by_node: list[list[int]] = [[] for _ in names]
        for number, node in enumerate(self.node_of):
            self.free_by_node[node].append(number)
        self._sizes = [len(devices) for devices in names]
        #: not ours, and not there; a device can be both
        self._away: set[int] = set()
        self._broken: set[int] = set()
        #: broken ones that a job may still count as its own
        self._held_broken: set[int] = set()
        #: per node; the oldest first
        self._reclaims: list[list[Reclaim]] = [[] for _ in names]
        #: whether there may be any
        self.has_reclaims = False

    def free_on(self, node: int) -> Sequence[int]:
        return self.free_by_node[node]

    def working(self, node: int) -> int:
        """Devices of a node that are ours and work."""
        return self._sizes[node] - len(self._gone(node))

    def there(self, node: int) -> int:
        """Of those, the ones that are not wanted back."""
        return max(0, self.working(node) - self.owed(node))

    def owed(self, node: int) -> int:
        """How many its owner still waits for."""
        return sum(one.count - len(one.devices) for one in self._reclaims[node])

    def take(self, node: int, count: int, avoid: Iterable[int] = ()) -> list[int]:
        """So many free devices of a node, if possible others than those to avoid."""
        free = self.free_by_node[node]
        if avoid and (shunned := set(avoid).intersection(free)):
            chosen = sorted(free, key=lambda number: (number in shunned, number))[:count]
            self.free_by_node[node] = free = [number for number in free if number not in set(chosen)]
            heapq.heapify(free)
            return chosen
        return [heapq.heappop(free) for _ in range(count)]

    def hold(self, numbers: Iterable[int]) -> None:
        """Somebody was found to hold these."""
        for number in numbers:
            free = self.free_by_node[self.node_of[number]]
            if number not in free:
                raise ValueError(f"device {self.names[number]} is held by two jobs")
            free.remove(number)
            heapq.heapify(free)

    def free(self, number: int) -> None:
        """Nobody holds it any more."""
        node = self.node_of[number]
        if not (self._broken or self._away or self._reclaims[node]):
            heapq.heappush(self.free_by_node[node], number)
            return
        self._held_broken.discard(number)
        if number in self._broken and number not in self._away and self.owed(node) > self.working(node):
            # Too few are left that work: its owner gets it back as it is.
            self._return(next(one for one in self._reclaims[node] if len(one.devices) < one.count), number)
        if number in self._broken or number in self._away:
            return
        for one in self._reclaims[node]:
            if len(one.devices) < one.count:
                self._return(one, number)
                return
        heapq.heappush(self.free_by_node[node], number)

    def lend(self, node: int, count: int, numbers: Collection[int] = ()) -> int:
        """Devices that were away are ours, these first if some are named; returns how many."""
        back = [number for number in self._away if self.node_of[number] == node]
        back.sort(key=lambda number: (number not in numbers, number))
        pending = {number for one in self._reclaims[node] for number in one.devices}
        back = [number for number in back if number not in pending][:count]
        for number in back:
            self._away.discard(number)
            self.free(number)
        return len(back)

    def reclaim(self, one: Reclaim) -> None:
        """Free devices go back at once, others as they are freed; broken ones last, and never more than are ours."""
        node = one.node
        broken = sorted(number for number in self._broken - self._away if self.node_of[number] == node)
        working = self.there(node)
        one.count = max(0, min(one.count, working + len(broken)))
        self._reclaims[node].append(one)
        self.has_reclaims = True
        free = self.free_by_node[node]
        for number in [n for n in broken if n not in self._held_broken][: max(0, one.count - working)]:
            self._return(one, number)
        while free and len(one.devices) < one.count:
            self._return(one, heapq.heappop(free))

    def _return(self, one: Reclaim, number: int) -> None:
        one.devices.append(number)
        self._away.add(number)

    def returned(self, now: float) -> list[ReturnDevices]:
        """Reclaims that are complete, each told once."""
        told: list[ReturnDevices] = []
        for node, reclaims in enumerate(self._reclaims):
            if not reclaims:
                continue
            for one in reclaims:
                if len(one.devices) == one.count:
                    names = tuple(self.names[number] for number in one.devices)
                    told.append(ReturnDevices(one.id, names, one.abandoned_s, now > one.deadline_s))
            self._reclaims[node] = [one for one in reclaims if len(one.devices) < one.count]
        self.has_reclaims = any(self._reclaims)
        return told

    def abandon(self, allocation: Allocation, seconds: float) -> None:
        """Work was thrown away so that devices of these nodes are free in time: told with the oldest reclaim."""
        for node, _ in allocation:
            for one in self._reclaims[node][:1]:
                one.abandoned_s += seconds
                return

    def break_down(self, number: int, *, is_held: bool) -> None:
        """A device does not work any more. Whoever holds it says when it has let go."""
        self._broken.add(number)
        if is_held:
            self._held_broken.add(number)
            return
        node = self.node_of[number]
        if number in self.free_by_node[node]:
            self.free_by_node[node].remove(number)
            heapq.heapify(self.free_by_node[node])
        self.free(number)

    def repair(self, number: int) -> None:
        if number not in self._broken:
            return
        self._broken.discard(number)
        if number not in self._held_broken:
            self.free(number)
        self._held_broken.discard(number)

    def is_broken(self, number: int) -> bool:
        return number in self._broken

    def _gone(self, node: int) -> set[int]:
        return {number for number in self._away | self._broken if self.node_of[number] == node}

    def allocation_of(self, numbers: Iterable[int]) -> Allocation:
        """Counted by node."""
        counts: dict[int, int] = {}
        for number in numbers:
            node = self.node_of[number]
            counts[node] = counts.get(node, 0) + 1
        return tuple(sorted(counts.items()))

    def names_of(self, numbers: Iterable[int]) -> tuple[str, ...]:
        return tuple(map(self.names.__getitem__, sorted(numbers)))

    def validate(self, held: Iterable[int]) -> None:
        """For tests: every device is exactly one of free, held, away or broken."""
        free = [number for node in self.free_by_node for number in node]
        present = [*free, *held]
        assert len(set(present)) == len(present), "a device is in two hands"
        gone = self._away | self._broken
        assert not set(free) & gone, "a device that is gone counts as free"
        assert set(present) | gone == set(range(len(self.names))), "a device is lost"

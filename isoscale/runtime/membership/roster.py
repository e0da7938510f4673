"""The executors a job has or had: what is known of each, and which of them suit a device set.

Pure bookkeeping for the rest of `runtime.membership`. Looking one up and changing its state cost the same for ten
executors and for ten thousand; only choosing members for a device set looks at all that are alive.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from isoscale.kinds import DeviceSet
from isoscale.protocol import messages as m

__all__ = ["Executor", "Roster", "State", "Wanted"]

#: starting: no word yet · warm: set up, waits · approaching: a newcomer that runs towards the place where it waits for
#: the job's state · held: is there · member: trains, or holds the state to do so · leaving: is no more needed
State = Literal["starting", "warm", "approaching", "held", "member", "leaving"]

#: who is taken first where there are more than asked for
_PREFERENCE: dict[State, int] = {"member": 0, "held": 1, "approaching": 2, "warm": 3, "starting": 4}


@dataclass(slots=True)
class Executor:
    executor: int
    kind: str
    state: State = "starting"
    pid: int = 0
    #: was told to go, and will be gone soon, replaced or not
    noticed: bool = False
    #: is to be replaced, when somebody else is there
    unwanted: bool = False
    #: for a target, not as a spare
    needed: bool = False
    hello: m.Hello | None = None
    #: measured seconds of one turn; 0 before the first beat
    turn_s: float = 0.0
    beat: m.Beat | None = None
    #: committed steps when it came in; None if nobody knows
    joined_step: int | None = None

    def heard(self, beat: m.Beat) -> bool:
        """Whether it tells of steps, too."""
        self.beat = beat
        if not beat.steps or beat.turn_s <= 0:
            return False
        self.turn_s = beat.turn_s if self.turn_s == 0 else 0.5 * self.turn_s + 0.5 * beat.turn_s
        return True


@dataclass(frozen=True, slots=True)
class Wanted:
    """Who makes up a device set: members that stay, others that become members, and what is missing."""

    staying: tuple[int, ...]
    coming: tuple[int, ...]
    missing: tuple[str, ...]


@dataclass(slots=True)
class Roster:
    _by_id: dict[int, Executor] = field(default_factory=dict)
    _next: int = 0

    def add(self, kind: str, *, needed: bool) -> Executor:
        """A new executor, with an id that was never used."""
        one = Executor(self._next, kind, needed=needed)
        self._by_id[self._next] = one
        self._next += 1
        return one

    def reserve(self, count: int) -> None:
        """Ids below `count` were used before."""
        self._next = max(self._next, count)

    def adopt(self, executor: int, kind: str) -> Executor:
        """One that another coordinator has started."""
        self._next = max(self._next, executor + 1)
        return self._by_id.setdefault(executor, Executor(executor, kind))

    def remove(self, executor: int) -> Executor | None:
        return self._by_id.pop(executor, None)

    def get(self, executor: int) -> Executor | None:
        return self._by_id.get(executor)

    def __getitem__(self, executor: int) -> Executor:
        return self._by_id[executor]

    def __contains__(self, executor: int) -> bool:
        return executor in self._by_id

    def __iter__(self) -> Iterator[Executor]:
        return iter(list(self._by_id.values()))

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def started(self) -> int:
        """Ids below were used."""
        return self._next

    def holders(self) -> list[int]:
        """Who holds the job's state, as far as is known."""
        return [one.executor for one in self._by_id.values() if one.state == "member"]

    def last_beat(self, executor: int) -> m.Beat | None:
        """Of one that holds the state: for no other does anybody wait."""
        one = self._by_id.get(executor)
        return one.beat if one is not None and one.state == "member" else None

    def waited_s(self) -> float:
        """How long somebody has been waiting for others in the exchange, as far as heartbeats tell."""
        beats = [one.beat for one in self._by_id.values() if one.state == "member" and one.beat is not None]
        return max((beat.place_s for beat in beats if beat.place == "exchange"), default=0.0)

    def spares(self) -> list[Executor]:
        """Set up or about to be, and needed for nothing yet."""
        return [one for one in self._by_id.values() if one.state in ("starting", "warm") and not one.needed]

    def choose(self, devices: DeviceSet, members: Iterable[int]) -> Wanted:
        """Members first and in their order, then whoever is furthest on the way to become one."""
        left = Counter(devices)
        order = {executor: position for position, executor in enumerate(members)}
        alive = [one for one in self._by_id.values() if one.state != "leaving" and not one.noticed and not one.unwanted]
        alive.sort(key=lambda one: (_PREFERENCE[one.state], order.get(one.executor, 0), one.executor))
        staying: list[int] = []
        coming: list[int] = []
        for one in alive:
            if left[one.kind] > 0:
                left[one.kind] -= 1
                (staying if one.executor in order else coming).append(one.executor)
        missing = [kind for kind in devices.kinds for _ in range(left[kind])]
        return Wanted(tuple(sorted(staying, key=order.__getitem__)), tuple(coming), tuple(missing))

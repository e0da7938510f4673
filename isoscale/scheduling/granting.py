"""From what jobs hold to what they shall hold, one grant at a time. Part of `scheduling.driver`; no I/O, no clock.

Devices are taken away at once, and given when all that a job shall get are free. Knows nothing of why.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from isoscale.scheduling.device_pool import DevicePool
from isoscale.scheduling.driving import CancelRun, Grant, Instruction, KillRun, Launch, PauseRun, SendGrant
from isoscale.scheduling.runs import Run
from isoscale.scheduling.state import Allocation, num_devices

__all__ = ["Granting", "less"]


class Granting:
    def __init__(self, pool: DevicePool, runs: dict[str, Run]) -> None:
        self._pool = pool
        self._runs = runs
        #: names of jobs whose devices are not what was decided, in the order of decisions
        self.pending: dict[str, None] = {}
        #: jobs with devices that were taken away and not seen free, or that were told to end, and that answer
        self._giving: set[str] = set()
        #: the earliest time at which devices must be free that are not
        self.deadline_s = math.inf
        self.out: list[Instruction] = []
        self._num_decisions = 0

    # ---- what is to be done ----

    def want(self, run: Run) -> None:
        """The newest decision about it counts, and has its place in the order of decisions."""
        self.pending.pop(run.name, None)
        self.pending[run.name] = None
        self._num_decisions += 1
        run.decision = self._num_decisions

    def forget_want(self, run: Run) -> None:
        self.pending.pop(run.name, None)

    def unsettled(self) -> list[Run]:
        return [self._runs[job] for job in self.pending]

    def forget(self, run: Run) -> None:
        """It is over, and holds nothing."""
        del self._runs[run.name]
        self.pending.pop(run.name, None)
        self._giving.discard(run.name)

    def settle(self) -> None:
        """Carry out what can be."""
        for job in list(self.pending):
            if self._advance(self._runs[job]):
                del self.pending[job]
        if self.pending and not self._giving:
            self._break_circle()

    def _advance(self, run: Run) -> bool:
        """A step from what the job holds towards what it shall hold; True if none is left."""
        if not run.is_free_to_go:
            return True
        if not run.is_up:
            return self._launch(run)
        if run.state == "pausing":
            return False  # it cannot turn back; when it has ended it is launched again, if it is wanted
        if not run.wanted:
            self.pause(run, run.why)
            return True
        return self._regrant(run)

    def _launch(self, run: Run) -> bool:
        if not run.wanted:
            return True
        # What is alive of an earlier attempt would be in the way of the next one.
        if run.dropped or not self._are_free(run.wanted):
            return False
        self.grant(run, self._take(run, run.wanted))
        self.start(run, run.why)
        return True

    def start(self, run: Run, why: str) -> None:
        run.attempt += 1
        run.is_up = True
        self.out.append(Launch(run.name, run.attempt, self.grant_of(run, why), run.attempt > 1))
        if run.state != "pausing":
            run.turn("starting", why, self.out)

    def _regrant(self, run: Run) -> bool:
        kept = self.kept(run)
        lacking = less(run.wanted, self._pool.allocation_of(kept)) if kept else run.wanted
        if self._are_free(lacking):
            if lacking or len(kept) < len(run.granted):
                self.grant(run, [*kept, *self._take(run, lacking)])
            elif run.sent == (run.number, run.batch):
                return True
            elif run.sent[0] == run.number:
                run.number += 1  # only the batch changes
            lacking = ()
        elif run.deadline_s < math.inf and self._shrinks_to(run, kept):
            self.grant(run, kept)
        else:
            return False  # one change instead of two: it goes on as it is until it can get all
        self.send(run, run.why)
        return not lacking

    def _shrinks_to(self, run: Run, kept: Sequence[int]) -> bool:
        return max(1, run.min_devices) <= len(kept) < len(run.granted)

    def kept(self, run: Run) -> list[int]:
        """Of the devices that it was granted, those that it shall keep."""
        left = dict(run.wanted)
        kept: list[int] = []
        for number in sorted(run.granted):
            node = self._pool.node_of[number]
            if left.get(node, 0) > 0:
                left[node] -= 1
                kept.append(number)
        return kept

    def _are_free(self, allocation: Allocation) -> bool:
        free = self._pool.free_by_node
        for node, count in allocation:  # noqa: SIM110 (asked for every job that waits, at every change)
            if len(free[node]) < count:
                return False
        return True

    def _take(self, run: Run, allocation: Allocation) -> list[int]:
        taken: list[int] = []
        for node, count in allocation:
            taken += self._pool.take(node, count, run.avoids)
        return taken

    def _break_circle(self) -> None:
        """Every job that waits does so for devices that another one of them keeps until it gets others."""
        why = "makes room: jobs wait for each other's devices"
        waiting = [run for run in self.unsettled() if run.is_up and len(self.kept(run)) < len(run.granted)]
        for run in waiting:
            # On what it keeps, and what is free of what it shall get, it may run until the rest is free.
            kept = self.kept(run)
            lacking = less(run.wanted, self._pool.allocation_of(kept))
            there = [(node, min(count, len(self._pool.free_by_node[node]))) for node, count in lacking]
            if len(kept) + sum(count for _, count in there) >= max(1, run.min_devices):
                self.grant(run, [*kept, *self._take(run, tuple(there))])
                self.send(run, why)
                return
        for run in waiting[:1]:
            self.pause(run, why)

    def idle_swaps(self) -> list[tuple[Run, Run]]:
        """Pairs of jobs that shall have exactly what the other has."""
        held: dict[tuple[Allocation, Allocation], Run] = {}
        pairs: list[tuple[Run, Run]] = []
        for run in self.unsettled():
            if not run.is_up or not run.wanted or run.state == "pausing" or run.dropped:
                continue
            has = self._pool.allocation_of(run.granted)
            other = held.pop((run.wanted, has), None)
            if other is not None:
                pairs.append((other, run))
            elif has != run.wanted:
                held[has, run.wanted] = run
        return pairs

    # ---- grants ----

    def grant(self, run: Run, devices: Iterable[int]) -> None:
        """The newest grant names these and no others."""
        run.number += 1
        granted = set(devices)
        if run.granted and (lost := run.granted - granted):
            run.dropped.update(dict.fromkeys(lost, run.number))
            self._giving.add(run.name)
        run.granted = granted
        if run.deadline_s < self.deadline_s:
            self.deadline_s = run.deadline_s

    def grant_of(self, run: Run, why: str) -> Grant:
        """To be sent now."""
        run.sent = (run.number, run.batch)
        full = num_devices(run.wanted) == len(run.granted)
        return Grant(
            number=run.number,
            devices=self._pool.names_of(run.granted),
            allocation=run.wanted if full else self._pool.allocation_of(run.granted),
            batch=run.batch if run.granted else 0,
            deadline_s=run.deadline_s,
            reason=why,
            decision=run.decision,
        )

    def send(self, run: Run, why: str) -> None:
        self.out.append(SendGrant(run.name, self.grant_of(run, why)))
        if run.state == "running":
            run.turn("resizing", why, self.out)

    def send_rest(self, run: Run, why: str) -> None:
        """Devices were taken from it for a reason of their own. Without any it ends, whatever it shall get later."""
        if run.granted and run.wanted:
            self.send(run, why)
        else:
            self.pause(run, why)

    def pause(self, run: Run, why: str) -> None:
        self.grant(run, ())
        self._giving.add(run.name)
        self.out.append(PauseRun(run.name, self.grant_of(run, why)))
        run.turn("pausing", why, self.out)

    def cancel(self, run: Run, why: str) -> None:
        self.grant(run, ())
        self._giving.add(run.name)
        self.out.append(CancelRun(run.name, self.grant_of(run, why)))

    def say_again(self, run: Run, why: str) -> None:
        """Whoever should have heard it may not have."""
        if run.is_cancelling:
            self.out.append(CancelRun(run.name, self.grant_of(run, why)))
        elif run.state == "pausing":
            self.out.append(PauseRun(run.name, self.grant_of(run, why)))
        else:
            self.out.append(SendGrant(run.name, self.grant_of(run, why)))

    # ---- devices that become free ----

    def release(self, run: Run, number: int) -> None:
        """Nothing of the job runs on a device that it may not use any more."""
        if run.dropped.pop(number, None) is None:
            return
        self._pool.free(number)
        if not run.dropped:
            run.deadline_s = math.inf
            self.look_at_giving(run)

    def drop(self, run: Run, alive: set[int]) -> None:
        """Its run has ended: nothing is granted any more, and what is not `alive` is free."""
        if not alive and not run.dropped:
            for number in run.granted:
                self._pool.free(number)
            run.granted = set()
            run.deadline_s = math.inf
        else:
            run.dropped.update(dict.fromkeys(run.granted, run.number))
            run.granted = set()
            for number in [number for number in run.dropped if number not in alive]:
                self.release(run, number)
        self.look_at_giving(run)

    def look_at_giving(self, run: Run) -> None:
        """Whether others may wait for what it was told to give."""
        told_to_end = run.is_up and (run.state == "pausing" or run.is_cancelling)
        if not run.is_silent and (run.dropped or told_to_end):
            self._giving.add(run.name)
        else:
            self._giving.discard(run.name)

    # ---- devices that do not ----

    def end_overdue(self, now: float) -> None:
        """Nothing waits for what does not go by itself."""
        for run in [run for run in self._runs.values() if run.deadline_s <= now]:
            run.deadline_s = math.inf
            whole = run.is_up and (run.is_cancelling or run.state == "pausing")
            if run.dropped or whole:
                self._kill(run, whole, "its time is over")
        self.deadline_s = min((run.deadline_s for run in self._runs.values()), default=math.inf)

    def kill_left(self, run: Run) -> None:
        """Nobody looks after what is alive of a run that has ended."""
        if run.dropped:
            self._kill(run, False, "its run has ended")

    def _kill(self, run: Run, whole: bool, why: str) -> None:
        self.out.append(KillRun(run.name, self._pool.names_of(run.dropped), whole, why))


def less(allocation: Allocation, part: Sequence[tuple[int, int]]) -> Allocation:
    """What is left of an allocation without a part of it.

    >>> less(((0, 2), (1, 1)), ((0, 1), (1, 1)))
    ((0, 1),)
    """
    counts = dict(part)
    left = [(node, count - counts.get(node, 0)) for node, count in allocation]
    return tuple([(node, count) for node, count in left if count > 0])

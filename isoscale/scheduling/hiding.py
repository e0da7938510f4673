"""Which jobs the policy does not decide about, and what it is told that nodes have for the others.

Part of `scheduling.driver`; no I/O, no clock. A job is hidden while it does not answer, waits for another try, or is
held back by its owner: what it holds counts as not there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from isoscale.scheduling.device_pool import DevicePool
from isoscale.scheduling.events import AllocationChanged, CapacityChanged, Event, JobOffered, JobWithheld
from isoscale.scheduling.retries import Retries
from isoscale.scheduling.runs import Run

__all__ = ["Feed", "Hiding"]


class Feed(Protocol):
    def __call__(self, event: Event, why: str = "urgent", deadline_s: float = math.inf) -> None:
        """Tell the controller, and note what it decides at once: why, and by when what that takes must be free."""


class Hiding:
    def __init__(self, pool: DevicePool, sizes: Sequence[int], retries: Retries, feed: Feed) -> None:
        """`sizes`: devices of each node."""
        self._pool, self._retries, self._feed = pool, retries, feed
        self._hidden: dict[str, Run] = {}
        #: what the controller was told that nodes have
        self._told = list(sizes)

    @property
    def is_any(self) -> bool:
        return bool(self._hidden)

    def hide(self, run: Run) -> None:
        """The policy decides no more about it, and others do not wait for what it holds."""
        self._hidden[run.name] = run
        self._feed(JobWithheld(run.name))

    def show(self, run: Run) -> None:
        """Unless something else keeps it from the policy."""
        if run.is_silent or run.is_paused_by_owner or run.is_cancelling or run.name in self._retries.waiting:
            return
        if self._hidden.pop(run.name, None) is not None:
            self._feed(AllocationChanged(run.name, run.wanted))
            self.tell_capacity()
            self._feed(JobOffered(run.name))

    def forget(self, run: Run) -> None:
        """It is over."""
        if self._hidden and self._hidden.pop(run.name, None) is not None:
            self.tell_capacity()

    def tell_capacity(self, deadline_s: float = math.inf) -> None:
        """What nodes have for jobs that the policy sees. Devices that hidden jobs let go of go to their owner first."""
        pool = self._pool
        kept, leaving = [0] * len(self._told), [0] * len(self._told)
        for run in self._hidden.values():
            for number in run.granted:
                kept[pool.node_of[number]] += 1
            for number in run.dropped:
                leaving[pool.node_of[number]] += 1
        for node, told in enumerate(self._told):
            count = max(0, pool.working(node) - kept[node] - max(leaving[node], pool.owed(node)))
            if count != told:
                self._told[node] = count
                self._feed(CapacityChanged(node, count), "reclaimed", deadline_s)

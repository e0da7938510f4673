"""Performs a controller's decisions in virtual time: who runs, how far each job is, when it will be done.

The counterpart of the backends that start processes. It knows costs, interference and each job's truth; it decides
nothing, keeps no clock and no queue of events: it says when it wants to be woken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from isoscale.scheduling.state import Allocation, Cluster, Shape, num_devices
from isoscale.sim.costs import Costs
from isoscale.sim.interference import Slowdown
from isoscale.sim.job import Pace, SimJob
from isoscale.sim.ledger import Ledger

__all__ = ["Live", "SimulatedBackend", "Wake"]

Wake = Literal["finish", "crash", "switch"]


class Live:
    """A job between its submission and its end."""

    __slots__ = (
        "allocation",
        "attempt",
        "batch",
        "crash",
        "done",
        "factor",
        "first_start_s",
        "held_since",
        "index",
        "job",
        "known",
        "pace",
        "rescales",
        "shape",
        "since",
        "stretch",
        "switch_at",
        "truth",
        "version",
        "working",
    )

    def __init__(self, index: int, job: SimJob) -> None:
        self.index = index
        self.job = job
        self.truth = job.truth.fresh()
        self.allocation: Allocation = ()
        #: of the driver's last launch
        self.attempt = 0
        self.held_since = 0.0
        #: devices that train, as opposed to getting ready; their pace; the batch
        self.shape: Shape = ()
        self.working = 0
        self.batch = 0
        self.pace: Pace | None = None
        #: work done at `since`, which may lie ahead: the job stands still until then
        self.done = 0.0
        self.since = 0.0
        #: what neighbours leave of its speed, and how many times as long they make a start
        self.factor = 1.0
        self.stretch = 1.0
        #: when newcomers will be ready; infinity if nobody is getting ready
        self.switch_at = math.inf
        #: counts changes: a timer set before the last one is void
        self.version = 0
        #: crashes that have happened
        self.crash = 0
        self.first_start_s: float | None = None
        self.rescales = 0
        #: the speed model that the controller has
        self.known: object = job.declared

    def done_at(self, now: float) -> float:
        if self.pace is None or now <= self.since:
            return self.done
        return self.pace.after(self.done, (now - self.since) * self.factor)


class SimulatedBackend:
    """Runs jobs on a cluster that is not there. `wake(t, what, live)` asks to be called at a time."""

    def __init__(
        self,
        cluster: Cluster,
        costs: Costs,
        interference: Slowdown,
        ledger: Ledger,
        wake: Callable[[float, Wake, Live], None],
        *,
        is_rented: bool = False,
    ) -> None:
        self._kinds = [node.kind for node in cluster.nodes]
        self._costs = costs
        self._interference = interference
        self._ledger = ledger
        self._wake = wake
        self._is_rented = is_rented
        #: jobs on each node; kept only if they matter to each other
        self._on_node: list[dict[int, Live]] = [{} for _ in cluster.nodes]

    def place(self, live: Live, allocation: Allocation, batch: int, now: float, late_s: float = 0.0) -> float:
        """Gives the job these devices, or none; returns how long it stands still. `late_s`: devices that are new to it
        are free so much later."""
        costs = self._costs_of(live)
        self.settle(live, now)
        old, first = live.allocation, live.first_start_s is None
        self._hold(live, allocation, now)
        live.version += 1
        live.switch_at = math.inf
        if not allocation:
            live.pace, live.working, live.shape = None, 0, ()
            return 0.0
        if first:
            live.first_start_s = now
        else:
            live.rescales += 1
        shape = tuple([(self._kinds[node], count) for node, count in allocation])
        grows = costs.ready_s > 0 and bool(old) and batch == live.batch and _contains(allocation, old)
        if grows and now >= live.since:
            live.switch_at = now + costs.ready_s + late_s
            self._reckon(live)
            return costs.rescale_s
        pause_s = costs.rescale_s if old else late_s + live.stretch * (costs.start_s if first else costs.resume_s)
        self._begin(live, shape, batch, now)
        # A job that was still starting is not ready any sooner.
        live.since = max(live.since, now + pause_s) if old else now + pause_s
        self._reckon(live)
        return pause_s

    def switch(self, live: Live, now: float) -> None:
        """Newcomers are ready: from now on all devices train, after a moment's pause."""
        self.settle(live, now)
        live.version += 1
        live.switch_at = math.inf
        shape = tuple([(self._kinds[node], count) for node, count in live.allocation])
        self._begin(live, shape, live.batch, now)
        live.since = now + self._costs_of(live).rescale_s
        self._reckon(live)

    def end(self, live: Live, now: float) -> None:
        """The job is over; its devices are free."""
        self.place(live, (), 0, now)

    def lose_work(self, live: Live, seconds: float, now: float) -> None:
        """Work of the last `seconds` of training is gone."""
        self.settle(live, now)
        if live.pace is not None and seconds > 0:
            live.done = max(0.0, 2 * live.done - live.pace.after(live.done, seconds * live.factor))

    def let_go(self, live: Live, now: float) -> float:
        """Seconds that the job needs to let go of devices: the step under way, then the handover.

        Called before the devices change. A step that would take too long is given up, and its work is lost.
        """
        costs = self._costs_of(live)
        step_s, patience_s = live.truth.step_s(live.shape, live.batch), costs.patience_s
        if patience_s and step_s > patience_s:
            self.lose_work(live, step_s, now)
            step_s = patience_s
        return step_s + costs.release_s

    def settle(self, live: Live, now: float) -> None:
        """Books progress up to now."""
        if live.pace is not None and now > live.since:
            live.done = live.done_at(now)
            level = live.working * live.pace.busy * live.factor
            self._ledger.ran.append((live.since, now, level))
            self._ledger.busy[live.index] = self._ledger.busy.get(live.index, 0.0) + (now - live.since) * level
            live.since = now

    def _costs_of(self, live: Live) -> Costs:
        return live.job.costs or self._costs

    def _begin(self, live: Live, shape: Shape, batch: int, now: float) -> None:
        live.shape, live.batch = shape, batch
        live.working = sum([count for _, count in shape])
        live.pace = live.truth.pace(shape, batch, live.done, now)

    def _reckon(self, live: Live) -> None:
        """Sets timers for what comes next if nothing changes: newcomers ready, a crash, the end."""
        assert live.pace is not None
        if live.switch_at < math.inf:
            self._wake(live.switch_at, "switch", live)
        goal, what = live.truth.total_work, "finish"
        if live.crash < len(live.job.crashes) and live.job.crashes[live.crash].work < goal:
            goal, what = live.job.crashes[live.crash].work, "crash"
        at = live.since + live.pace.seconds(live.done, goal) / live.factor
        if at < math.inf:
            self._wake(at, "finish" if what == "finish" else "crash", live)

    def _hold(self, live: Live, allocation: Allocation, now: float) -> None:
        if live.allocation and now > live.held_since:
            self._ledger.held.append((live.index, live.held_since, now, num_devices(live.allocation)))
            if self._is_rented:
                for node, count in live.allocation:
                    self._ledger.rented.append((live.index, live.held_since, now, self._kinds[node], count))
        live.held_since = now
        old = live.allocation
        live.allocation = allocation
        if self._interference.matters:
            self._disturb(live, old, now)

    def _disturb(self, live: Live, old: Allocation, now: float) -> None:
        """Neighbours, old and new, may suffer more or less than before."""
        concerned: dict[int, Live] = {live.index: live}
        for node, _ in old:
            self._on_node[node].pop(live.index, None)
            concerned |= self._on_node[node]
        for node, _ in live.allocation:
            concerned |= self._on_node[node]
            self._on_node[node][live.index] = live
        for one in concerned.values():
            others = list(self._beside(one))
            factor, stretch = self._interference.kept(one, others), self._interference.stretch(one, others)
            if (factor, stretch) == (one.factor, one.stretch):
                continue
            self.settle(one, now)
            if one is not live and one.since > now:
                one.since = now + (one.since - now) * stretch / one.stretch
            one.factor, one.stretch = factor, stretch
            if one is not live and one.pace is not None:
                one.version += 1
                self._reckon(one)

    def _beside(self, live: Live) -> Iterable[Live]:
        """The jobs with which it shares a node, each once."""
        found = {other.index: other for node, _ in live.allocation for other in self._on_node[node].values()}
        found.pop(live.index, None)
        return found.values()


def _contains(allocation: Sequence[tuple[int, int]], part: Iterable[tuple[int, int]]) -> bool:
    held = dict(allocation)
    return all(held.get(node, 0) >= count for node, count in part)

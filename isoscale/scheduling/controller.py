"""Keeps the book of one cluster, asks the policy when it is time, and says what to do. No I/O, no clock of its own.

The live cluster service and the simulator drive the same controller:

    for decision in controller.feed(event, now): perform(decision)      # urgent ones: devices that must be given back
    if now >= controller.next_decision_s(now):
        for decision in controller.decide(now): perform(decision)

Decisions count as performed when they are returned; if the world turns out otherwise, `AllocationChanged` corrects the
book. Decisions that do not fit (`validity`) are refused before any is booked.
Quotas are kept here, whatever the policy thinks of them (`quotas`).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from isoscale.scheduling.events import (
    AllocationChanged,
    CapacityChanged,
    Event,
    JobEnded,
    JobOffered,
    JobProgress,
    JobSubmitted,
    JobWithheld,
    PricesChanged,
    RequestChanged,
    SpeedLearned,
)
from isoscale.scheduling.experience import Experience
from isoscale.scheduling.money import Prices
from isoscale.scheduling.policy import Policy
from isoscale.scheduling.quotas import within_quotas
from isoscale.scheduling.state import (
    Allocation,
    Cluster,
    ClusterState,
    Decision,
    JobRequest,
    JobView,
    Objective,
    Pause,
    Reject,
    Resize,
    SpeedModel,
    num_devices,
)
from isoscale.scheduling.validity import check_decisions

__all__ = ["Controller"]


class Controller:
    """One cluster under one policy.

    `interval_s` (None: the policy's own) puts decisions at its multiples, counted from time 0; a round in which nothing
    happened is skipped unless the policy watches time. With 0 every event makes a decision due at once.
    """

    def __init__(
        self,
        cluster: Cluster,
        policy: Policy,
        *,
        interval_s: float | None = None,
        quotas: Mapping[str, int] | None = None,
        objective: Objective = "jct",
        rescale_s: float = 0.0,
        shares: bool = True,
        quiet_s: float = 0.0,
    ) -> None:
        """`shares` False: jobs of one application learn nothing from each other. `quiet_s`: how often a policy that
        watches time is asked while nothing happens."""
        self.cluster = cluster
        self.policy = policy
        self.interval_s = policy.interval_s if interval_s is None else interval_s
        self._quotas = MappingProxyType(dict(quotas or {}))
        self._objective: Objective = objective
        #: may be replaced: told with the next decision
        self.rescale_s = rescale_s
        self._quiet_s = quiet_s
        self._prices = Prices()
        self._experience = Experience() if shares else None
        #: what jobs of a named application measured themselves, without what others told them
        self._own: dict[str, SpeedModel] = {}
        self._capacity = [node.num_devices for node in cluster.nodes]
        #: the same, to be shown
        self._capacity_shown = tuple(self._capacity)
        self._free = list(self._capacity)
        self._capacity_of = cluster.by_kind(self._capacity)
        self._free_of = dict(self._capacity_of)
        self._has_priorities = False
        self._waiting: dict[str, JobView] = {}
        self._running: dict[str, JobView] = {}
        #: read-only windows on the two, and on what else a policy sees
        self._waiting_view = MappingProxyType(self._waiting)
        self._running_view = MappingProxyType(self._running)
        self._capacity_view = MappingProxyType(self._capacity_of)
        self._free_view = MappingProxyType(self._free_of)
        #: jobs that are not to be decided about; what they hold is booked nowhere here
        self._withheld: dict[str, JobView] = {}
        self._remaining: dict[str, float] = {}
        self._remaining_view = MappingProxyType(self._remaining)
        #: a job was paused and stands at the end of the waiting line instead of at its place
        self._out_of_order = False
        self._submitted = 0
        self._changed = False
        self._decided_s = -math.inf
        #: rounds in which the policy was asked
        self.num_rounds = 0

    @property
    def waiting(self) -> Mapping[str, JobView]:
        """Jobs without devices."""
        return self._waiting_view

    @property
    def running(self) -> Mapping[str, JobView]:
        return self._running_view

    def job(self, name: str) -> JobView:
        """The job as it stands; KeyError if it is unknown or ended."""
        return self._running.get(name) or self._waiting.get(name) or self._withheld[name]

    @property
    def withheld(self) -> Mapping[str, JobView]:
        """Jobs that the policy does not see."""
        return MappingProxyType(self._withheld)

    def feed(self, event: Event, now: float) -> list[Decision]:
        """Notes what happened. Returns decisions that cannot wait: who gives up devices that are no longer ours."""
        self._changed = self._changed or not isinstance(event, JobProgress)
        match event:
            case JobSubmitted(request, speed, remaining_work):
                name = request.name
                if name in self._waiting or name in self._running or name in self._withheld:
                    raise ValueError(f"job {name!r} was submitted twice")
                told = self._informed(request, speed)
                self._put(JobView(request=request, speed=told, order=self._submitted, since_s=now))
                self._submitted += 1
                self._has_priorities = self._has_priorities or request.priority != 0
                if remaining_work is not None:
                    self._remaining[name] = remaining_work
            case JobEnded(name):
                self._remaining.pop(name, None)
                self._own.pop(name, None)
                if name in self._withheld:
                    del self._withheld[name]
                else:
                    view = self._running.pop(name, None) or self._waiting.pop(name)
                    self._give_back(view.allocation)
            case JobProgress(name, work):
                self._remaining[name] = work
            case SpeedLearned(name, speed):
                view = self.job(name)
                self._put(replace(view, speed=self._informed(view.request, speed)))
                if self._experience and self._experience.note(view.request.application, name, speed):
                    self._tell_others(view.request.application)
            case AllocationChanged(name, allocation):
                view = self.job(name)
                self._apply(view, allocation, view.batch, now)
                return self._shed_all(now)
            case CapacityChanged(node, count):
                change = count - self._capacity[node]
                self._capacity[node] = count
                self._capacity_shown = tuple(self._capacity)
                self._capacity_of[self.cluster.nodes[node].kind] += change
                self._give_back(((node, change),))
                return self._shed(node, now) if self._free[node] < 0 else []
            case RequestChanged(request):
                self._put(replace(self.job(request.name), request=request))
                self._has_priorities = self._has_priorities or request.priority != 0
                return self._trim(self.job(request.name), now)
            case JobWithheld(name):
                if name not in self._withheld:
                    hidden = self._running.pop(name, None) or self._waiting.pop(name)
                    self._give_back(hidden.allocation)
                    self._withheld[name] = hidden
            case JobOffered(name):
                offered = self._withheld.pop(name, None)
                if offered is not None:
                    self._take(offered.allocation)
                    self._put(offered)
                    self._out_of_order = True
                    return self._shed_all(now)
            case PricesChanged(prices):
                self._prices.change(prices, now)
        return []

    def govern(
        self,
        *,
        policy: Policy | None = None,
        interval_s: float | None = None,
        quotas: Mapping[str, int] | None = None,
    ) -> None:
        """Another policy, at its interval or the one given, or other quotas, from the next decision on: it is due."""
        if policy is not None:
            self.policy = policy
            self.interval_s = policy.interval_s if interval_s is None else interval_s
        if quotas is not None:
            self._quotas = MappingProxyType(dict(quotas))
        self._changed = True

    def _informed(self, request: JobRequest, speed: SpeedModel) -> SpeedModel:
        if self._experience is None or not request.application:
            return speed
        self._own[request.name] = speed
        return self._experience.informed(request.application, speed)

    def _tell_others(self, application: str) -> None:
        """Jobs of an application hear what one of them was the first to measure."""
        assert self._experience is not None
        for view in [*self._waiting.values(), *self._running.values()]:
            if view.request.application == application:
                told = self._experience.informed(application, self._own.get(view.name, view.speed))
                self._put(replace(view, speed=told))

    def next_decision_s(self, now: float) -> float:
        """When `decide` should be called next, at the earliest `now`; infinity if nothing is to be decided."""
        if not self._waiting and not self._running:
            return math.inf
        if not self._changed and not self.policy.watches_time:
            return math.inf
        if self.interval_s <= 0:
            return now
        at = now if self._changed else max(now, self._decided_s + self._quiet_s)
        # The relative part is for clocks that count from 1970, where neighbouring quotients are further apart.
        due = math.ceil(at / self.interval_s * (1 - 1e-12) - 1e-9) * self.interval_s
        return due if due > self._decided_s else due + self.interval_s

    def decide(self, now: float) -> list[Decision]:
        """Asks the policy, notes its decisions as performed, returns them: pauses and shrinkings before growth.

        Raises ValueError, with the book as it was, if one of them is impossible.
        """
        self._decided_s = now
        self.num_rounds += 1
        state = self.state(now)
        decided = self.policy.decide(state)
        if self._quotas:
            # Further questions go to a copy: the policy remembers what it saw of the whole cluster.
            decided = within_quotas(
                state, decided, lambda part: copy.copy(self.policy).decide(part), gang=self.policy.gang
            )
        decisions: list[Decision] = []
        if decided:
            check_decisions(state, decided)
            decisions = sorted(decided, key=self._growth) if len(decided) > 1 else list(decided)
        for decision in decisions:
            self._perform(decision, now)
        # A policy that moves step by step goes on in the next round; without rounds it would be asked for ever.
        self._changed = bool(decisions) and self.interval_s > 0
        return decisions

    def state(self, now: float) -> ClusterState:
        """What the policy would see now."""
        if self._out_of_order:
            self._out_of_order = False
            ordered = sorted(self._waiting.values(), key=lambda job: job.order)
            self._waiting = {job.name: job for job in ordered}
            self._waiting_view = MappingProxyType(self._waiting)
        return ClusterState(
            now=now,
            cluster=self.cluster,
            capacity=self._capacity_shown,
            free=tuple(self._free),
            capacity_of=self._capacity_view,
            free_of=self._free_view,
            has_priorities=self._has_priorities,
            waiting=self._waiting_view,
            running=self._running_view,
            remaining=self._remaining_view,
            quotas=self._quotas_left() if self._withheld and self._quotas else self._quotas,
            objective=self._objective,
            interval_s=self.interval_s,
            rescale_s=self.rescale_s,
            prices=self._prices.now,
            usual_prices=self._prices.usual(now) if self._prices.now else {},
        )

    def _quotas_left(self) -> Mapping[str, int]:
        """What jobs that the policy does not see hold counts against their tenants' quotas."""
        left = dict(self._quotas)
        for view in self._withheld.values():
            if view.request.tenant in left:
                left[view.request.tenant] = max(0, left[view.request.tenant] - view.num_devices)
        return left

    def _growth(self, decision: Decision) -> int:
        if isinstance(decision, Pause | Reject):
            return -1_000_000
        return num_devices(decision.allocation) - self.job(decision.job).num_devices

    def _perform(self, decision: Decision, now: float) -> None:
        view = self.job(decision.job)
        match decision:
            case Reject(name):
                del self._waiting[name]
                self._own.pop(name, None)
                self._remaining.pop(name, None)
            case Pause():
                self._apply(view, (), 0, now)
            case _:
                self._apply(view, decision.allocation, decision.batch, now)

    def _apply(self, view: JobView, allocation: Allocation, batch: int, now: float) -> None:
        if view.name not in self._withheld:
            self._give_back(view.allocation)
            self._take(allocation)
        self._put(
            # Not by `replace`, which costs more than the rest of this.
            JobView(
                request=view.request,
                speed=view.speed,
                order=view.order,
                status="running" if allocation else "pending" if view.first_started_s is None else "paused",
                allocation=allocation,
                batch=batch,
                since_s=now,
                service_before_s=view.service_s(now),
                running_before_s=view.running_s(now),
                first_started_s=now if view.first_started_s is None and allocation else view.first_started_s,
                num_restarts=view.num_restarts + (view.first_started_s is not None and bool(allocation)),
                num_rebatches=view.num_rebatches + (0 != batch != view.batch != 0),
            )
        )

    def _put(self, view: JobView) -> None:
        """Files the view where its status belongs."""
        name = view.request.name
        if name in self._withheld:
            self._withheld[name] = view
            return
        home, other = (self._running, self._waiting) if view.allocation else (self._waiting, self._running)
        if other.pop(name, None) is not None and home is self._waiting:
            self._out_of_order = True
        home[name] = view

    def _give_back(self, allocation: Allocation) -> None:
        for node, count in allocation:
            self._free[node] += count
            self._free_of[self.cluster.nodes[node].kind] += count

    def _take(self, allocation: Allocation) -> None:
        for node, count in allocation:
            self._free[node] -= count
            self._free_of[self.cluster.nodes[node].kind] -= count

    def _trim(self, view: JobView, now: float) -> list[Decision]:
        """Its owner wants it to have fewer devices than it has; policies that only ever grow would not see to it."""
        surplus = view.num_devices - max(view.request.max_devices, view.request.min_devices)
        if surplus <= 0 or view.name in self._withheld or not view.request.preemptible:
            return []
        held = dict(view.allocation)
        for node in reversed(list(held)):
            taken = min(surplus, held[node])
            held[node] -= taken
            surplus -= taken
        decision = Resize(view.name, tuple((node, count) for node, count in held.items() if count), view.batch)
        self._perform(decision, now)
        return [decision]

    def _shed_all(self, now: float) -> list[Decision]:
        """Where more devices are held than there are: a job turned out to hold more than was decided."""
        short = [node for node, free in enumerate(self._free) if free < 0]
        return [decision for node in short for decision in self._shed(node, now)]

    def _shed(self, node: int, now: float) -> list[Decision]:
        """Takes devices of `node` back: low priority first, then the latest to start; shrinks rather than pauses."""
        decisions: list[Decision] = []
        holders = [view for view in self._running.values() if any(n == node for n, _ in view.allocation)]
        holders.sort(key=lambda view: (view.request.priority, -(view.first_started_s or 0.0), view.name))
        for view in holders:
            if self._free[node] >= 0:
                break
            held = dict(view.allocation)
            held[node] -= min(held[node], -self._free[node])
            rest = tuple((n, count) for n, count in held.items() if count)
            if num_devices(rest) < max(1, view.request.min_devices):
                decisions.append(Pause(view.name))
            else:
                decisions.append(Resize(view.name, rest, view.batch))
            self._perform(decisions[-1], now)
        return decisions

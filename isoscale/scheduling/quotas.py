"""Quotas per tenant, for every policy alike: the controller asks here, policies need not know.

The rule: *while a job waits for which its own tenant's quota has room, no other tenant holds more than its quota.*
Room is needed for all that the job asks for where policies give all or nothing, else for its minimum. Otherwise a
tenant may borrow what nobody else waits for; it gives that back in the first round in which somebody does. A tenant
with a job that cannot be paused does not borrow. A tenant without a quota has no limit.

    ask the policy about the whole cluster
    while by its answer some tenant holds too much:
        ask it about that tenant's jobs alone, on as many devices as the quota allows; this answer stands
        ask it about everybody else, on the devices that are left

So the policy itself chooses which of a tenant's jobs run within the quota, gangs stay gangs, and devices that a tenant
may not have go to others in the same round. Each turn settles one tenant: there are no more turns than quotas.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from isoscale.scheduling.state import Allocation, ClusterState, Decision, JobView, Pause, Reject, num_devices

__all__ = ["least_wanted", "others_want", "within_quotas"]

Ask = Callable[[ClusterState], Sequence[Decision]]


def within_quotas(state: ClusterState, decisions: Sequence[Decision], ask: Ask, *, gang: bool) -> list[Decision]:
    """What the policy decided about `state`, or what it answers when asked again, such that the rule holds.

    `ask` puts a question to the policy about a part of `state`: some of its jobs, and the devices that they may share.
    `gang` is the policy's.
    """
    settled: list[Decision] = []
    tenants: set[str] = set()
    rest, answer = state, list(decisions)
    while (tenant := _over(state, [*settled, *answer], tenants, gang)) is not None:
        tenants.add(tenant)
        quota = state.quotas[tenant]
        given = _allocations(rest, answer)
        mine = {name for name, job in _jobs(rest) if job.request.tenant == tenant}
        own = _part(rest, mine, _within(rest, [given[name] for name in mine], mine, quota))
        settled += _pause_the_latest(own, list(ask(own)), quota)
        after = _allocations(state, settled)
        capacity = list(state.capacity)
        for name, job in _jobs(state):
            if job.request.tenant in tenants:
                for node, count in after[name]:
                    capacity[node] -= count
        rest = _part(rest, {name for name, _ in _jobs(rest)} - mine, capacity)
        answer = list(ask(rest))
    return [*settled, *answer]


def least_wanted(waiting: Iterable[JobView], *, gang: bool) -> dict[str, int]:
    """By tenant, the fewest devices with which one of its waiting jobs would run."""
    least: dict[str, int] = {}
    for job in waiting:
        request = job.request
        wanted = request.requested_devices if gang else max(1, request.min_devices)
        least[request.tenant] = min(wanted, least.get(request.tenant, wanted))
    return least


def others_want(tenant: str, least: Mapping[str, int], held: Mapping[str, int], quotas: Mapping[str, int]) -> bool:
    """Whether a tenant other than this one waits with room in its quota: then this one must not borrow."""
    return any(
        other != tenant and held.get(other, 0) + wanted <= quotas.get(other, math.inf)
        for other, wanted in least.items()
    )


def _over(state: ClusterState, decisions: Sequence[Decision], settled: set[str], gang: bool) -> str | None:
    """The first tenant that holds more than it may after these decisions; those that are settled hold what they may."""
    after = _allocations(state, decisions)
    rejected = {decision.job for decision in decisions if isinstance(decision, Reject)}
    held: dict[str, int] = {}
    waiting: list[JobView] = []
    pinned: set[str] = set()
    for name, job in _jobs(state):
        tenant = job.request.tenant
        held[tenant] = held.get(tenant, 0) + num_devices(after[name])
        if after[name]:
            pinned |= set() if job.request.preemptible else {tenant}
        elif name not in rejected:
            waiting.append(job)
    least = least_wanted(waiting, gang=gang)
    for tenant, quota in sorted(state.quotas.items()):
        over = tenant not in settled and held.get(tenant, 0) > quota
        if over and (tenant in pinned or others_want(tenant, least, held, state.quotas)):
            return tenant
    return None


def _within(state: ClusterState, given: Sequence[Allocation], mine: set[str], quota: int) -> list[int]:
    """Devices per node, `quota` in all: those that a tenant's jobs hold, senior jobs first, then those it was given."""
    senior = sorted((job for name, job in state.running.items() if name in mine), key=_seniority)
    held = [0] * len(state.capacity)
    for job in senior:
        for node, count in job.allocation:
            held[node] += min(count, quota - sum(held))
    wanted = [0] * len(state.capacity)
    for allocation in given:
        for node, count in allocation:
            wanted[node] += count
    # Nodes of which it gets most come first: gangs want to be together.
    for node in sorted(range(len(held)), key=lambda i: (held[i] - wanted[i], i)):
        held[node] += max(0, min(wanted[node] - held[node], quota - sum(held)))
    return held


def _pause_the_latest(state: ClusterState, decisions: list[Decision], quota: int) -> list[Decision]:
    """For policies that never take devices from a running job: the latest jobs pause until the rest fit the quota."""
    after = _allocations(state, decisions)
    over = sum(map(num_devices, after.values())) - quota
    for job in sorted(state.running.values(), key=_seniority, reverse=True):
        if over > 0 and after[job.name] and job.request.preemptible:
            over -= num_devices(after[job.name])
            decisions = [decision for decision in decisions if decision.job != job.name] + [Pause(job.name)]
    return decisions


def _part(state: ClusterState, names: set[str], capacity: Sequence[int]) -> ClusterState:
    """The state as if there were only these jobs and these devices, and no quotas."""
    running = {name: job for name, job in state.running.items() if name in names}
    free = list(capacity)
    for job in running.values():
        for node, count in job.allocation:
            free[node] -= count
    return replace(
        state,
        capacity=tuple(capacity),
        free=tuple(free),
        capacity_of=state.cluster.by_kind(capacity),
        free_of=state.cluster.by_kind(free),
        waiting={name: job for name, job in state.waiting.items() if name in names},
        running=running,
        quotas={},
    )


def _allocations(state: ClusterState, decisions: Sequence[Decision]) -> dict[str, Allocation]:
    """What each job holds once these are performed."""
    after = {name: job.allocation for name, job in _jobs(state)}
    return after | {one.job: () if isinstance(one, Pause | Reject) else one.allocation for one in decisions}


def _jobs(state: ClusterState) -> Iterable[tuple[str, JobView]]:
    yield from state.running.items()
    yield from state.waiting.items()


def _seniority(job: JobView) -> tuple[bool, int, float, int]:
    """Ascending: who gives devices back last."""
    request = job.request
    return request.preemptible, -request.priority, job.first_started_s or 0.0, job.order

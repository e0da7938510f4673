"""Nodes for numbers of devices when crossing nodes costs speed: small jobs whole, large jobs in what is left.

A job that fits on one node suffers most from being scattered; one that needs several nodes anyway suffers little from
one more. So small jobs are placed first, whole; large ones fill up. Where a small job still has to be scattered, a large
one swaps devices with it, if what the small one gains by it is worth more than what the move costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from isoscale.scheduling.placement import Pool
from isoscale.scheduling.state import Allocation, Cluster, JobView, num_devices, shape_of

__all__ = ["pack"]


def pack(
    cluster: Cluster,
    capacity: Sequence[int],
    jobs: Sequence[JobView],
    sizes: Mapping[str, tuple[str, int]],
    values: Mapping[str, float],
    *,
    rescale_s: float,
    horizon_s: float,
) -> dict[str, Allocation]:
    """Allocations for `sizes`, (kind, number) by job name; `values` is what a job's work is worth.

    A job whose number stays keeps its devices unless a swap pays within `horizon_s`.
    """
    pool = Pool(cluster, capacity)
    placed: dict[str, Allocation] = {}
    moving: list[JobView] = []
    for job in jobs:
        kind, count = sizes.get(job.name, ("", 0))
        if count and _holds(cluster, job.allocation) == (kind, count) and pool.grab(job.allocation):
            placed[job.name] = job.allocation
        elif count:
            moving.append(job)
    node_size = {kind: max(1, cluster.node_size(kind)) for kind in cluster.kinds}

    def is_large(job: JobView) -> bool:
        kind, count = sizes[job.name]
        return count > node_size[kind]

    moving.sort(key=lambda job: (is_large(job), -sizes[job.name][1], job.order))
    for job in moving:
        kind, count = sizes[job.name]
        taken = pool.take(count, kind)
        assert taken is not None, f"{job.name}: {count} devices were planned and are not there"
        placed[job.name] = taken
    by_name = {job.name: job for job in jobs}
    free_to_move = {job.name for job in moving}
    scattered = [name for name, where in placed.items() if len(where) > 1 and not is_large(by_name[name])]
    for name in sorted(scattered, key=lambda name: (-values.get(name, 0.0), by_name[name].order)):
        _gather(cluster, pool, placed, by_name, name, values, free_to_move, rescale_s, horizon_s)
    return placed


def _gather(
    cluster: Cluster,
    pool: Pool,
    placed: dict[str, Allocation],
    jobs: Mapping[str, JobView],
    name: str,
    values: Mapping[str, float],
    free_to_move: set[str],
    rescale_s: float,
    horizon_s: float,
) -> None:
    """Puts the scattered job `name` on one node if there is room, or if one large job can make room at a profit."""
    job, count = jobs[name], num_devices(placed[name])
    kind = cluster.nodes[placed[name][0][0]].kind
    scattered_rate = job.speed.rate(shape_of(cluster, placed[name]))
    gain = values.get(name, 0.0) * (job.speed.rate(((kind, count),)) - scattered_rate) * horizon_s
    if name not in free_to_move:
        gain -= _cost(jobs[name], placed[name], cluster, values, rescale_s)
    if gain <= 0:
        return
    best: tuple[float, int, str] | None = None
    for node, where in enumerate(cluster.nodes):
        if where.kind != kind:
            continue
        own = dict(placed[name]).get(node, 0)
        missing = count - own - pool.free[node]
        if missing <= 0:
            best = (0.0, node, "")
            break
        for other, allocation in placed.items():
            held = dict(allocation).get(node, 0)
            if other == name or len(allocation) < 2 or held < missing:
                continue
            cost = 0.0 if other in free_to_move else _cost(jobs[other], allocation, cluster, values, rescale_s)
            if cost < gain and (best is None or cost < best[0]):
                best = (cost, node, other)
    if best is None:
        return
    _, node, other = best
    pool.give(placed[name])
    if other:
        # The other job gives up as many devices on the node as are missing and takes as many of those left behind.
        pool.give(placed[other])
        rest = dict(placed[other])
        missing = count - (pool.free[node] - rest[node])
        rest[node] -= missing
        pool.grab(((node, count),))
        kept = tuple((n, c) for n, c in sorted(rest.items()) if c)
        pool.grab(kept)
        regrown = pool.grow(kept, missing, kind)
        assert regrown is not None, "the devices that the small job left are free"
        placed[other] = regrown
        free_to_move.add(other)
    else:
        pool.grab(((node, count),))
    placed[name] = ((node, count),)
    free_to_move.add(name)


def _cost(job: JobView, where: Allocation, cluster: Cluster, values: Mapping[str, float], rescale_s: float) -> float:
    """Work lost to one restart, at its worth."""
    return values.get(job.name, 0.0) * job.speed.rate(shape_of(cluster, where)) * rescale_s


def _holds(cluster: Cluster, allocation: Allocation) -> tuple[str, int]:
    kinds = {cluster.nodes[node].kind for node, _ in allocation}
    return (kinds.pop(), num_devices(allocation)) if len(kinds) == 1 else ("", 0)

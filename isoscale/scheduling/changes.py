"""What a change of devices costs a job, and which jobs are not to be changed now.

A change is charged so that it limits itself. For a job that has held devices for `a` seconds and was restarted n times
at d seconds each, a change leaves

    factor = (a - n d) / (a + d)            Pollux's, with the time that the job held devices for its age

of what the new devices are worth. With x = n d / a, the share of its time that went into restarts, a change that gains
g (0.2: a fifth faster) is made only while x < g / (1 + g): no job spends all its time changing.

A batch size is left for another one at the same price, and only for a gain that grows with every change of size so far:
rates are measured, measurements differ, and every change is also one of the learning rate.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from isoscale.scheduling.state import ClusterState, JobView, Shape

__all__ = ["batch_for", "change_factor", "is_changing", "movable_part", "pays", "restart_s", "without_jobs"]

#: gain for which a job's first change of batch size is made, by which it grows with every further one, and its limit
_BATCH_GAIN, _BATCH_GAIN_MOST = 0.05, 0.25


def restart_s(state: ClusterState, job: JobView) -> float:
    """Seconds that this job stands still when its devices change: its own figure, or the cluster's."""
    own = job.request.restart_s
    return state.rescale_s if own is None else own


def is_changing(state: ClusterState, job: JobView) -> bool:
    """Whether the job still stands still from its last change: changing it again would throw that time away."""
    return bool(job.allocation) and state.now - job.since_s < restart_s(state, job) * (1 - 1e-9)


def change_factor(state: ClusterState, job: JobView) -> float:
    """What a change leaves of the worth of other devices, 0 to 1; 1 for a job without devices or without a cost."""
    cost = restart_s(state, job)
    if not job.allocation or cost <= 0:
        return 1.0
    held_s = job.running_s(state.now)
    return max(0.0, held_s - job.num_restarts * cost) / (held_s + cost)


def pays(state: ClusterState, job: JobView, rate: float, new_rate: float) -> bool:
    """Whether a running job should give up `rate` for `new_rate`."""
    return new_rate * change_factor(state, job) > rate * (1 + 1e-9)


def batch_for(state: ClusterState, job: JobView, shape: Shape, *, moves: bool) -> int:
    """The batch of a job that may be told one of a few, on devices of this shape: the one that was decided last, unless
    another is worth the change. `moves`: its devices change anyway, and the batch goes with them."""
    best, present = job.speed.best_batch(shape), job.batch
    if best == present or not job.allocation or present not in job.request.batch_sizes:
        return best
    gain = min(_BATCH_GAIN_MOST, _BATCH_GAIN * (1 + job.num_rebatches))
    left = 1.0 if moves else change_factor(state, job)
    return best if job.speed.rate(shape, best) * left > job.speed.rate(shape, present) * (1 + gain) else present


def movable_part(state: ClusterState) -> ClusterState:
    """The state without jobs that must stay as they are: those that cannot be moved, and those still changing.

    A policy that plans everything anew plans this part; what the others hold is not there.
    """
    pinned = {name for name, job in state.running.items() if not job.request.preemptible or is_changing(state, job)}
    return without_jobs(state, pinned) if pinned else state


def without_jobs(state: ClusterState, names: Set[str]) -> ClusterState:
    """The state as if these running jobs and their devices were not there; a job that no longer fits stays in it."""
    capacity = list(state.capacity)
    gone: set[str] = set()
    for name in sorted(names, key=lambda name: state.running[name].order):
        allocation = state.running[name].allocation
        # A quota may have left fewer devices than the job holds: then it has to be planned with the others.
        if all(capacity[node] >= count for node, count in allocation):
            gone.add(name)
            for node, count in allocation:
                capacity[node] -= count
    return replace(
        state,
        capacity=tuple(capacity),
        capacity_of=state.cluster.by_kind(capacity),
        running={name: job for name, job in state.running.items() if name not in gone},
    )

"""Finish-time fairness as a promise: nobody's completion time is more than `bound` times that of a fair share.

A job's fair share is what it asked for, less by how much all jobs together ask for more than there is:

    fair rate  f = rate on the requested devices of its first kind / max(1, requested by all / devices there)

Completion times compare as work does: a job that at every moment has done at least (its fair share's work) / bound ends
within bound times the fair time, whatever its length, which nobody needs to know. So each round reckons what every job
lacks to that, and the rate that makes up for it within CATCH_UP_S. `after` gives a new value: a policy is copied for
questions that do not count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from isoscale.scheduling.changes import restart_s
from isoscale.scheduling.state import ClusterState, JobView, shape_of

__all__ = ["CATCH_UP_S", "FairShares"]

CATCH_UP_S = 600.0
#: a job is helped when it comes so near the bound, not when it has crossed it
_MARGIN = 0.9


@dataclass(frozen=True, slots=True)
class _Share:
    at_s: float
    #: work that the fair share would have done, and what was done
    fair: float
    done: float
    #: the fair share's rate at present
    rate: float


@dataclass(frozen=True, slots=True)
class FairShares:
    """What every active job has done against its fair share."""

    shares: Mapping[str, _Share] = field(default_factory=dict)

    def after(self, state: ClusterState) -> FairShares:
        """Up to this moment, with everything that the cluster has and does."""
        jobs = [*state.running.values(), *state.waiting.values()]
        wanted = sum(job.request.requested_devices for job in jobs)
        crowding = max(1.0, wanted / max(1, sum(state.capacity)))
        return FairShares({job.name: self._share(state, job, crowding) for job in jobs})

    def _share(self, state: ClusterState, job: JobView, crowding: float) -> _Share:
        rate = _requested_rate(state, job) / crowding
        old = self.shares.get(job.name) or _Share(job.request.submitted_s, 0.0, 0.0, rate)
        done = old.done
        if job.allocation:
            # It stood still for a while after its last change.
            since = max(old.at_s, job.since_s + restart_s(state, job))
            held = job.speed.rate(shape_of(state.cluster, job.allocation), job.batch)
            done += held * max(0.0, state.now - since)
        return _Share(state.now, old.fair + rate * max(0.0, state.now - old.at_s), done, rate)

    def needs(self, bound: float) -> dict[str, float]:
        """Rates that jobs need which are about to fall behind the bound; jobs that are not are left out."""
        bound *= _MARGIN
        found = {}
        for name, share in self.shares.items():
            lacking = share.fair / bound - share.done
            if lacking > 0 and share.rate > 0:
                found[name] = share.rate / bound + lacking / CATCH_UP_S
        return found


def _requested_rate(state: ClusterState, job: JobView) -> float:
    """Work per second on the devices that it asked for, packed."""
    kind = (job.request.kinds or state.cluster.kinds)[0]
    count = job.request.requested_devices
    rates = job.speed.rates(kind, count, max(1, state.cluster.node_size(kind)))
    return float(rates[min(count, len(rates) - 1)])

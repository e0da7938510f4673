"""Every policy on clusters of several kinds: four generated mixes, fixed before any policy was tuned on them.

Jobs are drawn after the Philly trace, speeds from the world `mixed` (an application gains more or less by a fast kind;
jobs know nominal speeds and measure where they run), restarts take 10 to 120 s by application. Two targets: every
elastic policy within twice the mean completion time of `flow`, and no device idle while a job waits that could use it:
`idle_share` is the share of device time in which a device that a decision had left free stayed so, beside a job whose
minimum would have fitted (EasyScale frees devices in one round and hands them out in the next). `preferred` is each
policy as its paper has it, on the kind that a job prefers. `alone`: jobs of one application learn nothing from each
other.

    python -m benchmarks.simulate.mixed
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.lib.measure import rounded
from benchmarks.lib.options import options as chosen
from benchmarks.lib.result import Rows
from isoscale.scheduling.policy import Policy
from isoscale.scheduling.state import Cluster, ClusterState, Decision, Pause, Reject
from isoscale.sim.builtin import find_trace
from isoscale.sim.cluster_spec import parse_cluster
from isoscale.sim.costs import parse_costs
from isoscale.sim.engine import Options, Simulation
from isoscale.sim.job import SimJob
from isoscale.sim.result import details, summarise
from isoscale.sim.run import parse_policies
from isoscale.sim.workload import make_cluster
from isoscale.sim.worlds.mixed import Mixed

RESULT, MINUTES = "simulate_mixed", 12
#: name -> cluster, trace
MIXES = {
    "thirds": ("6x(V100*4)+6x(P100*4)+6x(K80*4)", "philly:jobs=240,days=0.4,largest=16,hours=12,scale=3.5"),
    "few fast": ("2x(A100*8)+12x(T4*4)", "philly:jobs=200,days=0.3,largest=16,hours=12,scale=5,seed=1"),
    "old majority": ("1x(A100*8)+4x(V100*4)+10x(T4*4)", "philly:jobs=240,days=0.3,largest=8,hours=12,scale=5,seed=2"),
    "four kinds": (
        "1x(H100*8)+2x(A100*8)+4x(V100*8)+18x(T4*4)",
        "philly:jobs=320,days=0.25,largest=32,hours=12,scale=7,seed=3",
    ),
}
ELASTIC = ("flow", "pollux", "easyscale", "autoscaler", "optimus", "elastic-tiresias", "deadline")
_POLICIES = (
    *ELASTIC,
    "autoscaler(paper=true)",
    "tiresias",
    "srtf",
    "easyscale-homo",
    *(f"{name}(kinds=preferred)" for name in (*ELASTIC[1:-1], "tiresias")),
)
#: policies that are also run without what jobs of one application tell each other
_ALONE = ("flow", "pollux", "autoscaler")
_COSTS = "free:start_s=30,resume_s=30,rescale_s=30"


class Watched:
    """A policy, and how long devices stay idle after its decisions beside jobs that could use them."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.interval_s, self.oracle, self.gang = policy.interval_s, policy.oracle, policy.gang
        self.watches_time = policy.watches_time
        self.idle_device_s = 0.0
        #: when it decided last, and devices that it then left idle
        self._decided_s, self._idle = 0.0, 0

    def decide(self, state: ClusterState) -> list[Decision]:
        self.idle_device_s += self._idle * (state.now - self._decided_s)
        decisions = self._policy.decide(state)
        free, waiting = list(state.free), dict(state.waiting)
        for decision in decisions:
            job = state.running.get(decision.job) or state.waiting[decision.job]
            for node, count in job.allocation:
                free[node] += count
            waiting.pop(decision.job, None)
            if isinstance(decision, Pause):
                waiting[decision.job] = job
            elif not isinstance(decision, Reject):
                for node, count in decision.allocation:
                    free[node] -= count
        idle = state.cluster.by_kind(free)
        useful = {
            kind
            for job in waiting.values()
            for kind in job.request.kinds or state.cluster.kinds
            if idle[kind] >= (job.request.requested_devices if self.gang else max(1, job.request.min_devices))
        }
        self._decided_s, self._idle = state.now, sum(idle[kind] for kind in useful)
        return decisions


def main() -> None:
    options = chosen(__doc__)
    rows = Rows(RESULT, options, ("mix", "policy"))
    mixes = list(MIXES)[: options.pick(smoke=1, quick=2, full=len(MIXES))]
    for mix in mixes:
        spec, trace = MIXES[mix]
        if options.smoke:
            trace = "philly:jobs=12,days=0.05,largest=4,hours=1"
        cluster = make_cluster(parse_cluster(spec))
        jobs = Mixed().jobs(find_trace(trace), cluster)
        for policy in (*_POLICIES[: 2 if options.smoke else None], *(f"{name}, alone" for name in _ALONE)):
            if rows.find(mix=mix, policy=policy) is None:
                flow = rows.find(mix=mix, policy="flow")
                row = {"mix": mix, "trace": trace, "cluster": spec, **_one(jobs, cluster, policy, flow)}
                rows.put(row)
                print(
                    f"{mix:12} {policy:34} mean JCT {row['mean_jct_s']:>8} s ({row['of_flow']}x flow), p99 "
                    f"{row['p99_jct_s']:>8} s, {row['rescales_per_job']} rescales a job, idle {row['idle_share']}, "
                    f"held {row['held']}, decision {row['decision_ms']} ms, all done: {row['finished']}",
                    flush=True,
                )
    rows.finish()


def _one(jobs: Sequence[SimJob], cluster: Cluster, policy: str, flow: dict[str, Any] | None) -> dict[str, Any]:
    [(_, make)] = parse_policies(policy.removesuffix(", alone"))
    watched = Watched(make())
    settings = Options(costs=parse_costs(_COSTS), interval_s=60.0, shares=not policy.endswith(", alone"))
    outcome = Simulation(jobs, cluster, watched, settings).run()
    found, more = summarise(outcome), details(outcome)
    flow_s = found.mean_jct_s if flow is None else float(flow["mean_jct_s"])
    return {
        "policy": policy,
        "mean_jct_s": rounded(found.mean_jct_s),
        "p99_jct_s": rounded(found.p99_jct_s),
        "makespan_s": rounded(found.makespan_s),
        "rescales_per_job": rounded(found.rescales / len(jobs)),
        "finished": found.jobs_finished == len(jobs),
        "held": rounded(found.allocated_utilisation),
        "idle_share": rounded(watched.idle_device_s / (found.makespan_s * cluster.num_devices)),
        "of_flow": rounded(found.mean_jct_s / flow_s),
        "unfairness_p99": rounded(more.unfairness_p99),
        "decision_ms": rounded(found.decision_ms_p50),
        "meets": found.mean_jct_s <= 2.0 * flow_s if policy in ELASTIC else None,
    }


if __name__ == "__main__":
    main()

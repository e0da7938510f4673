"""Elastic-Tiresias against Tiresias: the gain in mean JCT as load grows (EDL claims up to 89.5 % at its load).

The Pollux simulator's workload 1 (160 jobs, owner's batch) on 16 nodes x 4 T4, its arrivals pressed together to raise
the load: at load x jobs come x times as fast. 60 s rounds; a change costs 30 s (stop-resume) or 0.5 s (stop-free).
Tiresias keeps gangs; Elastic-Tiresias shrinks demoted jobs while more than ten wait and expands into what is left.
"""

from __future__ import annotations

import dataclasses

from measure import save
from simulate_tools import options, parsed, rounded, run

from isoscale.sim.costs import parse_costs
from isoscale.sim.engine import Options
from isoscale.sim.job import SimJob
from isoscale.sim.run import Experiment
from isoscale.sim.workload import Workload

_LOADS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
_COSTS = {
    "stop-resume": "free:start_s=30,resume_s=30,rescale_s=30",
    "stop-free": "free:start_s=30,resume_s=30,rescale_s=0.5",
}


def main() -> None:
    arguments = parsed(options(__doc__ or ""))
    rows = []
    for name, costs in _COSTS.items():
        experiment = Experiment(
            trace=str(arguments.data / "pollux" / "workloads" / "workload-1.csv"),
            cluster="16x(T4*4)",
            workload=Workload(speeds=arguments.data / "pollux" / "traces", adaptive=False),
            options=Options(costs=parse_costs(costs), interval_s=60.0),
        )
        for load in _LOADS[:2] if arguments.quick else _LOADS:
            jobs = [_sooner(job, load) for job in experiment.jobs(0)]
            found = {policy: run(experiment, policy, jobs)[1] for policy in ("tiresias", "elastic-tiresias")}
            rigid, elastic = (float(found[policy]["mean_jct_s"]) for policy in found)
            rows.append(
                {
                    "costs": name,
                    "load": load,
                    "tiresias_jct_s": rounded(rigid),
                    "elastic_jct_s": rounded(elastic),
                    "shorter": rounded(1 - elastic / rigid),
                    "tiresias_makespan_s": found["tiresias"]["makespan_s"],
                    "elastic_makespan_s": found["elastic-tiresias"]["makespan_s"],
                    "elastic_rescales": found["elastic-tiresias"]["rescales"],
                }
            )
            gain = 1 - elastic / rigid
            print(f"{name:11} load {load:4}: {rigid:8.0f} s -> {elastic:8.0f} s, {gain:.1%} shorter", flush=True)
    if not arguments.quick:
        save("simulate_tiresias", rows)


def _sooner(job: SimJob, load: float) -> SimJob:
    request = dataclasses.replace(job.request, submitted_s=job.request.submitted_s / load)
    return dataclasses.replace(job, request=request)


if __name__ == "__main__":
    main()

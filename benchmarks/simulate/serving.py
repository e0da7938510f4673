"""A serving cluster lends its idle devices to elastic training: how much more they compute, and how fast they are back.

192 devices in nodes of 8 serve a load that swings over the day; training jobs (generated, Philly-like, more than fit)
use what serving lends and give it back on demand. Three days are simulated, after which whatever still runs is cut
off. Stop-free scaling: a job that must shrink finishes its step and goes on with what it has left; a step that takes
longer than 5 s is given up and made again by those who stay.

EasyScale's production figures are 62.1 % more utilisation and no failed job on a cluster of over 3,000 devices.
Targets: busy utilisation at least 1.621x of serving alone, and no device later than 10 s after it was wanted back. The
three shapes of load below were fixed before any policy was tuned for them.

    python -m benchmarks.simulate.serving
"""

from __future__ import annotations

import numpy as np

from benchmarks.lib.measure import rounded
from benchmarks.lib.options import parsed, parser
from benchmarks.lib.result import Rows
from benchmarks.simulate.tools import run
from isoscale.sim.costs import PRESETS
from isoscale.sim.disturbances import ServingLoad, serving_load
from isoscale.sim.engine import Options
from isoscale.sim.run import Experiment

_SHAPES = {
    "gentle day": ServingLoad(low=0.25, high=0.65, headroom=0.05, noise=0.05),
    "sharp evening": ServingLoad(low=0.30, high=0.85, sharpness=4.0, headroom=0.05, noise=0.05),
    "nervous": ServingLoad(low=0.30, high=0.55, headroom=0.10, noise=0.20),
}
RESULT, MINUTES = "simulate_serving", 3
_DAYS, _SLA_S, _TARGET = 3.0, 10.0, 1.621
_POLICIES = {"fifo-backfill": 0.0, "easyscale": 60.0, "autoscaler": 60.0, "flow": 60.0}


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--policies", default="")
    arguments = parsed(made)
    nodes, jobs, days = arguments.pick(smoke=(1, 8, 0.25), quick=(6, 600, _DAYS), full=(24, 2250, _DAYS))
    policies = arguments.policies or arguments.pick(smoke="flow", quick=",".join(_POLICIES), full=",".join(_POLICIES))
    rows = Rows(RESULT, arguments, ("shape", "policy"))
    for shape, load in _SHAPES.items():
        for policy in policies.split(","):
            if rows.find(shape=shape, policy=policy) is not None:
                continue
            row = {"shape": shape, **_one(load, policy, nodes, jobs, days)}
            rows.put(row)
            print(
                f"{shape:14} {policy:14} serving alone {row['serving_utilisation']:.3f}, with training "
                f"{row['busy_utilisation_both']:.3f}: {row['ratio']:.3f}x; {row['reclaims']} reclaims, longest "
                f"{row['reclaim_max_s']} s; {row['jobs_finished']} jobs, {row['cpu_s']} CPU s",
                flush=True,
            )
    rows.finish()


def _one(load: ServingLoad, policy: str, nodes: int, jobs: int, days: float) -> dict[str, object]:
    until = days * 86_400.0
    experiment = Experiment(
        trace=f"philly:jobs={jobs},days={days:g},hours=24",
        cluster=f"{nodes}x(gpu*8)",
        options=Options(costs=PRESETS["stop-free"], interval_s=_POLICIES.get(policy, 60.0), until_s=until),
        serving=load,
    )
    outcome, row = run(experiment, policy, experiment.jobs(0))
    cluster = experiment.cluster_value()
    _, need = serving_load(load, cluster, until)
    serving = float(np.mean(need)) / cluster.num_devices
    training = outcome.ledger.busy_seconds() / (cluster.num_devices * until)
    latencies = [latency for _, _, latency in outcome.ledger.reclaims]
    ratio = (serving + training) / serving
    return {
        **row,
        "serving_utilisation": rounded(serving),
        "busy_utilisation_both": rounded(serving + training),
        "ratio": rounded(ratio),
        "reclaims": len(latencies),
        "devices_reclaimed": sum(devices for _, devices, _ in outcome.ledger.reclaims),
        "reclaim_max_s": rounded(max(latencies, default=0.0)),
        "reclaims_over_sla": sum(latency > _SLA_S for latency in latencies),
        "failed_jobs": outcome.failed,
        "target": _TARGET,
        "meets": ratio >= _TARGET and all(latency <= _SLA_S for latency in latencies),
    }


if __name__ == "__main__":
    main()

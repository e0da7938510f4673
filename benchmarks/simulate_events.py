"""Does the cost of an event stay flat as the trace grows? Generated traces of 1,000 to 80,000 jobs at the same load.

The cluster stays the same and days grow with jobs, so that as many jobs run and wait at any moment; what is left is
the simulator's own bookkeeping. The target is a cost per event within 2x from 1,000 to 80,000 jobs. Sizes take turns,
the best of several runs counts: a pause of the machine is nobody's merit.
"""

from __future__ import annotations

import argparse
import time

from measure import save
from simulate_tools import rounded

from isoscale.scheduling.policy import make_policy
from isoscale.sim.costs import PRESETS
from isoscale.sim.engine import Options
from isoscale.sim.run import Experiment

_SIZES = (1_000, 5_000, 20_000, 80_000)
_POLICIES = {"fifo": 0.0, "fifo-backfill": 0.0, "tiresias": 600.0, "autoscaler": 600.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller traces; prints, saves nothing")
    quick = parser.parse_args().quick
    sizes = _SIZES[:2] if quick else _SIZES
    repeats = 1 if quick else 2
    rows = []
    for policy, interval_s in _POLICIES.items():
        best: dict[int, float] = {}
        events: dict[int, int] = {}
        for _ in range(repeats):
            for jobs in sizes:
                cost, events[jobs] = _cost(policy, interval_s, jobs)
                best[jobs] = min(cost, best.get(jobs, cost))
        ratio = max(best.values()) / best[sizes[0]]
        rows.append(
            {
                "policy": policy,
                "event_us": {str(jobs): rounded(cost) for jobs, cost in best.items()},
                "events": events,
                "ratio": rounded(ratio),
                "limit": 2.0,
                "meets": ratio <= 2.0,
            }
        )
        costs = ", ".join(f"{jobs:,} jobs {cost:.0f} us" for jobs, cost in best.items())
        print(f"{policy:14} {costs}: {ratio:.2f}x", flush=True)
        if not quick:
            save("simulate_events", rows)


def _cost(policy: str, interval_s: float, jobs: int) -> tuple[float, int]:
    experiment = Experiment(
        trace=f"philly:jobs={jobs},days={jobs / 1000:g},hours=24",
        cluster="60x(gpu*8)",
        options=Options(costs=PRESETS["stop-free"], interval_s=interval_s),
    )
    jobs = experiment.jobs(0)
    begun = time.process_time()
    outcome = experiment.simulate(make_policy(policy), jobs, 0)
    return 1e6 * (time.process_time() - begun) / outcome.num_events, outcome.num_events


if __name__ == "__main__":
    main()

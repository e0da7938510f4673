"""Does the cost of an event stay flat as the trace grows? Generated traces of 1,000 to 80,000 jobs at the same load.

The cluster stays the same and days grow with jobs, so that as many jobs run and wait at any moment; what is left is
the simulator's own bookkeeping. The target is a cost per event within 2x from 1,000 to 80,000 jobs. Short traces are
run several times and the best counts: a pause of the machine is nobody's merit. FIFO decides at every event, all
others every ten minutes.

    python -m benchmarks.simulate.events
"""

from __future__ import annotations

import argparse
import json
import time

from benchmarks.lib.measure import RESULTS, rounded, save
from isoscale.scheduling.policy import make_policy
from isoscale.sim.costs import PRESETS
from isoscale.sim.engine import Options
from isoscale.sim.run import Experiment

#: what gives all rows, however many runs it took
_COMMAND = "python -m benchmarks.simulate.events"
#: jobs -> how often
_SIZES = {1_000: 5, 10_000: 2, 80_000: 1}
#: one of each family: the others share its code
_POLICIES = (
    "fifo",
    "fifo-backfill",
    "srtf",
    "tiresias",
    "elastic-tiresias",
    "optimus",
    "easyscale",
    "autoscaler",
    "pollux",
    "flow",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller traces; prints, saves nothing")
    parser.add_argument("--policies", default=",".join(_POLICIES))
    parser.add_argument("--add", action="store_true", help="keep rows of other policies that were saved before")
    arguments = parser.parse_args()
    sizes = {size: times for size, times in _SIZES.items() if size < 80_000 or not arguments.quick}
    kept = RESULTS / "simulate_events.json"
    rows = json.loads(kept.read_text())["rows"] if arguments.add and kept.exists() else []
    for policy in arguments.policies.split(","):
        best: dict[int, float] = {}
        events: dict[int, int] = {}
        for size, times in sizes.items():
            for _ in range(times):
                cost, events[size] = _cost(policy, size)
                best[size] = min(cost, best.get(size, cost))
        ratio = max(best.values()) / best[min(sizes)]
        rows = [row for row in rows if row["policy"] != policy]
        rows.append(
            {
                "policy": policy,
                "event_us": {str(size): rounded(cost) for size, cost in best.items()},
                "events": events,
                "ratio": rounded(ratio),
                "limit": 2.0,
                "meets": ratio <= 2.0,
            }
        )
        costs = ", ".join(f"{size:,} jobs {cost:.0f} us" for size, cost in best.items())
        print(f"{policy:16} {costs}: {ratio:.2f}x", flush=True)
        if not arguments.quick:
            save("simulate_events", rows, command=_COMMAND)


def _cost(policy: str, size: int) -> tuple[float, int]:
    experiment = Experiment(
        trace=f"philly:jobs={size},days={size / 1000:g},hours=24",
        cluster="60x(gpu*8)",
        options=Options(costs=PRESETS["stop-free"], interval_s=0.0 if policy.startswith("fifo") else 600.0),
    )
    jobs = experiment.jobs(0)
    begun = time.process_time()
    outcome = experiment.simulate(make_policy(policy), jobs, 0)
    return 1e6 * (time.process_time() - begun) / outcome.num_events, outcome.num_events


if __name__ == "__main__":
    main()

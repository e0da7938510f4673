"""Does the cost of an event stay flat as the trace grows? Generated traces of 1,000 to 80,000 jobs at the same load.

The cluster stays the same and days grow with jobs, so that as many jobs run and wait at any moment; what is left is
the simulator's own bookkeeping. The target is a cost per event within 2x from 1,000 to 80,000 jobs. Short traces are
run several times and the best counts: a pause of the machine is nobody's merit. FIFO decides at every event, all
others every ten minutes.

    python -m benchmarks.simulate.events
"""

from __future__ import annotations

import time

from benchmarks.lib.measure import rounded
from benchmarks.lib.options import parsed, parser
from benchmarks.lib.result import Rows
from isoscale.scheduling.policy import make_policy
from isoscale.sim.costs import PRESETS
from isoscale.sim.engine import Options
from isoscale.sim.run import Experiment

RESULT, MINUTES = "simulate_events", 35
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
    made = parser(__doc__)
    made.add_argument("--policies", default="")
    arguments = parsed(made)
    sizes = arguments.pick(smoke={30: 1, 60: 1}, quick={1_000: 5, 10_000: 2}, full=_SIZES)
    policies = arguments.policies or arguments.pick(
        smoke="fifo,flow", quick=",".join(_POLICIES), full=",".join(_POLICIES)
    )
    rows = Rows(RESULT, arguments, ("policy",))
    for policy in policies.split(","):
        if rows.find(policy=policy) is not None:
            continue
        best: dict[int, float] = {}
        events: dict[int, int] = {}
        for size, times in sizes.items():
            for _ in range(times):
                cost, events[size] = _cost(policy, size)
                best[size] = min(cost, best.get(size, cost))
        ratio = max(best.values()) / best[min(sizes)]
        rows.put(
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
    rows.finish()


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

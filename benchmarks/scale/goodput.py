"""Useful training time while devices fail: isoscale against checkpoint-and-restart, 10 to 10,000 executors, simulated.

Failures per device are those of published training runs. Pauses are measured here on two executors and grow with E as
`costs` says; restarts are torchrun's measured here, and what a large run reports. Thirty days of useful time, by seed.

    python -m benchmarks.scale.goodput
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import mean
from typing import Any

from benchmarks.lib.result import save
from benchmarks.scale import failures, options
from benchmarks.scale.failures import HOUR, Elastic, Restarted
from benchmarks.scale.pauses import Pauses, pauses

RESULT, MINUTES = "scale_goodput", 1

#: hours of one device between failures: devices, days and unexpected interruptions (Llama 3), restarts (OPT-175B)
MTBF_H = {"Llama 3": 16_384 * 54 * 24 / 419, "OPT-175B": 992 * 56 * 24 / 54}
EXECUTORS = (10, 30, 100, 300, 1_000, 3_000, 10_000)
#: reported: the median retry of 224 training sessions on 504 devices (arXiv 2605.09370)
REPORTED_RESTART_S = 660.0
#: assumed
REPORTED_WRITE_S, LOCAL_WRITE_S = 30.0, 1.0
SPARE_SHARE, JOIN_S, REPAIR_S = 0.01, 5.0, 4 * HOUR
ALL_SHARE, CHECKPOINT_EVERY_S = 0.01, 0.5 * HOUR


def between(points: dict[int, float], executors: int) -> float:
    """On straight lines through logarithms."""
    sizes = sorted(points)
    low = max((size for size in sizes if size <= executors), default=sizes[0])
    high = min((size for size in sizes if size >= executors), default=sizes[-1])
    if low == high:
        return points[low]
    share = math.log(executors / low) / math.log(high / low)
    return math.exp((1 - share) * math.log(points[low]) + share * math.log(points[high]))


def systems(costs: list[dict[str, Any]], measured: Pauses) -> dict[str, Callable[[int, float], Elastic | Restarted]]:
    """What each would be with so many executors that fail so often."""
    flat = {row["executors"]: row["recover_s"] for row in costs}
    grouped = {row["executors"]: row["recover_two_level_s"] for row in costs}
    form = {row["executors"]: row["form_two_level_s"] for row in costs}

    def elastic(recover: dict[int, float], workers_each: int = 1, spare_share: float = SPARE_SHARE) -> Any:
        def of(executors: int, mtbf_s: float) -> Elastic:
            return Elastic(
                executors=executors,
                workers_each=workers_each,
                pause_s=measured.elastic_s + between(recover, executors),
                spares=math.ceil(spare_share * executors) + (1 if spare_share else 0),
                join_s=JOIN_S,
                repair_s=REPAIR_S,
                all_share=ALL_SHARE,
                checkpoint_age_s=CHECKPOINT_EVERY_S,
                restart_s=REPORTED_RESTART_S,
            )

        return of

    def restarted(restart_s: float, write_s: float) -> Any:
        def of(executors: int, mtbf_s: float) -> Restarted:
            every_s = failures.best_interval(write_s, mtbf_s / executors)
            again_s = restart_s + between(form, executors)
            return Restarted(executors=executors, every_s=every_s, write_s=write_s, restart_s=again_s)

        return of

    return {
        "isoscale, two levels": elastic(grouped),
        "isoscale, flat": elastic(flat),
        "shrinks, N = E": elastic(grouped, spare_share=0.0),
        "shrinks, N = 4 E": elastic(grouped, 4, 0.0),
        "shrinks, N = 16 E": elastic(grouped, 16, 0.0),
        "restart, as torchrun here": restarted(measured.restart_s, LOCAL_WRITE_S),
        "restart, as reported": restarted(REPORTED_RESTART_S, REPORTED_WRITE_S),
    }


def simulated(job: Elastic | Restarted, mtbf_s: float, useful_s: float, seeds: range) -> list[float]:
    if isinstance(job, Elastic):
        return [failures.elastic(job, mtbf_s, useful_s, seed) for seed in seeds]
    return [failures.restarted(job, mtbf_s, useful_s, seed) for seed in seeds]


def main() -> None:
    chosen = options.parse(__doc__)
    short = chosen.smoke or chosen.quick
    seeds, useful_s = range(2 if short else 20), (2 if chosen.smoke else 30) * 24 * HOUR
    measured = pauses()
    rows = []
    for source, mtbf_h in MTBF_H.items():
        for name, make in systems(options.kept("scale_costs")["rows"], measured).items():
            for executors in EXECUTORS[::3] if chosen.smoke else EXECUTORS:
                mtbf_s = mtbf_h * HOUR
                job = make(executors, mtbf_s)
                runs = simulated(job, mtbf_s, useful_s, seeds)
                row: dict[str, Any] = {
                    "failures": source,
                    "system": name,
                    "executors": executors,
                    "goodput": round(mean(runs), 7),
                    "least": round(min(runs), 7),
                    "most": round(max(runs), 7),
                }
                if isinstance(job, Restarted):
                    row |= {"daly": round(failures.daly(job, mtbf_s), 5), "every_s": round(job.every_s, 1)}
                else:
                    row["pause_s"] = round(job.pause_s, 3)
                rows.append(row)
            print(source, name, *(f"{row['goodput']:.4f}" for row in rows[-len(EXECUTORS) :]), flush=True)
    facts: dict[str, Any] = {
        "mtbf_hours": {name: round(hours) for name, hours in MTBF_H.items()},
        "pauses": {"elastic_s": measured.elastic_s, "restart_s": measured.restart_s, "source": measured.source},
        "assumed": {
            "reported_restart_s": REPORTED_RESTART_S,
            "reported_write_s": REPORTED_WRITE_S,
            "local_write_s": LOCAL_WRITE_S,
            "spare_share": SPARE_SHARE,
            "join_s": JOIN_S,
            "repair_s": REPAIR_S,
            "all_share": ALL_SHARE,
            "checkpoint_every_s": CHECKPOINT_EVERY_S,
        },
        "useful_days": useful_s / 24 / HOUR,
        "seeds": len(seeds),
    }
    save(RESULT, rows, chosen, **facts)


if __name__ == "__main__":
    main()

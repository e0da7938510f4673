"""EasyScale's trace (62 jobs, 32 V100 + 16 P100 + 16 T4) under the artifact's assumptions and under honest ones.

The artifact's: resizing and preemption cost nothing, 20 s without progress at the first start, no communication, rounds
of 10 s. Its one baseline runs a single job at a time; the honest ones here (gangs in order, per kind, with backfill,
shortest remaining time first) run as many as fit. `blind` EasyScale follows the artifact's rules to the letter: one
proposal per kind, whether devices are free or not. Honest costs: stop-free and stop-resume, each with communication.
Reference figures: the artifact's own code with the same reconstructed step times (table d1aff), 10 s rounds.

    python -m benchmarks.simulate.easyscale
"""

from __future__ import annotations

from typing import Any

from benchmarks.lib.measure import rounded
from benchmarks.lib.options import parsed, parser
from benchmarks.lib.result import destination, save
from benchmarks.simulate.tools import run, saved_rows
from isoscale.scheduling.throughput import Communication
from isoscale.sim.costs import parse_costs
from isoscale.sim.engine import Options
from isoscale.sim.run import Experiment
from isoscale.sim.workload import Workload

RESULT, MINUTES = "simulate_easyscale", 2
#: what gives all rows, however many runs it took
_COMMAND = "python -m benchmarks.simulate.easyscale"
#: mean JCT and makespan (time of the last completion) of the artifact's code
_REFERENCE = {
    "fifo": (4267, 9040),
    "fifo-per-kind": (3294, 9010),
    "fifo-backfill": (2348, 8290),
    "srtf": (378, 8550),
    "easyscale-homo(blind)": (413, 5120),
    "easyscale(blind)": (350, 5000),
}
_POLICIES: tuple[tuple[str, dict[str, bool]], ...] = (
    ("fifo", {}),
    ("fifo-per-kind", {}),
    ("fifo-backfill", {}),
    ("srtf", {}),
    ("tiresias", {}),
    ("easyscale-homo", {"blind": True}),
    ("easyscale", {"blind": True}),
    ("easyscale-homo", {}),
    ("easyscale", {}),
    ("flow", {}),
    ("flow", {"declared": False}),
)
_LABELS: dict[tuple[str, ...], str] = {("blind",): "(blind)", ("declared",): "(nothing declared)"}
#: seconds of an exchange: 5 ms within a machine, 20 ms across, a little more for each device
_EXCHANGE = Communication(local_fixed_s=0.005, local_per_device_s=0.0005, cross_fixed_s=0.020, cross_per_device_s=0.001)
_WORLDS = {
    "the artifact's": ("free:start_s=20", Communication()),
    "stop-free": ("stop-free", _EXCHANGE),
    "stop-resume": ("stop-resume", _EXCHANGE),
}


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--trace", default="easyscale", help="easyscale (d1aff) or easyscale-d2c")
    made.add_argument("--interval", type=float, default=10.0)
    made.add_argument("--policies", default="", help="only these, anew; the other rows stay as they were saved")
    arguments = parsed(made)
    name = RESULT if arguments.trace == "easyscale" else f"{RESULT}_d2c"
    name += "" if arguments.interval == 10 else f"_{arguments.interval:g}s"
    # A smoke run takes one that decides in no time and one that plans.
    all_policies = [policy for policy, _ in _POLICIES if not arguments.smoke or policy in ("fifo", "easyscale")]
    chosen = arguments.policies.split(",") if arguments.policies else all_policies
    saved = saved_rows(destination(name, arguments)) if arguments.policies else []
    known = {(row["assumptions"], row["policy"]): row for row in saved}
    rows: list[dict[str, object]] = []
    worlds = dict(list(_WORLDS.items())[: arguments.pick(smoke=1, quick=1, full=len(_WORLDS))])
    for world, (costs, communication) in worlds.items():
        experiment = Experiment(
            trace=arguments.trace,
            cluster="V100*32+P100*16+T4*16",
            workload=Workload(communication=communication),
            options=Options(costs=parse_costs(costs), interval_s=60.0 if arguments.smoke else arguments.interval),
        )
        for policy, options in _POLICIES:
            label = policy + _LABELS.get(tuple(options), "")
            if policy not in chosen:
                rows += [known[world, label]] if (world, label) in known else []
                continue
            jobs = experiment.jobs(0)
            outcome, row = run(experiment, policy, jobs, **options)
            last = max(outcome.finished_s)
            rows.append({"assumptions": world, **row, "policy": label, "last_completion_s": rounded(last)})
            is_artifact = world == "the artifact's" and arguments.interval == 10 and arguments.trace == "easyscale"
            reference = _REFERENCE.get(label) if is_artifact else None
            if reference:
                differences = (float(row["mean_jct_s"]) / reference[0] - 1, last / reference[1] - 1)
                rows[-1] |= {
                    "reference_jct_s": reference[0],
                    "reference_makespan_s": reference[1],
                    "jct_difference": rounded(differences[0]),
                    "makespan_difference": rounded(differences[1]),
                    "meets": max(map(abs, differences)) <= 0.05,
                }
            print(
                f"{world:15} {label:23} mean JCT {row['mean_jct_s']:>7} s, last {last:7.0f} s, "
                f"{row['rescales']} rescales, decision {row['decision_ms_p50']} ms"
                + (f"; the artifact's code {reference[0]} s, {reference[1]} s" if reference else ""),
                flush=True,
            )
    facts: dict[str, Any] = {"command": _COMMAND} if name == RESULT else {}
    save(name, rows, arguments, interval_s=arguments.interval, **facts)


if __name__ == "__main__":
    main()

"""What the simulator's benchmarks share: where public traces lie, one run, one printed line.

Traces are not shipped. `--data DIR` names a directory with the public files: `pollux/` (workloads, traces and published
results of the Pollux simulator, petuum/adaptdl branch osdi21-artifact), `philly-machines/data/` (machine lists of
Qinghao-Hu/Philly-Trace-Scripts). Only their content counts, so results name it DATA.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.lib.measure import rounded
from isoscale.scheduling.policy import make_policy
from isoscale.sim.engine import Outcome
from isoscale.sim.result import details, summarise, summary_json
from isoscale.sim.run import Experiment, parse_policies


def options(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="directory of the public traces")
    parser.add_argument("--quick", action="store_true", help="a small part; prints, saves nothing")
    return parser


def parsed(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The arguments; the recorded command keeps no path of this machine."""
    arguments = parser.parse_args()
    sys.argv = [word if word != str(arguments.data) else "DATA" for word in sys.argv]
    if not arguments.data.is_dir():
        parser.error(f"--data {arguments.data}: no such directory")
    return arguments


def run(experiment: Experiment, policy: str, jobs: Any, **policy_options: Any) -> tuple[Outcome, dict[str, Any]]:
    """One simulation and its figures as a flat row. `policy` may have options in brackets, as on the command line."""
    made = make_policy(policy, **policy_options) if policy_options else next(parse_policies(policy))[1]()
    decide = made.decide
    decided_s: list[float] = []

    def timed(state: Any) -> Any:
        at = time.process_time()
        decisions = decide(state)
        decided_s.append(time.process_time() - at)
        return decisions

    made.decide = timed  # type: ignore[method-assign]
    begun = time.process_time()
    outcome = experiment.simulate(made, jobs, 0)
    # Of this process on one core: the machine's other guests do not count.
    cpu_s = time.process_time() - begun
    more = details(outcome)
    row = {
        "policy": policy,
        **{name: rounded(value) for name, value in summary_json(summarise(outcome)).items()},
        "decisions": more.decisions,
        "decision_cpu_ms": rounded(1e3 * statistics.median(decided_s or [0.0])),
        "decision_ms_p99": rounded(more.decision_ms_p99),
        "events": more.events,
        "event_us": rounded(1e6 * cpu_s / max(1, more.events)),
        "cpu_s": rounded(cpu_s),
    }
    return outcome, row

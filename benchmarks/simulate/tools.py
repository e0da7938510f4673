"""What the simulator's benchmarks share: where public traces lie, one run, one printed line.

Traces are not shipped. `--data DIR` names a directory with the public files: `pollux/` (workloads, traces and published
results of the Pollux simulator, petuum/adaptdl branch osdi21-artifact), `philly-machines/data/` (machine lists of
Qinghao-Hu/Philly-Trace-Scripts). Only their content counts, so results name it DATA.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.lib.measure import rounded
from benchmarks.lib.options import Options, parsed, parser
from benchmarks.simulate import tiny_data
from isoscale.scheduling.policy import make_policy
from isoscale.sim.engine import Outcome
from isoscale.sim.result import details, summarise, summary_json
from isoscale.sim.run import Experiment, parse_policies


def with_data(description: str | None) -> argparse.ArgumentParser:
    made = parser(description)
    made.add_argument("--data", type=Path, help="directory of the public traces; --smoke makes its own")
    return made


@contextmanager
def data_of(made: argparse.ArgumentParser) -> Iterator[Options]:
    """The options; the recorded command keeps no path of this machine."""
    options = parsed(made)
    if options.smoke:
        with tempfile.TemporaryDirectory() as directory:
            options.data = tiny_data.make(Path(directory))
            yield options
        return
    if options.data is None:
        made.error("--data DIR is missing: the directory of the public traces")
    if not options.data.is_dir():
        made.error(f"--data {options.data}: no such directory")
    sys.argv = [word if word != str(options.data) else "DATA" for word in sys.argv]
    yield options


def saved_rows(path: Path | None) -> list[dict[str, Any]]:
    """What `--add` adds to."""
    return list(json.loads(path.read_text())["rows"]) if path is not None and path.exists() else []


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

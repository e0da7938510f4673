"""isoscale, torchrun elastic and torchft on the same model: how long does training stand still when workers change?

For each system and scenario a run of the 26 MB transformer (and of a smaller convolutional net) with SGD and momentum,
one thread per worker, gloo on loopback. Every worker writes a line per committed step; from these come

- the longest gap between two committed steps from the event on, in seconds and in median steps (of the slower of the
  two sizes: with two logical workers, one executor's step is two turns);
- committed steps lost, and launch to first step;
- whether the final parameters are those of the undisturbed run of the same system at constant size 2.

Scenarios: `scale out` 1 -> 2, `scale in` 2 -> 1 (isoscale: by `isoscale scale`; peers: SIGTERM), `notice` (isoscale:
SIGTERM of an executor), `migrate` (isoscale), `kill` (`kill -9` of one worker of two), `kill node` (torchrun: of agent
and worker), `kill first` (isoscale: of the first executor). Runs of all systems alternate within a repetition.

    python -m benchmarks.elastic.gaps                       # everything: about an hour
    python -m benchmarks.elastic.gaps --quick --systems torchft --scenarios "scale out"
"""

from __future__ import annotations

import argparse
import hashlib
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.elastic.commits import disturbance, median_step, summary, targets
from benchmarks.elastic.job import NotReachedError
from benchmarks.elastic.systems import PEERS, WORKERS, IsoscaleRun, Run, systems
from benchmarks.lib.measure import save
from benchmarks.lib.models import workloads
from benchmarks.peers.environments import default_cache, torchft_environment

#: by workload: steps in all, and the step at which the event comes
LENGTHS = {0: (240, 40), 1: (120, 30)}
LIMIT_S = 180.0
CONSTANT = "constant 2"


def final_parameters(path: Path) -> dict[str, Any]:
    import torch

    found: dict[str, Any] = torch.load(path, weights_only=True)["model"]
    return found


def digest_of(parameters: dict[str, Any]) -> str:
    total = hashlib.sha256()
    for name in sorted(parameters):
        tensor = parameters[name].contiguous()
        total.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        total.update(tensor.reshape(-1).view(dtype=_bytes()).numpy().data)
    return total.hexdigest()


def _bytes() -> Any:
    import torch

    return torch.uint8


def largest_difference(a: dict[str, Any], b: dict[str, Any]) -> float:
    return max(float((a[name].double() - b[name].double()).abs().max()) for name in a if a[name].numel())


def run_once(kind: type[Run], scenario: str, workload: int, folder: Path, seed: int) -> dict[str, Any]:
    """One run; what cannot be measured because the system did not come through is `failed`."""
    steps, event_step = LENGTHS[workload]
    constant, size = scenario == CONSTANT, 1 if scenario == "scale out" else WORKERS
    run = kind(folder, workload, steps)
    row: dict[str, Any] = {"system": kind.name, "scenario": scenario}
    try:
        run.start(size, constant=constant)
        event_t = 0.0
        if not constant:
            run.wait_step(event_step, size, LIMIT_S)
            # Anywhere in a step: half a second is more than one.
            time.sleep(random.Random(seed).uniform(0.0, 0.5))
            event_t = time.time()
            run.act(scenario)
        final = final_parameters(run.wait_end(LIMIT_S))
        row |= {"digest": digest_of(final), "_final": final}
        if not constant:
            row |= measured(run, event_t)
        else:
            row |= {"step_before_s": median_step(run.commits()[10:])}
    except (NotReachedError, ValueError) as error:
        row["failed"] = str(error)
    finally:
        run.end()
    commits = run.commits()
    row |= {"first_step_s": round(commits[0].t - run.launched_t, 3) if commits else None, **run.facts()}
    return row


def measured(run: Run, event_t: float) -> dict[str, Any]:
    found = disturbance(run.commits(), event_t)
    numbers = vars(found) | {name: getattr(found, name) for name in ("gap_steps", "gap_fast_steps", "beyond_step_s")}
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in numbers.items()}


def compare_with_constant(rows: list[dict[str, Any]]) -> None:
    """Adds what became of the bits; drops the parameters themselves."""
    references = {(row["model"], row["system"]): row for row in rows if row["scenario"] == CONSTANT and "_final" in row}
    for row in rows:
        reference = references.get((row["model"], _family(row["system"])))
        if "_final" in row and reference is not None:
            row["same_digest"] = row["digest"] == reference["digest"]
            row["largest_difference"] = largest_difference(row["_final"], reference["_final"])
    for row in rows:
        row.pop("_final", None)


def _family(system: str) -> str:
    """Set-ups of one peer differ in time-outs only, so one undisturbed run serves them all."""
    return "torchft" if system.startswith("torchft") else system


def show(row: dict[str, Any]) -> None:
    if "failed" in row:
        what = f"FAILED: {row['failed'][:200]}"
    elif row["scenario"] == CONSTANT:
        what = f"step {row['step_before_s']:.3f} s"
    else:
        what = (
            f"gap {row['gap_s']:7.3f} s = {row['gap_steps']:6.2f} steps  lost {row['lost_steps']:2}  "
            f"{row['size_before']} -> {row['size_after']}  "
            f"step {row['step_before_s']:.3f} -> {row['step_after_s']:.3f} s"
        )
    print(
        f"{row['model']:18} {row['system']:32} {row['scenario']:10} {what}  first {row['first_step_s']} s", flush=True
    )


def chosen_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one repetition; prints, saves nothing")
    parser.add_argument("--cache", type=Path, default=default_cache(), help="where the peers' environments live")
    parser.add_argument("--systems", default="isoscale,torchrun,torchft", help="of these, comma-separated")
    parser.add_argument("--scenarios", default="", help="only these, comma-separated; constant 2 runs anyway")
    parser.add_argument("--models", default="1,0", help="1: transformer 26 MB, 0: convnet 6.5 MB")
    parser.add_argument("--spares", type=int, default=0, help="warm processes for isoscale")
    parser.add_argument("--keep", type=Path, help="keep all files of all runs here")
    return parser.parse_args()


def all_runs(options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    wanted = options.systems.split(",")
    environment = torchft_environment(options.cache) if "torchft" in wanted else None
    kinds = [kind for kind in systems(environment) if _family(kind.name) in wanted]
    only = [name.strip() for name in options.scenarios.split(",") if name.strip()]
    IsoscaleRun.options = ("--spares", str(options.spares)) if options.spares else ()
    rows: list[dict[str, Any]] = []
    for workload in map(int, options.models.split(",")):
        model = workloads()[workload].name
        for repetition in range(1 if options.quick else options.repetitions):
            plan = [
                (kind, scenario)
                for kind in kinds
                for scenario in ((CONSTANT,) if kind.name == _family(kind.name) else ()) + kind.scenarios
                if not only or scenario in only or (scenario == CONSTANT and not options.quick)
            ]
            random.Random(repetition).shuffle(plan)
            for kind, scenario in plan:
                place = folder / f"{len(rows):03}-{kind.name.split(',')[0]}-{scenario}".replace(" ", "-")
                row = {"model": model, "repetition": repetition}
                row |= run_once(kind, scenario, workload, place, seed=len(rows))
                rows.append(row)
                show(row)
                if not options.keep:
                    shutil.rmtree(place, ignore_errors=True)
    compare_with_constant(rows)
    return rows


def main() -> None:
    options = chosen_options()
    # So that whatever ends this process, the processes it started end too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        rows = all_runs(options, folder.resolve())
    summed = summary(rows)
    for entry in summed:
        if "gap_s" in entry:
            gap = entry["gap_s"]
            print(
                f"{entry['model']:18} {entry['system']:32} {entry['scenario']:10} gap {gap['median']:7.3f} s "
                f"({gap['min']:.3f}-{gap['max']:.3f})  same digest {entry['same_digest']} of {entry['runs']}  "
                f"failed {entry['failed']}"
            )
    found = targets(summed)
    for target in found:
        met = "met" if target["meets"] else "missed" if target.get("for_information") else "MISSED"
        print(f"{target['model']:18} {target['what']:70} {target['target']:14} {target['value']:9} {met}")
    if not options.quick:
        notes = (PEERS / "README.md").read_text()
        save("elastic", rows, summary=summed, targets=found, repetitions=options.repetitions, peers=notes.splitlines())


if __name__ == "__main__":
    main()

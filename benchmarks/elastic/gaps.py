"""isoscale, torchrun elastic and torchft on the same model: how long does training stand still when workers change?

For each system and scenario a run of the 26 MB transformer (and of a smaller convolutional net) with SGD and momentum,
one thread per worker, gloo on loopback. Every worker writes a line per committed step; from these come

- the longest gap between two committed steps from the event on, in seconds and in median steps (of the slower of the
  two sizes: with two logical workers, one executor's step is two turns);
- committed steps lost, and launch to first step;
- whether the final parameters are those of the undisturbed run of the same system at constant size 2.

Each run is kept when it is over; a run of the benchmark that was broken off goes on with the next.

Scenarios: `scale out` 1 -> 2, `scale in` 2 -> 1 (isoscale: by `isoscale scale`; peers: SIGTERM), `notice` (isoscale:
SIGTERM of an executor), `migrate` (isoscale), `kill` (`kill -9` of one worker of two), `kill node` (torchrun: of agent
and worker), `kill first` (isoscale: of the first executor). In the first repetition runs of all systems alternate. The
others are isoscale's only: its gaps are fractions of a second and are judged by the longest, peers' are seconds, by
time-outs and start-ups that repeat (`--peers` repeats them as well).

    python -m benchmarks.elastic.gaps
    python -m benchmarks.elastic.gaps --quick --systems torchft --scenarios "scale out"
"""

from __future__ import annotations

import hashlib
import random
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.elastic.commits import disturbance, median_step, summary, table, targets
from benchmarks.elastic.job import NotReachedError
from benchmarks.elastic.systems import PEERS, WORKERS, IsoscaleRun, Run, systems
from benchmarks.lib.models import PACED, workload
from benchmarks.lib.options import Options, parsed, parser
from benchmarks.lib.result import Rows
from benchmarks.peers.committed import save_whole
from benchmarks.peers.environments import default_cache, is_made, torchft_environment

RESULT, MINUTES = "elastic", 18

#: by workload: steps in all, and the step at which the event comes
LENGTHS = {0: (100, 16), 1: (40, 12), PACED: (70, 8)}
#: of a smoke run: the shortest way through every part
SMOKE = {"isoscale": ("kill",), "torchrun": ("constant 2",), "torchft": ("kill",)}
LIMIT_S = 180.0
CONSTANT = "constant 2"


def final_parameters(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(path, weights_only=True)["model"]
    return found


def digest_of(parameters: dict[str, Any]) -> str:
    total = hashlib.sha256()
    for name in sorted(parameters):
        tensor = parameters[name].contiguous()
        total.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def largest_difference(a: dict[str, Any], b: dict[str, Any]) -> float:
    return max(float((a[name].double() - b[name].double()).abs().max()) for name in a if a[name].numel())


def run_once(kind: type[Run], scenario: str, number: int, folder: Path, seed: int) -> dict[str, Any]:
    """One run; what cannot be measured because the system did not come through is `failed`."""
    steps, event_step = LENGTHS[number]
    constant, size = scenario == CONSTANT, 1 if scenario == "scale out" else WORKERS
    run = kind(folder, number, steps)
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


class References:
    """Final parameters of the first undisturbed run of each system, beside the rows until all are there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def compare(self, row: dict[str, Any]) -> None:
        """Adds what became of the bits; takes the parameters themselves out of the row."""
        final = row.pop("_final", None)
        path = self._folder / f"{row['model']}-{_family(row['system'])}.pt".replace(" ", "-")
        if final is not None and row["scenario"] == CONSTANT and not path.exists():
            save_whole(final, path)
        if final is not None and path.exists():
            reference = torch.load(path, weights_only=True)
            row["same_digest"] = row["digest"] == digest_of(reference)
            row["largest_difference"] = largest_difference(final, reference)


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


def chosen_options() -> Options:
    made = parser(__doc__)
    made.add_argument("--repetitions", type=int, default=3)
    made.add_argument("--peers", type=int, default=1, help="repetitions in which torchrun and torchft take part")
    made.add_argument("--cache", type=Path, default=default_cache(), help="where the peers' environments live")
    made.add_argument("--systems", default="isoscale,torchrun,torchft", help="of these, comma-separated")
    made.add_argument("--scenarios", default="", help="only these, comma-separated; constant 2 runs anyway")
    made.add_argument("--models", default="", help="1: transformer 26 MB, 0: convnet 6.5 MB; both by default")
    made.add_argument("--spares", type=int, default=0, help="warm processes for isoscale")
    made.add_argument("--keep", type=Path, help="keep all files of all runs here")
    return parsed(made)


def kinds_of(options: Options) -> list[type[Run]]:
    """The systems that were asked for; a smoke run takes those that are there and says what it leaves out."""
    wanted = options.systems.split(",")
    if options.smoke and "torchft" in wanted and not is_made(options.cache):
        print(f"skipped: torchft, which has no environment in {options.cache.name} yet (a longer run makes it)")
        wanted.remove("torchft")
    environment = torchft_environment(options.cache) if "torchft" in wanted else None
    kinds = [kind for kind in systems(environment) if _family(kind.name) in wanted]
    return [kind for kind in kinds if not options.smoke or kind.name in SMOKE]


def plan_of(options: Options, kinds: list[type[Run]], repetition: int) -> list[tuple[type[Run], str]]:
    """Undisturbed runs first, which the others are compared with; then all systems and scenarios in turn."""
    only = [name.strip() for name in options.scenarios.split(",") if name.strip()]
    if repetition >= options.peers:
        kinds = [kind for kind in kinds if kind.name == IsoscaleRun.name]
    plan = [
        (kind, scenario)
        for kind in kinds
        for scenario in (SMOKE[kind.name] if options.smoke else kind.scenarios)
        if not only or scenario in only
    ]
    random.Random(repetition).shuffle(plan)
    constant = [(kind, CONSTANT) for kind in kinds if kind.name == _family(kind.name)]
    return plan if options.smoke or (only and options.quick) else constant + plan


def all_runs(options: Options, folder: Path) -> Rows:
    kinds = kinds_of(options)
    IsoscaleRun.options = ("--spares", str(options.spares)) if options.spares else ()
    asked = {name: getattr(options, name) for name in ("systems", "scenarios", "models", "spares", "peers")}
    rows = Rows(RESULT, options, ("model", "repetition", "system", "scenario"), **asked)
    references = References(rows.folder or folder / "references")
    models = options.models or options.pick(smoke=str(PACED), quick="0", full="1,0")
    repetitions = options.pick(smoke=1, quick=1, full=options.repetitions)
    for number in map(int, models.split(",")):
        for repetition in range(repetitions):
            plan = plan_of(options, kinds, repetition)
            for at, (kind, scenario) in enumerate(plan):
                known = {"model": workload(number).name, "repetition": repetition}
                if rows.find(**known, system=kind.name, scenario=scenario) is not None:
                    continue
                seed = repetition * 100 + at
                place = folder / f"{number}-{seed:03}-{kind.name.split(',')[0]}-{scenario}".replace(" ", "-")
                row = known | run_once(kind, scenario, number, place, seed)
                references.compare(row)
                rows.put(row)
                print(f"[{repetition + 1}/{repetitions} {at + 1}/{len(plan)}] ", end="")
                show(row)
                if not options.keep:
                    shutil.rmtree(place, ignore_errors=True)
    return rows


def main() -> None:
    options = chosen_options()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        rows = all_runs(options, folder.resolve())
    summed = summary(rows.all())
    print("\n" + table(summed) + "\n")
    found = targets(summed)
    for target in found:
        met = "met" if target["meets"] else "missed" if target.get("for_information") else "MISSED"
        print(f"{target['model']:18} {target['what']:70} {target['target']:14} {target['value']:9} {met}")
    notes = (PEERS / "README.md").read_text()
    repeated = {"repetitions": options.repetitions, "repetitions_of_peers": options.peers}
    rows.finish(summary=summed, targets=found, **repeated, peers=notes.splitlines())
    if options.smoke and (failed := [row for row in rows.all() if "failed" in row]):
        raise SystemExit(f"did not come through: {[(row['system'], row['failed']) for row in failed]}")


if __name__ == "__main__":
    main()

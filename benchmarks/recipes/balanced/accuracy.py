"""What balanced sparsity costs in accuracy, beside random (unstructured), block and no sparsity, over five seeds.

For each seed a dense model is trained once; from there every pattern and sparsity goes on with the same batches and
the same learning rates, pruned in ten stages over the first half and only trained in the second. The models are those
of the recipes balanced_lstm (with 1,000 words) and balanced_cnn (with half of the images); block widths are such that
all patterns keep equally many weights. The paper's claim: balanced is as good as random, block is worse. `--short`
shows what comes of it when there is little retraining.

One seed of a model takes minutes. Every setting is kept when it is done; a run that was broken off goes on.

    python -m benchmarks.recipes.balanced.accuracy
"""

from __future__ import annotations

import copy
import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.lib.options import Options, parsed, parser
from benchmarks.lib.result import Rows
from benchmarks.recipes.balanced.tables import SPARSITIES, accuracy
from benchmarks.recipes.kept import code_of
from isoscale.recipes import balanced_cnn, balanced_lstm
from isoscale.recipes.balanced.patterns import PATTERNS
from isoscale.recipes.balanced.pruning import Pruner, weights_of
from isoscale.recipes.balanced.schedule import Schedule
from isoscale.recipes.catalogue import find
from isoscale.recipes.data import images

RESULT, MINUTES = "recipes_balanced_accuracy", 120
SEEDS = range(5)
#: the hardest first, since it says most
SETTINGS = [("dense", "0"), *((p, s) for s in reversed(SPARSITIES) for p in ("balanced", "random", "block"))]
STAGES = 10


@dataclass(frozen=True)
class Study:
    """A model, its batches for the dense part and for the rest, and how it is judged."""

    make: Callable[[], nn.Module]
    optimizer: Callable[[Any], torch.optim.Optimizer]
    loss: Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]
    judge: Callable[[nn.Module], dict[str, float]]
    batches: Callable[[], list[tuple[torch.Tensor, torch.Tensor]]]
    dense_epochs: int
    epochs: int
    dense_layers: tuple[str, ...]
    block_width: int


def lstm_study(*, short: bool, tiny: bool) -> Study:
    vocabulary, hidden = 1000, 100
    seen, unseen = balanced_lstm.rows(vocabulary)
    seen, unseen = (seen[:1280:64], unseen[:64]) if tiny else (seen[::2] if short else seen, unseen)

    def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
        order = torch.randperm(len(seen))
        return [(rows[:, :-1], rows[:, 1:]) for rows in seen[order].split(1 if tiny else 64)]

    def loss(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(x).flatten(0, 1), y.flatten())

    def judge(model: nn.Module) -> dict[str, float]:
        total, correct = 0.0, 0
        for rows in unseen.split(128):
            scores, words = model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten()
            total += F.cross_entropy(scores, words, reduction="sum").item()
            correct += int((scores.argmax(1) == words).sum())
        count = unseen[:, 1:].numel()
        return {"accuracy": 100 * correct / count, "perplexity": math.exp(total / count)}

    return Study(
        make=lambda: balanced_lstm.LanguageModel(vocabulary, hidden),
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=4e-3),
        loss=loss,
        judge=judge,
        batches=batches,
        dense_epochs=3 if short else 2,
        epochs=1 if short else 2,
        dense_layers=("words",),
        block_width=50,
    )


def cnn_study(*, short: bool, tiny: bool) -> Study:
    seen, unseen = images.Mnist(train=True, samples=40 if tiny else 2000), images.Mnist(train=False)
    validation = torch.stack([unseen[i][0] for i in range(len(unseen))])
    # Distorting costs as much as training: the same three versions of each image serve all runs.
    torch.manual_seed(0)
    np.random.seed(0)
    versions = [torch.stack([seen[i][0] for i in range(len(seen))]) for _ in range(3)]

    def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
        version = versions[int(torch.randint(len(versions), ()))]
        return [(version[group], seen.labels[group]) for group in torch.randperm(len(seen)).split(2 if tiny else 64)]

    def judge(model: nn.Module) -> dict[str, float]:
        right = (model(validation).argmax(1) == unseen.labels).double().mean().item()
        return {"accuracy": 100 * right}

    return Study(
        make=balanced_cnn.network,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
        loss=lambda model, x, y: F.cross_entropy(model(x), y),
        judge=judge,
        batches=batches,
        dense_epochs=4,
        epochs=2 if short else 4,
        dense_layers=balanced_cnn.DENSE_LAYERS,
        block_width=20,
    )


STUDIES = {"lstm": lstm_study, "cnn": cnn_study}


def train(study: Study, model: nn.Module, optimizer: torch.optim.Optimizer, pruner: Pruner | None, epochs: int) -> None:
    model.train()
    rate, step = optimizer.param_groups[0]["lr"], 0
    for _ in range(epochs):
        batches = study.batches()
        for x, y in batches:
            if pruner is not None:  # down to nothing, so that the last steps' noise does not decide
                optimizer.param_groups[0]["lr"] = rate * (1 - step / (epochs * len(batches)))
            study.loss(model, x, y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if pruner is not None:
                pruner.after_step(step)


def run_seed(
    name: str, seed: int, scratch: Path, rows: Rows, settings: list[tuple[str, str]], options: Options
) -> None:
    missing = [(p, s) for p, s in settings if rows.find(model=name, seed=seed, pattern=p, sparsity=s) is None]
    if not missing:
        return
    study = STUDIES[name](short=options.short, tiny=options.smoke)
    torch.manual_seed(seed)
    model = study.make()
    optimizer = study.optimizer(model.parameters())
    dense = scratch / f"{name}-{seed}-{study.dense_epochs}-{code_of(find(f'balanced_{name}'))}.pt"
    if dense.exists():
        state = torch.load(dense, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    else:
        train(study, model, optimizer, None, study.dense_epochs)
        save_whole({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, dense)
    steps = study.epochs * len(study.batches())
    for pattern, sparsity in missing:
        start = time.perf_counter()
        ours = copy.deepcopy(model)
        slots = study.optimizer(ours.parameters())
        slots.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        schedule = Schedule(target=Fraction(sparsity), begin=1, every=steps // (2 * STAGES), stages=STAGES)
        weights = weights_of(ours, exclude=study.dense_layers)
        pruner = Pruner(weights, slots, PATTERNS[pattern](study.block_width), schedule)
        torch.manual_seed(1000 + seed)  # the same batches and dropout for all
        train(study, ours, slots, pruner, study.epochs)
        ours.eval()
        with torch.no_grad():
            judged = {key: round(value, 3) for key, value in study.judge(ours).items()}
        row = {"model": name, "seed": seed, "pattern": pattern, "sparsity": sparsity, **judged}
        row |= {"pruned": round(pruner.sparsity, 4), "seconds": round(time.perf_counter() - start, 1)}
        print(row, flush=True)
        rows.put(row)


def save_whole(thing: Any, path: Path) -> None:
    """Never half a file."""
    partial = path.with_suffix(".new")
    torch.save(thing, partial)
    partial.replace(path)


def main() -> None:
    made = parser(__doc__)
    made.add_argument("models", nargs="*", help="lstm, cnn; both by default")
    made.add_argument("--seeds", type=int, nargs="*", default=[])
    made.add_argument("--short", action="store_true", help="a fourth (LSTM) or half (CNN) of the retraining")
    made.add_argument("--scratch", type=Path, help="dense models, to be used again")
    options = parsed(made)
    torch.set_num_threads(1)
    seeds = options.seeds or list(options.pick(smoke=SEEDS[:1], quick=SEEDS[:1], full=SEEDS))
    settings = options.pick(smoke=SETTINGS[1:2], quick=SETTINGS[:3], full=SETTINGS)
    models = options.models or options.pick(smoke=["lstm", "cnn"], quick=["cnn"], full=["lstm", "cnn"])
    rows = Rows(f"{RESULT}_short" if options.short else RESULT, options, ("model", "seed", "pattern", "sparsity"))
    with tempfile.TemporaryDirectory() as temporary:
        scratch = options.scratch or Path(temporary)
        scratch.mkdir(parents=True, exist_ok=True)
        for seed in seeds:
            for name in models:
                run_seed(name, seed, scratch, rows, settings, options)
    print(accuracy(rows.all()))
    rows.finish(sorted(rows.all(), key=lambda row: (row["model"], row["seed"], row["pattern"], row["sparsity"])))


if __name__ == "__main__":
    main()

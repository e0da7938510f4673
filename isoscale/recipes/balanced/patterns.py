"""Which weights stay: masks from magnitudes, by rank.

A weight tensor is a matrix here: rows are output channels (for a convolution everything else is a row's columns). All
patterns select by rank in a stable order, never by a threshold: equal magnitudes, which quantised or freshly pruned
weights have in plenty, would make a threshold keep too many in one block and too few in another. `torch.topk` does not
say which of equals it takes; a stable sort takes the first.

What an old mask has pruned stays pruned. NaN counts as larger than anything: a model that has diverged stays visibly
so. Patterns see neither schedule nor optimizer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

import isoscale

__all__ = ["PATTERNS", "Balanced", "Blocks", "Dense", "Pattern", "Random", "as_matrix"]

#: how many of so many units are to stay
Keep = Callable[[int], int]


class Pattern(Protocol):
    def check(self, name: str, weight: torch.Tensor) -> None:
        """Refuse a weight that cannot be divided as the pattern asks."""

    def mask(self, weight: torch.Tensor, old: torch.Tensor, keep: Keep) -> torch.Tensor:
        """True where weights stay, in the weight's shape, and nowhere where `old` is False."""


def as_matrix(weight: torch.Tensor) -> torch.Tensor:
    """[outputs, everything else]."""
    if weight.dim() < 2 or not weight.numel():
        raise isoscale.UserError(
            field="weight",
            value="x".join(map(str, weight.shape)) or "a single number",
            problem="not a matrix with rows and columns",
            remedy="leave it out",
        )
    return weight.detach().flatten(1)


@dataclass(frozen=True, slots=True)
class Balanced:
    """Every block of `width` columns of every row keeps equally many weights."""

    width: int

    def check(self, name: str, weight: torch.Tensor) -> None:
        _check_divides("block width", self.width, name, as_matrix(weight).shape[1], "columns")

    def mask(self, weight: torch.Tensor, old: torch.Tensor, keep: Keep) -> torch.Tensor:
        scores = _scores(weight, old).reshape(-1, self.width)
        return _largest(scores, keep(self.width)).view(weight.shape)


@dataclass(frozen=True, slots=True)
class Random:
    """The largest weights of the whole matrix, wherever they are: what is called random or unstructured sparsity."""

    def check(self, name: str, weight: torch.Tensor) -> None:
        """Any weight will do."""

    def mask(self, weight: torch.Tensor, old: torch.Tensor, keep: Keep) -> torch.Tensor:
        return _largest(_scores(weight, old).reshape(1, -1), keep(weight.numel())).view(weight.shape)


@dataclass(frozen=True, slots=True)
class Blocks:
    """Whole tiles of `height` x `width` weights stay or go, by the largest magnitude within (Narang et al., 2017)."""

    height: int
    width: int

    def check(self, name: str, weight: torch.Tensor) -> None:
        rows, columns = as_matrix(weight).shape
        _check_divides("tile height", self.height, name, rows, "rows")
        _check_divides("tile width", self.width, name, columns, "columns")

    def mask(self, weight: torch.Tensor, old: torch.Tensor, keep: Keep) -> torch.Tensor:
        scores = _scores(weight, old)
        tiles = (scores.shape[0] // self.height, self.height, scores.shape[1] // self.width, self.width)
        # The maximum is the same in whatever order it is taken; a sum would not be.
        score = scores.reshape(tiles).amax((1, 3)).reshape(1, -1)
        kept = _largest(score, keep(score.shape[1])).view(tiles[0], 1, tiles[2], 1)
        return kept.expand(tiles).reshape(weight.shape)


@dataclass(frozen=True, slots=True)
class Dense:
    """Nothing is pruned."""

    def check(self, name: str, weight: torch.Tensor) -> None:
        """Any weight will do."""

    def mask(self, weight: torch.Tensor, old: torch.Tensor, keep: Keep) -> torch.Tensor:
        return old.clone()


#: by name, for a block width; tiles are as those that the paper compares with
PATTERNS: dict[str, Callable[[int], Pattern]] = {
    "balanced": Balanced,
    "random": lambda _: Random(),
    "block": lambda _: Blocks(4, 4),
    "dense": lambda _: Dense(),
}


def _scores(weight: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    """Magnitudes; pruned weights come after everything else, zeros that are kept included."""
    return as_matrix(weight).abs().masked_fill(~as_matrix(old), -1.0)


def _largest(scores: torch.Tensor, keep: int) -> torch.Tensor:
    """The `keep` largest of every row; of equals the first, and never one that is pruned already."""
    order = torch.sort(scores, dim=1, descending=True, stable=True).indices
    mask = torch.zeros_like(scores, dtype=torch.bool)
    mask.scatter_(1, order[:, :keep], True)
    return mask & (scores != -1.0)


def _check_divides(field: str, value: int, name: str, size: int, what: str) -> None:
    if value < 1 or size % value:
        raise isoscale.UserError(
            field=field, value=value, problem=f"does not divide the {size} {what} of {name}", remedy="choose a divisor"
        )

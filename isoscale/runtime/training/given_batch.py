"""Does a batch size that the command line gives (`profile --batches`) really reach the model?

A loader with a batch sampler has sizes of its own, and a script may draw its batches itself and use a loader only to
count steps. A figure for a batch that was never run would be worse than none, so both are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from isoscale.core.rules import Turn
from isoscale.errors import UserError

__all__ = ["check_sampler", "forward_check"]

_REMEDY = "leave --batches out, and give the size to the script (its arguments come after --)"


def check_sampler(batch: int, options: dict[str, object]) -> None:
    """Of a training loader. Raises UserError."""
    if batch and "batch_sampler" in options:
        problem = "the script's training loader has a batch_sampler, which decides how large batches are"
        raise UserError(field="--batches", value=batch, problem=problem, remedy=_REMEDY)


def forward_check(batch: int, turn: Turn, num_samples: Callable[[], int]) -> Callable[..., None]:
    """A forward pre-hook that raises UserError if a training turn's model gets no tensor with as many samples as its
    loader gave (`num_samples`)."""

    def check(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if turn.logical_rank is None or not turn.training or not num_samples():
            return
        tensors = list(_tensors([*args, *kwargs.values()]))
        if tensors and not any(num_samples() in tensor.shape for tensor in tensors):
            shapes = " and ".join(str(tuple(tensor.shape)) for tensor in tensors[:3])
            problem = f"{type(module).__name__} gets {shapes} in a turn whose loader gave {num_samples()} samples"
            raise UserError(
                field="--batches", value=batch, problem=f"{problem}: the script makes its own batches", remedy=_REMEDY
            )

    return check


def _tensors(values: list[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(list(value))
        elif isinstance(value, dict):
            yield from _tensors(list(value.values()))

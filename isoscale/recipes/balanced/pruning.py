"""Pruning during training: masks by a schedule of global steps, and weights and optimizer that obey them.

    pruner = job.keep("pruner", Pruner(weights, optimizer, pattern, schedule))
    ...
    optimizer.step()
    pruner.after_step(job.step)

Everything happens after the optimizer's step, on averaged gradients, which are equal on all executors: masks are one
value for the whole job, nothing is exchanged for them. They are state all the same, since zeros do not tell them (a
kept weight may be zero) and later prunings build on earlier ones; so a `Pruner` is kept like an optimizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

import isoscale
from isoscale.recipes.balanced.patterns import Pattern
from isoscale.recipes.balanced.schedule import Schedule

__all__ = ["Pruner", "weights_of"]


class Pruner:
    def __init__(
        self,
        weights: Mapping[str, nn.Parameter],
        optimizer: torch.optim.Optimizer,
        pattern: Pattern,
        schedule: Schedule,
    ) -> None:
        if not weights:
            raise isoscale.UserError(
                field="weights", value="none", problem="there is nothing to prune", remedy="give weights_of(model)"
            )
        for name, weight in weights.items():
            pattern.check(name, weight)
        self._weights = dict(weights)
        self._optimizer = optimizer
        self._pattern = pattern
        self._schedule = schedule
        self.stage = 0
        self.masks = {name: torch.ones_like(weight, dtype=torch.bool) for name, weight in weights.items()}

    @property
    def sparsity(self) -> float:
        """The share of weights that masks have pruned."""
        kept = sum(int(mask.sum()) for mask in self.masks.values())
        return 1 - kept / sum(mask.numel() for mask in self.masks.values())

    def after_step(self, step: int) -> bool:
        """To be called after every optimizer step with the number of committed steps; whether this one pruned."""
        due = self._schedule.stage(step)
        prunes = due > self.stage
        if prunes:
            keep = partial(self._schedule.kept, stage=due)
            for name, mask in self.masks.items():
                mask.copy_(self._pattern.mask(self._weights[name], mask, keep))
            self.stage = due
        if self.stage:
            self._apply()
        return prunes

    def state_dict(self) -> dict[str, Any]:
        return {"setting": self._setting, "stage": self.stage, "masks": dict(self.masks)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["setting"] != self._setting:
            raise isoscale.UserError(
                field="pruning",
                value=self._setting,
                problem=f"the state was made with {state['setting']}",
                remedy="go on with the same pattern, schedule and weights",
            )
        self.stage = state["stage"]
        for name, mask in state["masks"].items():
            self.masks[name].copy_(mask)

    @property
    def _setting(self) -> str:
        shapes = ", ".join(f"{name} {'x'.join(map(str, mask.shape))}" for name, mask in self.masks.items())
        return f"{self._pattern}, {self._schedule}, {shapes}"

    @torch.no_grad()
    def _apply(self) -> None:
        """Zero what is pruned: weights, and momenta, which would go on moving them.

        By filling: a product with the mask would leave negative zeros, and NaN where a value overflowed.
        """
        for name, weight in self._weights.items():
            pruned = ~self.masks[name]
            weight.masked_fill_(pruned, 0.0)
            for slot in self._optimizer.state.get(weight, {}).values():
                if isinstance(slot, torch.Tensor) and slot.shape == weight.shape:
                    slot.masked_fill_(pruned, 0.0)


def weights_of(model: nn.Module, *, exclude: tuple[str, ...] = ()) -> dict[str, nn.Parameter]:
    """Matrices and kernels of linear, convolution and LSTM layers, by name, without those of layers in `exclude`."""
    found = {}
    for path, module in model.named_modules():
        if path in exclude or not isinstance(module, nn.Linear | nn.Conv2d | nn.LSTM):
            continue
        for name, parameter in module.named_parameters(recurse=False):
            if name.startswith("weight"):
                found[f"{path}.{name}".lstrip(".")] = parameter
    return found

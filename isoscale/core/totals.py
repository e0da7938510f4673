"""What a script reports from its turns: logged values (means) and sums, gathered per logical worker.

A `Tally` holds the values of one step for the logical workers of one executor. Combining is done in
logical order in float64, integers exactly, so the result does not depend on placement.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from isoscale.errors import UserError

__all__ = ["Combined", "Tally", "Total", "ValueSpec", "add_totals", "combine"]

Total = int | float | torch.Tensor
Kind = Literal["mean", "int", "float"]


@dataclass(frozen=True, slots=True, order=True)
class ValueSpec:
    """What all executors must agree on to lay values out in a seal."""

    name: str
    kind: Kind
    shape: tuple[int, ...] = ()

    @property
    def numel(self) -> int:
        size = 1
        for extent in self.shape:
            size *= extent
        return size


@dataclass(slots=True)
class Combined:
    """One step's values over all logical workers."""

    means: dict[str, float] = field(default_factory=dict)
    sums: dict[str, Total] = field(default_factory=dict)
    #: every logged value by logical rank, for exact comparison
    by_rank: dict[str, dict[int, float]] = field(default_factory=dict)


class Tally:
    def __init__(self) -> None:
        self._logged: dict[str, dict[int, list[Any]]] = {}
        self._summed: dict[str, dict[int, torch.Tensor]] = {}

    def log(self, logical_rank: int, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            kept = value.detach() if isinstance(value, torch.Tensor) else value
            self._logged.setdefault(name, {}).setdefault(logical_rank, []).append(kept)

    def sum(self, logical_rank: int, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            tensor = _wide(name, value)
            mine = self._summed.setdefault(name, {})
            mine[logical_rank] = mine[logical_rank] + tensor if logical_rank in mine else tensor

    def values(self) -> dict[ValueSpec, dict[int, torch.Tensor]]:
        """Everything by spec and logical rank, as int64 or float64 tensors on the CPU."""
        out: dict[ValueSpec, dict[int, torch.Tensor]] = {}
        for name, logged in self._logged.items():
            out[ValueSpec(name, "mean")] = {rank: _mean(name, values) for rank, values in logged.items()}
        for name, summed in self._summed.items():
            for rank, tensor in summed.items():
                kind: Kind = "float" if tensor.is_floating_point() else "int"
                out.setdefault(ValueSpec(name, kind, tuple(tensor.shape)), {})[rank] = tensor.cpu()
        return out


def combine(values: Mapping[ValueSpec, Mapping[int, torch.Tensor]]) -> Combined:
    """Means and sums in logical order, left to right. By name, so that neither placement nor the past order them."""
    result = Combined()
    for spec in sorted(values):
        by_rank = values[spec]
        ordered = [by_rank[rank] for rank in sorted(by_rank)]
        if not ordered:
            continue
        total = ordered[0].clone()
        for value in ordered[1:]:
            total += value
        if spec.kind == "mean":
            result.means[spec.name] = total.item() / len(ordered)
            result.by_rank[spec.name] = {rank: by_rank[rank].item() for rank in sorted(by_rank)}
        else:
            result.sums[spec.name] = total if spec.shape else total.item()
    return result


def add_totals(totals: dict[str, Total], more: Mapping[str, Total]) -> None:
    """Running totals over steps, in step order."""
    for name, value in more.items():
        totals[name] = totals[name] + value if name in totals else value


def _mean(name: str, values: list[Any]) -> torch.Tensor:
    numbers = [float(value) for value in values]
    total = numbers[0]
    for number in numbers[1:]:
        total += number
    return torch.tensor(total / len(numbers), dtype=torch.float64)


def _wide(name: str, value: Any) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value.detach().to(torch.float64 if value.is_floating_point() else torch.int64, copy=True)
    if isinstance(value, bool | int):
        return torch.tensor(int(value), dtype=torch.int64)
    if isinstance(value, float):
        return torch.tensor(value, dtype=torch.float64)
    if hasattr(value, "item"):
        return _wide(name, value.item())
    raise UserError(
        field=f"step.sum({name}=...)",
        value=type(value).__name__,
        problem="neither a number nor a tensor",
        remedy="pass an int, a float or a tensor",
    )

"""What a script reports from its turns: logged values (means) and sums, gathered per logical worker.

A `Tally` holds the values of one step for the logical workers of one executor. Combining is done in
logical order in float64, integers exactly, so the result does not depend on placement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import numpy as np
import torch

from isoscale.errors import UserError

__all__ = ["Combined", "Gathered", "Tally", "Total", "ValueSpec", "add_totals", "combine", "in_logical_order"]

Total = int | float | torch.Tensor
Kind = Literal["mean", "int", "float"]
Given = TypeVar("Given")
#: what turns gave to all, by name and logical rank
Gathered = dict[str, dict[int, list[Any]]]


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
    #: what turns gave to all, in logical order
    gathered: dict[str, list[Any]] = field(default_factory=dict)


class Tally:
    def __init__(self) -> None:
        self._logged: dict[str, dict[int, list[Any]]] = {}
        self._summed: dict[str, dict[int, torch.Tensor]] = {}
        self.gathered: Gathered = {}

    def gather(self, logical_rank: int, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            copied = _copied(f"step.gather({name}=...)", value)
            self.gathered.setdefault(name, {}).setdefault(logical_rank, []).append(copied)

    def log(self, logical_rank: int, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            kept = value.detach() if isinstance(value, torch.Tensor) else value
            self._logged.setdefault(name, {}).setdefault(logical_rank, []).append(kept)

    def sum(self, logical_rank: int, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            tensor = _wide(name, value)
            mine = self._summed.setdefault(name, {})
            mine[logical_rank] = mine[logical_rank] + tensor if logical_rank in mine else tensor

    def of(self, logical_rank: int) -> Tally:
        """What one logical worker's turn has given so far, whatever becomes of tensors that it has logged."""
        part = Tally()
        for name, values in _given_by(logical_rank, self._logged):
            part._logged[name] = {logical_rank: [float(value) for value in values]}
        for name, summed in _given_by(logical_rank, self._summed):
            part._summed[name] = {logical_rank: summed}
        for name, given in _given_by(logical_rank, self.gathered):
            part.gathered[name] = {logical_rank: given}
        return part

    def add(self, more: Tally) -> None:
        """What other logical workers have given, or these under other names."""
        for name, logged in more._logged.items():
            self._logged.setdefault(name, {}).update(logged)
        for name, summed in more._summed.items():
            self._summed.setdefault(name, {}).update(summed)
        for name, given in more.gathered.items():
            self.gathered.setdefault(name, {}).update(given)

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
        if spec.kind == "mean":
            numbers = [value.item() for value in ordered]
            result.means[spec.name] = _left_to_right(numbers) / len(numbers)
            result.by_rank[spec.name] = dict(zip(sorted(by_rank), numbers, strict=True))
            continue
        total = ordered[0].clone()
        for value in ordered[1:]:
            total += value
        result.sums[spec.name] = total if spec.shape else total.item()
    return result


def in_logical_order(parts: Sequence[Gathered]) -> dict[str, list[Any]]:
    """Of all executors: by name, what each logical worker gave, one after the other."""
    by_name: Gathered = {}
    for part in parts:
        for name, by_rank in part.items():
            by_name.setdefault(name, {}).update(by_rank)
    return {
        name: [one for rank in sorted(by_rank) for one in by_rank[rank]] for name, by_rank in sorted(by_name.items())
    }


def add_totals(totals: dict[str, Total], more: Mapping[str, Total]) -> None:
    """Running totals over steps, in step order."""
    for name, value in more.items():
        totals[name] = totals[name] + value if name in totals else value


def _given_by(logical_rank: int, by_name: Mapping[str, Mapping[int, Given]]) -> list[tuple[str, Given]]:
    return [(name, by_rank[logical_rank]) for name, by_rank in by_name.items() if logical_rank in by_rank]


def _mean(name: str, values: list[Any]) -> torch.Tensor:
    numbers = [float(value) for value in values]
    return torch.tensor(_left_to_right(numbers) / len(numbers), dtype=torch.float64)


def _left_to_right(numbers: Sequence[float]) -> float:
    """Additions of doubles one after the other. Not `sum`, which compensates for rounding from Python 3.12 on."""
    total = numbers[0]
    for number in numbers[1:]:
        total += number
    return total


def _copied(where: str, value: Any) -> Any:
    """As it is now, on the CPU."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if value is None or type(value) in (bool, int, float, str, bytes):
        return value
    if isinstance(value, dict):
        return {key: _copied(f"{where}[{key!r}]", one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        items = [_copied(f"{where}[{i}]", one) for i, one in enumerate(value)]
        return tuple(items) if isinstance(value, tuple) else items
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy())
    if hasattr(value, "item"):
        return value.item()
    raise UserError(
        field=where,
        value=type(value).__name__,
        problem="cannot be sent without pickling code",
        remedy="give tensors, numbers, strings, lists and dicts of them",
    )


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

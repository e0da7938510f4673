"""Are two runs the same, bit for bit? Pure: values in, a report out.

Compares what the elastic run and the reference left: the values that every logical worker logged in every step, the
number of steps, and every tensor and plain value of the final state. Numbers are equal when their bits are: NaN equals
the same NaN, 0.0 does not equal -0.0. Memory layout is not compared. Reads no files and starts nothing; why two runs
differ is `runtime.tools.explain`'s business.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from isoscale.core.encoding.digest import flat_state

__all__ = ["Check", "Difference", "Report", "Side", "compare", "same_bits"]

#: of one step: name -> logical rank -> float hex
StepValues = Mapping[str, Mapping[int, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """What one of the two runs left."""

    step: int
    digest: str
    values: Sequence[StepValues]
    #: the contents of final.pt
    state: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing that is not equal, as text."""

    where: str
    elastic: str
    reference: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line of the report: how many things of a sort were compared, and which of them differ."""

    what: str
    count: int
    differing: int = 0
    first: Difference | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    checks: tuple[Check, ...]
    elastic_digest: str
    reference_digest: str

    @property
    def equal(self) -> bool:
        return self.elastic_digest == self.reference_digest and not any(check.differing for check in self.checks)


def compare(elastic: Side, reference: Side) -> Report:
    """Everything that both runs left, steps first."""
    tensors, others = _leaves(elastic.state), _leaves(reference.state)
    names = list(dict.fromkeys([*tensors, *others]))
    is_tensor = {n: isinstance(tensors.get(n), torch.Tensor) or isinstance(others.get(n), torch.Tensor) for n in names}
    model = [n for n in names if is_tensor[n] and n.startswith(("model.", "models."))]
    kept = [n for n in names if is_tensor[n] and not n.startswith(("model.", "models."))]
    plain = [n for n in names if not is_tensor[n]]
    return Report(
        checks=(
            _steps(elastic.step, reference.step),
            _check("logged values (every step, every logical worker)", _values(elastic.values, reference.values)),
            _check("tensors of the model", [_leaf(n, tensors, others) for n in model]),
            _check("tensors of the optimizer and other kept state", [_leaf(n, tensors, others) for n in kept]),
            _check("plain values of kept state", [_leaf(n, tensors, others) for n in plain]),
        ),
        elastic_digest=elastic.digest,
        reference_digest=reference.digest,
    )


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(_bytes(a), _bytes(b))


def _check(what: str, results: Sequence[Difference | None]) -> Check:
    found = [result for result in results if result is not None]
    return Check(what=what, count=len(results), differing=len(found), first=found[0] if found else None)


def _steps(elastic: int, reference: int) -> Check:
    first = None
    if elastic != reference:
        first = Difference(where="number of steps", elastic=str(elastic), reference=str(reference))
    return Check(what="steps", count=elastic, differing=abs(elastic - reference), first=first)


def _values(elastic: Sequence[StepValues], reference: Sequence[StepValues]) -> list[Difference | None]:
    results: list[Difference | None] = []
    for index in range(max(len(elastic), len(reference))):
        mine = dict(_flat(elastic[index])) if index < len(elastic) else {}
        theirs = dict(_flat(reference[index])) if index < len(reference) else {}
        for rank, name in sorted({*mine, *theirs}):
            a, b = mine.get((rank, name)), theirs.get((rank, name))
            where = f"step {index + 1}, logical worker {rank}: {name}"
            same = a == b
            results.append(None if same else Difference(where=where, elastic=_number(a), reference=_number(b)))
    return results


def _flat(values: StepValues) -> Iterator[tuple[tuple[int, str], str]]:
    for name, by_rank in values.items():
        for rank, value in by_rank.items():
            yield (int(rank), name), value


def _number(text: str | None) -> str:
    return "not logged" if text is None else repr(float.fromhex(text))


def _leaves(state: Mapping[str, object]) -> dict[str, object]:
    """Every leaf by path; the number of steps has a line of its own."""
    return {path: leaf for path, leaf in flat_state(state) if path != "step"}


def _leaf(name: str, elastic: Mapping[str, object], reference: Mapping[str, object]) -> Difference | None:
    if name not in elastic or name not in reference:
        side = ["there" if name in one else "missing" for one in (elastic, reference)]
        return Difference(where=name, elastic=side[0], reference=side[1])
    a, b = elastic[name], reference[name]
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return None if same_bits(a, b) else _tensors(name, a, b)
    if type(a) is type(b) and (a.hex() == b.hex() if isinstance(a, float) and isinstance(b, float) else a == b):
        return None
    return Difference(where=name, elastic=_shown(a), reference=_shown(b))


def _tensors(name: str, a: torch.Tensor, b: torch.Tensor) -> Difference:
    if a.dtype != b.dtype or a.shape != b.shape:
        return Difference(where=name, elastic=_shown(a), reference=_shown(b))
    size = a.element_size()
    unequal = (_bytes(a).view(-1, size) != _bytes(b).view(-1, size)).any(1)
    at = int(unequal.nonzero()[0])
    index = [int(i) for i in torch.unravel_index(torch.tensor(at), a.shape)] if a.dim() else []
    return Difference(
        where=f"{name}{index if index else ''} ({int(unequal.sum())} of {a.numel()} elements)",
        elastic=_element(a, at),
        reference=_element(b, at),
    )


def _element(tensor: torch.Tensor, at: int) -> str:
    value = tensor.detach().cpu().contiguous().reshape(-1)[at].item()
    return f"{value:.9g}" if isinstance(value, float) and tensor.dtype != torch.float64 else repr(value)


def _shown(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)

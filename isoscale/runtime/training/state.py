"""Everything of a job that must survive: models, kept objects, per-worker contexts, position.

Turns it into plain nested dicts of tensors and values (what `torch.load(weights_only=True)` reads)
and into digests. Writes files atomically. Does not decide when.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol, cast, overload

import torch

from isoscale.core.encoding.digest import digest, flat_state
from isoscale.core.encoding.fast_hash import fast_digest
from isoscale.core.tracked import TrackedModel
from isoscale.errors import UserError

__all__ = ["Attributes", "JobState", "Stateful", "Tree", "atomic_save", "plain", "stateful"]

#: nested dicts, lists and tuples of tensors and plain values, which can be stored without pickling code
Tree = dict[str, object]

_PLAIN = frozenset({bool, int, float, str, bytes, type(None)})
_RESERVED = frozenset({"isoscale", "model", "models", "step", "state"})


class Stateful(Protocol):
    """What `job.keep` takes: optimizers, schedules, scalers, or a script's own."""

    def state_dict(self) -> object: ...

    def load_state_dict(self, state: Any, /) -> object: ...


class Attributes:
    """An object without `state_dict`, such as a meter, kept by its attributes."""

    def __init__(self, name: str, thing: object) -> None:
        self._name = name
        self.thing = thing

    def state_dict(self) -> Tree:
        return cast("Tree", plain(vars(self.thing), self._name))

    def load_state_dict(self, state: Tree) -> None:
        vars(self.thing).clear()
        vars(self.thing).update(state)


def stateful(name: str, thing: object) -> Stateful:
    """`thing` as `job.keep` keeps it. Raises UserError if it cannot be kept."""
    if hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict"):
        return cast("Stateful", thing)
    if not hasattr(thing, "__dict__") or callable(thing):
        raise UserError(
            field=f"job.keep({name!r}, ...)",
            value=type(thing).__name__,
            problem="has no state_dict() and load_state_dict(), and no attributes to keep instead",
            remedy="put plain values into job.state",
        )
    kept = Attributes(name, thing)
    kept.state_dict()
    return kept


class JobState:
    def __init__(self) -> None:
        self.models: dict[str, TrackedModel] = {}
        self.kept: dict[str, Stateful] = {}
        #: plain values of the user's, kept
        self.values: dict[str, Any] = {}

    def new_model_name(self, module: torch.nn.Module) -> str:
        base = type(module).__name__
        taken = sum(name.split("-")[0] == base for name in self.models)
        return f"{base}-{taken + 1}" if taken else base

    def keep(self, name: str, thing: object) -> None:
        if name in _RESERVED or name in self.kept:
            raise UserError(
                field="job.keep(name)",
                value=name,
                problem="reserved" if name in _RESERVED else "kept already",
                remedy="choose another name",
            )
        self.kept[name] = stateful(name, thing)

    def final(self, step: int, *, copy: bool = True) -> Tree:
        """The contents of final.pt; without `copy` its tensors are the job's own."""
        models = {name: plain(m.module.state_dict(), name, copy=copy) for name, m in self.models.items()}
        out: Tree = {"model": next(iter(models.values()))} if len(models) == 1 else {"models": models}
        out |= {name: plain(thing.state_dict(), name, copy=copy) for name, thing in self.kept.items()}
        if self.values:
            out["state"] = plain(self.values, "job.state")
        out["step"] = step
        return out

    def digest(self) -> str:
        optimizers = {n: t.state_dict() for n, t in self.kept.items() if isinstance(t, torch.optim.Optimizer)}
        return digest({n: m.module.state_dict() for n, m in self.models.items()}, optimizers)

    def audited(self) -> Iterator[tuple[str, str]]:
        """Name and digest of every tensor and value that must be equal on all executors."""
        for name, model in self.models.items():
            for path, leaf in flat_state(model.module.state_dict()):
                yield f"{name}.{path}", _leaf_digest(leaf)
        kept = ((name, thing.state_dict()) for name, thing in self.kept.items())
        for name, state in (*kept, ("job.state", self.values)):
            for path, leaf in flat_state(state):
                yield f"{name}.{path}", _leaf_digest(leaf)

    def tensors(self) -> Iterator[torch.Tensor]:
        """All tensors that are kept, for telling them from those that are not."""
        for model in self.models.values():
            yield from model.module.parameters()
            yield from model.module.buffers()
        for state in [*(thing.state_dict() for thing in self.kept.values()), self.values]:
            for _, leaf in flat_state(state):
                if isinstance(leaf, torch.Tensor):
                    yield leaf

    def learning_rates(self) -> list[float]:
        optimizers = [t for t in self.kept.values() if isinstance(t, torch.optim.Optimizer)]
        return [float(group["lr"]) for optimizer in optimizers for group in optimizer.param_groups if "lr" in group]


@overload
def plain(state: dict[str, Any], path: str, *, copy: bool = True) -> Tree: ...


@overload
def plain(state: object, path: str, *, copy: bool = True) -> object: ...


def plain(state: object, path: str, *, copy: bool = True) -> object:
    """A copy made of dicts, lists, tensors and plain values only; anything else is refused by name."""
    if isinstance(state, torch.Tensor):
        return state.detach().clone(memory_format=torch.preserve_format) if copy else state.detach()
    if type(state) in _PLAIN:
        return state
    if isinstance(state, dict):
        return {key: plain(value, f"{path}.{key}", copy=copy) for key, value in state.items()}
    if isinstance(state, list | tuple | set | frozenset):
        items = [plain(value, f"{path}.{i}", copy=copy) for i, value in enumerate(state)]
        return tuple(items) if isinstance(state, tuple) else items
    if hasattr(state, "item") and getattr(state, "ndim", 1) == 0:
        return state.item()
    raise UserError(
        field=path,
        value=type(state).__name__,
        problem="cannot be stored without pickling code",
        remedy="keep tensors, numbers, strings, lists and dicts only",
    )


def atomic_save(value: object, path: Path) -> None:
    """Whole or not at all: temporary file, fsync, rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            torch.save(value, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _leaf_digest(leaf: object) -> str:
    return fast_digest(leaf) if isinstance(leaf, torch.Tensor) else repr(leaf)

"""Finds state that training changes but nobody keeps, before it can make a result wrong.

Two searches. Attributes of a module that a forward changes and that are no buffers would be shared
by all logical workers of an executor. Modules, optimizers and tensors that live in the variables of
the training function and change from step to step would be lost when an executor joins later. Both
compare identities and version counters, not contents; a plain number in a local variable is not seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import CodeType, FrameType
from typing import Any

import torch

__all__ = ["AttributeWatch", "VariableWatch", "script_variables"]

_OWN = frozenset({"training", "_parameters", "_buffers", "_modules"})


class AttributeWatch:
    """The plain attributes of a model before a turn, to be compared after it."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._before = dict(_attributes(module))

    def changed(self) -> str | None:
        """The first attribute that is not what it was, as a dotted name."""
        after = dict(_attributes(self._module))
        return next((name for name in after if after[name] != self._before.get(name)), None)


class VariableWatch:
    """Stateful objects in the training function's variables, between two steps."""

    def __init__(self, variables: dict[str, Any], kept: Iterable[torch.Tensor]) -> None:
        known = {t.data_ptr() for t in kept}
        self._marks: dict[str, tuple[Any, list[tuple[torch.Tensor, int]]]] = {}
        for name, value in variables.items():
            tensors = [(t, t._version) for t in _tensors(value)]
            if any(t.data_ptr() not in known for t, _ in tensors):
                self._marks[name] = (value, tensors)

    def changed(self, variables: dict[str, Any], kept: Iterable[torch.Tensor]) -> str | None:
        """The name of a variable that still holds the same object with other contents, none of it kept.

        A container that has only grown is taken for a record of metrics, not for state.
        """
        known = {t.data_ptr() for t in kept}
        for name, (value, tensors) in self._marks.items():
            if variables.get(name) is not value:
                continue  # bound anew: a temporary such as a batch or a loss
            for now, (before, version) in zip(_tensors(value), tensors, strict=False):
                if (now is not before or before._version != version) and now.data_ptr() not in known:
                    return name
        return None


def script_variables(frame: FrameType | None, outermost: CodeType | None) -> dict[str, Any]:
    """Variables of the frames from `frame` out to the one that runs `outermost`, inner ones winning.

    Frames of other files in between (libraries, isoscale itself) are passed over.
    """
    chain: list[FrameType] = []
    while frame is not None:
        chain.append(frame)
        if frame.f_code is outermost:
            break
        frame = frame.f_back
    else:
        return {}
    script = chain[-1].f_code.co_filename
    variables: dict[str, Any] = {}
    for one in reversed(chain):
        if one.f_code.co_filename == script:
            variables |= one.f_locals
    return variables


def _attributes(module: torch.nn.Module) -> Iterator[tuple[str, object]]:
    for prefix, child in module.named_modules():
        for name, value in vars(child).items():
            if name not in _OWN and not (name.startswith("_") and name.endswith(("_hooks", "_hooks_with_kwargs"))):
                yield f"{prefix}.{name}" if prefix else name, _sketch(value)


def _sketch(value: Any) -> object:
    """Something that compares unequal when the value changes in the usual ways, and costs little."""
    if isinstance(value, bool | int | float | str | bytes | type(None)):
        return value
    if isinstance(value, torch.Tensor):
        return id(value), value._version
    if isinstance(value, list | tuple):
        return tuple(_sketch(v) if isinstance(v, bool | int | float | str | torch.Tensor) else id(v) for v in value)
    if isinstance(value, dict):
        return tuple((k, id(v) if not isinstance(v, bool | int | float | str) else v) for k, v in value.items())
    if isinstance(value, set):
        return len(value)
    return id(value)


def _tensors(value: Any) -> list[torch.Tensor]:
    """Tensors of a stateful object: a module's, an optimizer's, or those in a plain container."""
    if isinstance(value, torch.nn.Module):
        return [*value.parameters(), *value.buffers()]
    if isinstance(value, torch.optim.Optimizer):
        return [t for state in value.state.values() for t in state.values() if isinstance(t, torch.Tensor)]
    if isinstance(value, dict):
        return [t for t in value.values() if isinstance(t, torch.Tensor)]
    if isinstance(value, list):
        return [t for t in value if isinstance(t, torch.Tensor)]
    return []

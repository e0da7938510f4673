"""What a change of the batch size does to learning rates: the ready-made rules, and a script's own.

`linear` multiplies them by new/old, `sqrt` by its root, `adascale` by the gain that the measured noise scale gives at
the change, `none` by nothing. What is multiplied is `lr` and `initial_lr` of all optimizers that are kept, and
`base_lrs` and `max_lr` of schedulers, which would write the old rates back otherwise. Everything is computed before
anything is changed, and can be taken back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Literal, cast, get_args

import torch

from isoscale.core.noise import gain
from isoscale.errors import UserError

__all__ = ["BatchRule", "ReadyMade", "check_rule", "factor_of", "scale_rates", "step_schedulers"]

ReadyMade = Literal["linear", "sqrt", "adascale", "none"]
#: a ready-made one, or a function of the old and the new size
BatchRule = ReadyMade | Callable[[int, int], object]
Change = tuple[Callable[[Any], None], Any, Any]

_GROUP_RATES = ("lr", "initial_lr", "max_lr", "min_lr")
_SCHEDULER_RATES = ("base_lrs", "max_lrs", "_last_lr")
#: by which a scheduler counts its own steps
_LENGTHS = ("total_steps", "T_max", "total_iters", "T_0", "step_size", "milestones", "step_size_up")


def check_rule(rule: object, field: str) -> BatchRule:
    if callable(rule) or rule in get_args(ReadyMade):
        return cast(BatchRule, rule)
    raise UserError(
        field=field,
        value=rule,
        problem="no such rule",
        remedy="give 'linear', 'sqrt', 'adascale', 'none' or a function of the old and the new size",
    )


def factor_of(rule: ReadyMade, old: int, new: int, *, num_workers: int, noise_scale: float | None) -> float:
    """What learning rates are multiplied with. Raises UserError if it cannot be known."""
    if rule == "adascale":
        if noise_scale is None:
            raise UserError(
                field="batch_rule",
                value="adascale",
                problem="there is no estimate of the noise scale",
                remedy="run with --measure-noise K and change the size some steps later, or use another rule",
            )
        return gain(noise_scale, old * num_workers, new * num_workers)
    return {"linear": new / old, "sqrt": math.sqrt(new / old), "none": 1.0}[rule]


def scale_rates(kept: Iterable[object], factor: float) -> Callable[[], None]:
    """Multiply all learning rates; what is returned takes that back. Nothing is changed if a rate would not be finite
    and this raises ValueError."""
    changes = list(_changes(kept, factor))
    for _, _, value in changes:
        for rate in value if isinstance(value, list) else [value]:
            if not math.isfinite(float(rate)):
                raise ValueError(f"a learning rate times {factor!r} is {float(rate)!r}")
    for setter, _, value in changes:
        setter(value)

    def take_back() -> None:
        for setter, before, _ in changes:
            setter(before)

    return take_back


def step_schedulers(kept: Iterable[tuple[str, object]], step: int, epoch: int) -> list[str]:
    """Names of kept schedulers whose length seems to be in steps: they were stepped as often as there were steps."""
    if step <= epoch + 1:
        return []
    found = []
    for name, thing in kept:
        for one in _with_parts(thing) if _is_scheduler(thing) else ():
            if getattr(one, "last_epoch", -1) == step and _has_length(one):
                found.append(f"{name} ({type(one).__name__})")
    return found


def _changes(kept: Iterable[object], factor: float) -> Iterator[Change]:
    seen: set[int] = set()
    for thing in kept:
        parts = list(_with_parts(thing)) if _is_scheduler(thing) else [thing]
        for one in [*parts, *(getattr(part, "optimizer", None) for part in parts)]:
            if id(one) in seen:
                continue
            seen.add(id(one))
            if isinstance(one, torch.optim.Optimizer):
                for group in one.param_groups:
                    yield from (_in_group(group, name, factor) for name in _GROUP_RATES if _has_rate(group, name))
            elif _is_scheduler(one):
                for name in _SCHEDULER_RATES:
                    rates = getattr(one, name, None)
                    if isinstance(rates, list) and rates:
                        yield _attribute(one, name), rates, [rate * factor for rate in rates]


def _in_group(group: dict[str, Any], name: str, factor: float) -> Change:
    rate = group[name]
    if isinstance(rate, torch.Tensor):
        # In place: a captured graph, or a fused kernel, reads this very tensor.
        return partial(_write, rate), rate.detach().clone(), rate.detach() * factor
    return lambda value: group.__setitem__(name, value), rate, rate * factor


def _write(rate: torch.Tensor, value: torch.Tensor) -> None:
    rate.detach().copy_(value)


def _attribute(one: object, name: str) -> Callable[[Any], None]:
    return lambda value: setattr(one, name, value)


def _has_rate(group: dict[str, Any], name: str) -> bool:
    return isinstance(group.get(name), float | int | torch.Tensor) and not isinstance(group[name], bool)


def _is_scheduler(thing: object) -> bool:
    return isinstance(thing, torch.optim.lr_scheduler.LRScheduler)


def _has_length(scheduler: Any) -> bool:
    if any(hasattr(scheduler, length) for length in _LENGTHS):
        return True
    # Those of transformers are LambdaLR of functions that are told the length.
    given = (getattr(f, "keywords", {}) for f in getattr(scheduler, "lr_lambdas", ()))
    return any("num_training_steps" in keywords for keywords in given)


def _with_parts(scheduler: Any) -> Iterator[Any]:
    """A scheduler and those that it is made of."""
    yield scheduler
    for part in getattr(scheduler, "_schedulers", ()):
        yield from _with_parts(part)

"""After a failure: how far has everybody come? What a luckier executor saw sealed counts for all.

A step is sealed by one exchange, so when that breaks some may have its outcome and some not. They differ by one seal at
most; whoever lacks it takes it from one who has it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from isoscale.core.engine import StepEngine
from isoscale.core.reduction.exchange import Exchange, ExchangeBrokenError

__all__ = ["Agreement", "FellBehindError", "agree"]


class FellBehindError(Exception):
    """This executor cannot follow the others any more."""


@dataclass(frozen=True, slots=True)
class Agreement:
    #: the highest step that any of them has committed
    newest_step: int
    #: the sealed outcome that this executor lacks
    vector: torch.Tensor | None = None


def agree(exchange: Exchange, engine: StepEngine, step: int) -> Agreement:
    """Collective: all members of `exchange` call it, each with the steps it has committed."""
    num = exchange.placement.num_executors
    if num == 1:
        return Agreement(step)
    table = torch.zeros(num, 4, dtype=torch.int64)
    held = engine.last_vector
    size = 0 if held is None else held.numel()
    table[exchange.index] = torch.tensor([engine.seals, engine.seal.entered, size, step])
    exchange.sum_int64(table)
    seals, entered, sizes, steps = table.unbind(1)
    newest_step, newest = int(steps.max()), int(seals.max())
    unfit = [i for i in range(num) if seals[i] < newest and (seals[i] < newest - 1 or not entered[i])]
    if exchange.index in unfit:
        raise FellBehindError
    if unfit:
        raise ExchangeBrokenError(f"executors at positions {unfit} have not followed")
    if bool((seals == newest).all()):
        return Agreement(newest_step)
    holder = next(i for i in range(num) if seals[i] == newest and sizes[i] > 0)
    vector = held if exchange.index == holder else torch.zeros(int(sizes[holder]), dtype=torch.int64)
    assert vector is not None
    exchange.broadcast([vector], holder)
    return Agreement(newest_step, vector if engine.seals < newest else None)

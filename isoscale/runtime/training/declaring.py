"""`batch_sizes`, `batch_rule` and `job.on_batch_change`: what a script says of its batch size, checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from isoscale.batches import parse_sizes
from isoscale.errors import UserError
from isoscale.runtime.training.batch_rules import check_rule
from isoscale.runtime.training.batches import LiveBatches

if TYPE_CHECKING:
    from isoscale.runtime.training.loader import Loader
    from isoscale.runtime.training.loop import TrainingLoop

__all__ = ["declare", "declared_sizes", "on_batch_change"]


def declared_sizes(
    call: str, loop: TrainingLoop, sizes: object, rule: object, batch_size: int, *, train: bool
) -> tuple[int, ...]:
    """The sizes that a loader allows, ascending; nothing if its size never changes. Raises UserError."""
    if sizes is None:
        if rule is not None:
            problem, remedy = "the batch size never changes", "give batch_sizes too, or leave it out"
            raise UserError(field=f"{call}(batch_rule=...)", value=rule, problem=problem, remedy=remedy)
        return ()
    field = f"{call}(batch_sizes=...)"
    if not train:
        problem, remedy = "an evaluation keeps its batch size", "leave it out"
        raise UserError(field=field, value=sizes, problem=problem, remedy=remedy)
    if loop.batches is not None:
        problem = f"{loop.batches.loader.name} declares some already"
        raise UserError(field=field, value=sizes, problem=problem, remedy="declare them for one training loader only")
    return parse_sizes(sizes, batch_size, field)


def declare(loop: TrainingLoop, loader: Loader, sizes: tuple[int, ...], size: int, rule: object) -> None:
    """Let the size of this loader change, if it has declared some."""
    if not sizes:
        return
    loop.check_set_up("job.loader(batch_sizes=...)")
    loop.batches = live = LiveBatches(loop, loader, sizes, size)
    live.follow(*loop.recorded_batches)
    if rule is not None:
        live.rule = check_rule(rule, "job.loader(batch_rule=...)")


def on_batch_change(loop: TrainingLoop, f: Callable[[int, int], object]) -> None:
    loop.check_set_up("job.on_batch_change")
    field = "job.on_batch_change(f)"
    if not callable(f):
        remedy = "give a function of the old and the new size"
        raise UserError(field=field, value=f, problem="not a function", remedy=remedy)
    if loop.batches is None:
        problem, remedy = "no loader declares batch_sizes", "declare them before: job.loader(..., batch_sizes=...)"
        raise UserError(field=field, value=getattr(f, "__name__", f), problem=problem, remedy=remedy)
    if loop.batches.rule is not None:
        problem, remedy = "the loader has a batch_rule, or another function was given", "give one of them"
        raise UserError(field=field, value=getattr(f, "__name__", f), problem=problem, remedy=remedy)
    loop.batches.rule = f

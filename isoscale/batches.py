"""Batch sizes over a job's life, as values: the plan of changes, how it is written, which entry is due. Pure, no torch.

A size is that of one logical worker. What a job computes depends on which sizes took effect after how many committed
steps, and with which factors; so a plan that was recorded is as good as one that was given (`isoscale run --like`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from isoscale import limits
from isoscale.errors import UserError, shortened

__all__ = [
    "DECLARE",
    "NOT_DECLARED",
    "BatchChange",
    "due",
    "parse_batch_plan",
    "parse_sizes",
    "plan_text",
    "recorded_changes",
]

#: why a plan is refused by a script that has but one size
NOT_DECLARED = "no loader of the script declares batch_sizes"
DECLARE = "declare them: job.loader(..., batch_sizes=(16, 32), batch_rule=...); TrainingArguments take both as well"


@dataclass(frozen=True, slots=True)
class BatchChange:
    """From `step` committed steps on the batches of every logical worker have `size` samples."""

    step: int
    size: int
    #: what learning rates were multiplied with, where that was measured and is not to be measured again
    factor: float | None = None
    #: False: for its sake a pass ended before all was read, and then it did not come into force
    made: bool = True


def parse_batch_plan(text: str | None, until: int | None = None, *, field: str = "--batch-plan") -> list[BatchChange]:
    """Entries `step:size` in ascending order of steps; those after the end are left out. Raises UserError.

    >>> parse_batch_plan("0:32, 400:64")
    [BatchChange(step=0, size=32, factor=None, made=True), BatchChange(step=400, size=64, factor=None, made=True)]
    """
    if text is None:
        return []
    if len(text) > limits.MAX_PLAN_CHARS or text.count(",") >= limits.MAX_PLAN_ENTRIES:
        raise _refused(field, text, "has too many entries", f"give at most {limits.MAX_PLAN_ENTRIES}")
    plan: list[BatchChange] = []
    for part in text.split(","):
        step, colon, size = (one.strip() for one in part.partition(":"))
        if not colon or not step or not size:
            problem = f"{shortened(part.strip(), 60)!r} is not STEP:SIZE"
            raise _refused(field, text, problem, 'give, for example, "0:32,400:64"')
        entry = BatchChange(
            limits.whole(step, field, limits.STEP, part_of=text), limits.whole(size, field, limits.BATCH, part_of=text)
        )
        if plan and entry.step <= plan[-1].step:
            problem = f"step {entry.step} does not come after {plan[-1].step}"
            raise _refused(field, text, problem, "give steps in ascending order")
        plan.append(entry)
    return [entry for entry in plan if not until or entry.step < until]


def parse_sizes(sizes: object, batch_size: int, field: str) -> tuple[int, ...]:
    """Sizes that a script declares, ascending; `batch_size`, with which it begins, must be among them."""
    if isinstance(sizes, str | bytes) or not isinstance(sizes, Iterable):
        raise _refused(field, sizes, "not a sequence of batch sizes", "give, for example, batch_sizes=(16, 32, 64)")
    found = list(sizes)
    for size in found:
        if type(size) is not int or size < 1:
            raise _refused(field, size, "not a positive integer", "give batch sizes of one logical worker")
        limits.within(size, field, limits.BATCH)
    if len(found) > limits.MAX_BATCHES:
        raise _refused(field, f"{len(found)} sizes", "too many", f"give at most {limits.MAX_BATCHES}")
    if batch_size not in found:
        shown = ", ".join(map(str, sorted(found))) or "nothing"
        raise _refused(field, shown, f"batch_size={batch_size} is not among them", "declare it too")
    return tuple(sorted(set(found)))


def due(plan: Sequence[BatchChange], after: int, step: int) -> BatchChange | None:
    """The last entry that comes into force after more than `after`, and at most `step`, committed steps.

    >>> due([BatchChange(0, 32), BatchChange(4, 64), BatchChange(6, 16)], 0, 7)
    BatchChange(step=6, size=16, factor=None, made=True)
    """
    return next((entry for entry in reversed(plan) if after < entry.step <= step), None)


def plan_text(plan: Sequence[BatchChange]) -> str:
    """As `--batch-plan` takes it; factors, and what was not made, are left out."""
    return ",".join(f"{entry.step}:{entry.size}" for entry in plan if entry.made)


def recorded_changes(events: Iterable[Mapping[str, Any]]) -> list[BatchChange]:
    """The changes that a run's log has, in order of their steps. One that was made again after a restart counts once.

    A factor is kept where the rule measured it: others follow from the sizes, or from the script. A change for which a
    pass ended and that was never made is there as one that was not.
    """
    found: dict[int, BatchChange] = {}
    for event in events:
        if event["event"] == "batch":
            factor = event.get("factor")
            change = BatchChange(int(event["step"]), int(event["to"]))
            if event.get("measured") and isinstance(factor, float) and math.isfinite(factor):
                change = replace(change, factor=factor)
            found[change.step] = change
        elif event["event"] == "batch_awaited":
            found.setdefault(int(event["step"]), BatchChange(int(event["step"]), int(event["to"]), made=False))
    return [found[step] for step in sorted(found)]


def _refused(field: str, value: object, problem: str, remedy: str) -> UserError:
    return UserError(field=field, value=value, problem=problem, remedy=remedy)

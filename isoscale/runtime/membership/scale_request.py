"""What `scale` asks for, read and checked before anything of it is kept: how many devices, of which kinds. Pure."""

from __future__ import annotations

from isoscale import limits
from isoscale.batches import DECLARE
from isoscale.errors import UserError
from isoscale.kinds import DeviceSet
from isoscale.protocol import messages as m
from isoscale.types import JobSpec

__all__ = ["check_batch", "check_scale", "parse_target"]


def parse_target(text: str, present: DeviceSet, spec: JobSpec) -> DeviceSet:
    """`4`, `+1`, `-1` or a device set. Counts change the first kind when they grow, the last ones when they shrink.

    Takes time in the length of the text, whatever number it names: it runs between two heartbeats.
    """
    number = text.strip()
    if limits.is_whole(number):
        total = int(number) + (present.total if number[0] in "+-" else 0)
        _check_total(text, total, spec)
        more = total - present.total
        target = DeviceSet(((present.groups[0][0], more), *present.groups)) if more > 0 else present.first(total)
    else:
        target = DeviceSet.parse(text, field="target")
        _check_total(text, target.total, spec)
    for kind in target.kinds:
        if kind not in spec.kinds:
            raise UserError(
                field="target",
                value=text,
                problem=f"{kind} was not declared when the job began ({', '.join(spec.kinds)})",
                remedy="start the job with --kinds naming every kind it may meet",
            )
    return target


def _check_total(text: str, total: int, spec: JobSpec) -> None:
    most = min(spec.workers, int(limits.EXECUTORS.most))
    if not 1 <= total <= most:
        raise UserError(
            field="target",
            value=text,
            problem=f"{total} executors for {spec.workers} logical workers",
            remedy=f"give 1 .. {most}",
        )


def check_batch(size: int, spec: JobSpec, declared: m.Declared | None, *, is_known: bool) -> None:
    """Whether a job may have this batch size. `is_known`: if it had declared some, that would be known by now."""
    limits.within(size, "batch", limits.BATCH)
    if spec.is_repeat:
        problem, remedy = "the job repeats another run, whose sizes are recorded", "leave it, or start one of its own"
        raise UserError(field="batch", value=size, problem=problem, remedy=remedy)
    if declared is None and is_known:
        raise UserError(field="batch", value=size, problem="the script declares no batch_sizes", remedy=DECLARE)
    if declared is None:
        return
    if size not in declared.sizes:
        sizes = ", ".join(map(str, declared.sizes))
        raise UserError(field="batch", value=size, problem=f"the script declares {sizes}", remedy="give one of them")
    if not declared.rule:
        raise UserError(
            field="batch",
            value=size,
            problem="the script does not say what becomes of the learning rate",
            remedy="give job.loader(batch_rule=...) or call job.on_batch_change(f)",
        )


def check_scale(request: m.Scale) -> None:
    """Refuses what no client of ours sends, before any of it is kept or written down."""
    if len(request.away) > limits.EXECUTORS.most:
        raise UserError(
            field="away",
            value=f"{len(request.away):,} executors",
            problem="more than a job can have",
            remedy=f"name at most {int(limits.EXECUTORS.most)}",
        )
    if len(request.reason) > limits.MAX_REASON_CHARS:
        remedy = f"give at most {limits.MAX_REASON_CHARS} characters"
        raise UserError(field="reason", value=request.reason, problem="too long", remedy=remedy)

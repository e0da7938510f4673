"""The timeline of a run for a page, as `isoscale report` tells it, from what `RunLog` keeps of the log."""

from __future__ import annotations

from dataclasses import dataclass, fields

from isoscale.cluster.records.run_log import RunLog
from isoscale.timelines.timeline import timeline
from isoscale.timelines.values import Audit, BatchSize, Checkpoint, Life, Mark, Rescale, State

__all__ = ["RunStory", "run_story"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStory:
    """Fields as in `timelines.values.Timeline`; times are seconds since `start`."""

    state: State
    #: unix seconds
    start: float
    seconds: float
    step: int
    steps_redone: int
    epoch: int | None
    generation: int | None
    term: int | None
    num_logical_workers: int | None
    digest: str
    error: str
    longest_gap_s: float | None
    idle: float | None
    executor_s: float
    sizes: tuple[tuple[float, int], ...]
    lives: tuple[Life, ...]
    rescales: tuple[Rescale, ...]
    marks: tuple[Mark, ...]
    batches: tuple[BatchSize, ...]
    checkpoints: tuple[Checkpoint, ...]
    audits: tuple[Audit, ...]
    command: str
    #: the log has more such events than are kept
    truncated: bool
    read_bytes: int
    size: int


def run_story(log: RunLog, num_logical_workers: int | None = None) -> RunStory:
    """The caller holds the log's lock and has updated it."""
    made = timeline(log.told(), num_logical_workers=num_logical_workers)
    names = {one.name for one in fields(made)} & {one.name for one in fields(RunStory)}
    told = {name: getattr(made, name) for name in names}
    told |= {
        "steps_redone": log.num_steps_redone,
        "longest_gap_s": log.longest_gap_s if log.first != log.last else None,
        "truncated": log.is_cut,
        "read_bytes": log.offset,
        "size": log.size,
    }
    return RunStory(**told)

"""What a timeline is made of. Every time is in seconds since `Timeline.start`, every duration in seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from isoscale.timelines.fields import ExecutorId

__all__ = [
    "Audit",
    "BatchSize",
    "Checkpoint",
    "Completion",
    "Curve",
    "Life",
    "Mark",
    "MarkKind",
    "Rescale",
    "State",
    "Stay",
    "Timeline",
]

#: "running" also stands for a job that ended without a word: a log cannot tell them apart
State = Literal["empty", "running", "finished", "stopped", "failed"]
#: "" while it lives; "ended" with the job
Completion = Literal["", "left", "lost", "ended"]
MarkKind = Literal["lost", "straggler", "suspect", "notice", "coordinator", "failed", "warning"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """A stretch of time in which an executor hosted the same logical workers."""

    start: float
    end: float
    #: the first and last logical rank hosted; both None if the log does not tell
    first: int | None
    last: int | None
    #: in which the stay began; it may have outlasted it
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One process of an executor. An executor number that was used again has several."""

    executor: ExecutorId
    pid: int | None
    kind: str
    started: float
    #: first generation that it took part in; None: a spare, or one that never got ready
    joined: float | None
    #: the end of the log if `ending` is ""
    ended: float
    ending: Completion
    reason: str
    stays: tuple[Stay, ...]
    #: means over its steps, None if nothing was measured: one logical worker's turn, waiting in exchanges, a step
    turn_s: float | None
    exchange_s: float | None
    step_s: float | None
    #: share of its step time in which it waited for others, 0 to 1
    idle: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescale:
    #: when its generation began, if the log tells, else when it was logged (after the first step)
    t: float
    generation: int | None
    num_before: int | None
    num_after: int | None
    step: int | None
    pause_s: float | None
    wait_s: float | None
    #: between the last step committed before it and the first one after it, as the log saw them
    gap_s: float | None
    reason: str
    shares: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Something that a reader should see: a fault, or a warning."""

    t: float
    kind: MarkKind
    executor: ExecutorId | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSize:
    """The batch size of every logical worker was changed."""

    t: float
    step: int | None
    before: int | None
    after: int | None
    #: what learning rates were multiplied with, and what they are since
    factor: float | None
    learning_rates: tuple[float, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    t: float
    step: int | None
    path: str
    seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    t: float
    step: int | None
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Values over time, decimated: each point is the mean of a short stretch, with its lowest and highest value.

    Of a curve over committed steps `t` counts those."""

    t: tuple[float, ...] = ()
    value: tuple[float, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    #: points before which nothing was known for long: no line leads to them
    breaks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One job's life as its log tells it."""

    #: name of the job or of its script; "" if unknown
    job: str
    state: State
    #: unix seconds, or virtual seconds if `simulated`
    start: float
    simulated: bool
    #: length of the log
    seconds: float
    #: committed steps, and how often a step was done that had been done before (after a resume)
    step: int
    steps_redone: int
    epoch: int | None
    generation: int | None
    #: of the last coordinator
    term: int | None
    num_logical_workers: int | None
    #: of the finished job
    digest: str
    error: str
    median_step_s: float | None
    #: between two steps that follow one another in the log
    longest_gap_s: float | None
    steps_per_s: float | None
    #: mean over all executors, weighted by the time that they spent in steps
    idle: float | None
    #: how long all executors together were members
    executor_s: float
    #: (t, number of executors), one entry per change
    sizes: tuple[tuple[float, int], ...]
    lives: tuple[Life, ...]
    rescales: tuple[Rescale, ...]
    marks: tuple[Mark, ...]
    batches: tuple[BatchSize, ...] = ()
    checkpoints: tuple[Checkpoint, ...]
    audits: tuple[Audit, ...]
    #: the last value of every name that the script logged
    logged: tuple[tuple[str, float], ...]
    #: over committed steps: the loss, and every name that the script logged
    series: tuple[tuple[str, Curve], ...]
    #: the line by which the job was begun, and where; "" if the log does not tell
    command: str
    directory: str
    loss: Curve
    #: committed steps per second; each value holds until the next time, the last one only ends the curve
    throughput: Curve

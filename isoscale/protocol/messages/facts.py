"""From an executor to its coordinator, of the job: steps, logged values, batch sizes, files, and what went wrong.

What the event log and those who asked for something go by. Who trains in which generation does not depend on it.
"""

from __future__ import annotations

from typing import Any

from isoscale.protocol.messages.message import Message

__all__ = [
    "Audited",
    "CheckpointFailed",
    "CheckpointWritten",
    "Declared",
    "Fact",
    "Logged",
    "Rebatched",
    "Recorded",
    "Saved",
    "StepDone",
    "Streamed",
    "Warned",
]


class StepDone(Message, frozen=True, kw_only=True, tag=True):
    """A step is committed. Sent by the first executor of the placement, never waited for."""

    step: int
    epoch: int
    loss: float | None
    seconds: float
    samples: int
    generation: int
    executors: int = 1
    #: steps the job is expected to take in all, 0 if unknown
    total: int
    #: which batch of a pass over which loader it was, and how many a pass has, 0 if unknown
    loader: str = ""
    batch: int = 0
    of: int = 0
    #: when it was committed, by `clock.since_boot` of the executor's machine; 0 if unknown
    at: float = 0.0
    #: the gradient noise scale in samples, if it was measured in this step
    noise_scale: float | None = None
    #: it was due, and could not be: for the so many-th time
    noise_skipped: int = 0


class Declared(Message, frozen=True, kw_only=True, tag=True):
    """The script lets its batch size change: to which sizes, and by which rule ("own": a function; "": none)."""

    sizes: tuple[int, ...]
    size: int
    rule: str


class Rebatched(Message, frozen=True, kw_only=True, tag=True):
    """The batch size has changed after `step` steps; or, with an `error`, has not, as somebody or a plan wanted."""

    step: int
    old: int
    new: int
    reason: str
    #: of the request; 0 for a plan's
    request: int = 0
    factor: float | None = None
    measured: bool = False
    learning_rates: tuple[float, ...] = ()
    error: str = ""
    #: it has not changed yet: the pass has ended for its sake, and it comes with the next one
    awaited: bool = False


class Logged(Message, frozen=True, kw_only=True, tag=True):
    """Values of `job.log`."""

    step: int
    epoch: int
    values: dict[str, float | int | str | bool | None]
    #: when they were logged, by `clock.since_boot` of the executor's machine; 0 if unknown
    at: float = 0.0
    #: bytes that the executor had written to its log by then: they are shown before; -1 if unknown
    output: int = -1


class Audited(Message, frozen=True, kw_only=True, tag=True):
    """All executors hold the same state after `step`."""

    step: int
    digest: str


class Streamed(Message, frozen=True, kw_only=True, tag=True):
    """Partitions of a stream were given out (`partitions`), or a pass over it ended (`pass_ended`)."""

    event: str
    stream: str
    #: committed steps
    step: int
    fields: dict[str, Any]


class Recorded(Message, frozen=True, kw_only=True, tag=True):
    """Every logical worker's logged values of a step, as float hex, for exact comparison."""

    step: int
    values: dict[str, dict[int, str]]


class CheckpointWritten(Message, frozen=True, kw_only=True, tag=True):
    """A checkpoint is whole on disk under a temporary name; the coordinator decides whether it counts."""

    generation: int
    step: int
    #: fields of `runtime.checkpoint.files.Written`
    written: dict[str, Any]
    blocked_s: float
    seconds: float
    #: the executor waits at it, as it was told
    final: bool = False


class CheckpointFailed(Message, frozen=True, kw_only=True, tag=True):
    """A checkpoint could not be written. Training goes on."""

    step: int
    reason: str


class Saved(Message, frozen=True, kw_only=True, tag=True):
    """A file of the job's is whole on disk."""

    step: int
    path: str
    seconds: float


class Warned(Message, frozen=True, kw_only=True, tag=True):
    message: str


Fact = (
    StepDone
    | Declared
    | Rebatched
    | Logged
    | Audited
    | Streamed
    | Recorded
    | CheckpointWritten
    | CheckpointFailed
    | Warned
    | Saved
)

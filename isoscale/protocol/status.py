"""What a coordinator says of its job when it is asked: the value that `isoscale status` shows and prints as JSON.

Travels in `messages.Reply`, whose decoder checks it field by field. A job that has ended has fewer fields, read from
its directory.
"""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

__all__ = [
    "CheckpointStatus",
    "ExecutorStatus",
    "JobState",
    "JobStatus",
    "Outcome",
    "RequestStatus",
    "SetAside",
    "Sort",
    "StreamStatus",
]

JobState = Literal["starting", "training", "rescaling", "recovering", "finished", "failed", "stopped", "interrupted"]
Sort = Literal["scale", "migrate", "checkpoint", "stop"]
Outcome = Literal["done", "overtaken", "refused", "given_up", "failed", "ended"]


class ExecutorStatus(TypedDict):
    executor: int
    #: None until it has said so
    pid: int | None
    kind: str
    #: starting, warm, approaching, held, member, leaving; spare for a warm one that nobody needs yet
    state: str
    #: the first and the last one that it hosts
    logical_workers: list[int] | None
    turn_s: float | None
    #: share of a step that it waits for others
    idle: float | None
    last_seen_s: float | None


class RequestStatus(TypedDict):
    id: int
    request: Sort
    #: None: it is open
    outcome: Outcome | None
    #: of one that is answered
    detail: NotRequired[str]
    #: of one that is open
    target: NotRequired[str]
    away: NotRequired[list[int]]
    reason: NotRequired[str]
    open_s: NotRequired[float]
    waits_for: NotRequired[str]


class CheckpointStatus(TypedDict):
    step: int
    age_s: float


class SetAside(TypedDict):
    """A device that the target names and the job does better without."""

    executor: int
    kind: str
    #: how many times as fast a step is without it
    gain: float


class StreamStatus(TypedDict, total=False):
    """How far the last known pass over a stream has come."""

    epoch: int
    handed_out: int
    partitions: int
    samples: int
    carried_in: int
    rest: int
    #: hash of the samples used, as hex; None without a ledger
    content: str | None
    #: of a pass that has ended
    steps: int
    ended: bool


class JobStatus(TypedDict):
    #: the script's name
    job: str
    state: JobState
    step: int
    #: as text where it came out of JSON, which has no NaN
    loss: float | str | None
    workers: int
    executors: list[ExecutorStatus]
    # of a job that runs
    term: NotRequired[int]
    generation: NotRequired[int]
    #: steps that it is expected to take; 0 if unknown
    total: NotRequired[int]
    epoch: NotRequired[int | None]
    steps_per_s: NotRequired[float | None]
    target: NotRequired[str]
    set_aside: NotRequired[list[SetAside]]
    #: what is under way
    pending: NotRequired[str | None]
    #: why the last target was given up
    refused: NotRequired[str]
    checkpoint: NotRequired[CheckpointStatus | None]
    streams: NotRequired[dict[str, StreamStatus]]
    messages: NotRequired[list[str]]
    requests: NotRequired[list[RequestStatus]]
    # of a job that has ended
    digest: NotRequired[str]
    stop_reason: NotRequired[str]
    error: NotRequired[str]
    seconds: NotRequired[float]

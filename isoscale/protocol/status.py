"""What a coordinator says of its job when it is asked: the value that `isoscale status` shows and prints as JSON.

Travels in `messages.Reply`, whose decoder checks it field by field. A job that has ended has fewer fields, read from
its directory.
"""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

__all__ = [
    "BatchStatus",
    "CheckpointStatus",
    "ExecutorStatus",
    "GrantStatus",
    "JobState",
    "JobStatus",
    "Outcome",
    "RequestStatus",
    "SetAside",
    "Sort",
    "StreamStatus",
]

JobState = Literal["starting", "training", "rescaling", "recovering", "finished", "failed", "stopped", "interrupted"]
Sort = Literal["scale", "migrate", "batch", "checkpoint", "stop", "grant", "pause"]
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
    #: the size that is asked for
    batch: NotRequired[int]
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


class GrantStatus(TypedDict):
    """Of a job that a cluster service runs: what it was granted, and what it has."""

    number: int
    devices: list[str]
    #: devices on which a process of the job, or a child of one, may be alive
    held: list[str]
    #: it trains on exactly the granted devices
    settled: bool
    #: granted devices that it does without, and why
    given_up: list[str]
    reason: str
    #: seconds of training that were given up so far, so that devices were free in time
    abandoned_s: float
    #: what the last checkpoint took to write; None before the first
    write_s: float | None
    #: committed steps that no checkpoint has
    unsaved_steps: int


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


class BatchStatus(TypedDict):
    """Of a job whose batch size may change."""

    #: of one logical worker
    size: int
    sizes: list[int]
    rule: str


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
    #: of all logical workers, read in committed steps
    samples: NotRequired[int]
    epoch: NotRequired[int | None]
    steps_per_s: NotRequired[float | None]
    #: seconds that training stood still when executors came or went, of late; None before the first time
    switch_s: NotRequired[float | None]
    target: NotRequired[str]
    set_aside: NotRequired[list[SetAside]]
    #: what is under way
    pending: NotRequired[str | None]
    #: why the last target was given up
    refused: NotRequired[str]
    checkpoint: NotRequired[CheckpointStatus | None]
    streams: NotRequired[dict[str, StreamStatus]]
    batch: NotRequired[BatchStatus | None]
    #: the gradient noise scale in samples, as it was last measured
    noise_scale: NotRequired[float | None]
    #: how often it was due and could not be measured
    noise_skipped: NotRequired[int]
    messages: NotRequired[list[str]]
    requests: NotRequired[list[RequestStatus]]
    #: where a cluster service runs it
    grant: NotRequired[GrantStatus]
    # of a job that has ended
    digest: NotRequired[str]
    stop_reason: NotRequired[str]
    error: NotRequired[str]
    #: of its last coordinator
    seconds: NotRequired[float]
    #: unix seconds of its first event and of its end
    began: NotRequired[float]
    ended: NotRequired[float]
    #: by which it was started
    command: NotRequired[str]
    #: the file, of a job that has finished
    result: NotRequired[str]
    #: the newest value of each name that the script logged
    logged: NotRequired[dict[str, float | int | str | bool | None]]

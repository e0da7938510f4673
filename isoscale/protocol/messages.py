"""Messages between a job's coordinator and its executors: the whole wire contract.

Each message is a tagged value, encoded as one MessagePack frame by `encode` and back by the decoder of
its direction. Sizes are bounded by `MAX_MESSAGE_BYTES`; a frame that does not decode is the peer's fault
and ends its connection.
"""

from __future__ import annotations

import msgspec

from isoscale.types import JobSpec

__all__ = [
    "MAX_MESSAGE_BYTES",
    "Audited",
    "Begin",
    "Failed",
    "Finished",
    "FromCoordinator",
    "FromExecutor",
    "Hello",
    "Logged",
    "Recorded",
    "Saved",
    "StepDone",
    "Welcome",
    "decode_from_coordinator",
    "decode_from_executor",
    "encode",
]

MAX_MESSAGE_BYTES = 4 * 2**20


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Common options; the class name is the tag."""


# ---- from the coordinator ----


class Welcome(_Message, frozen=True, kw_only=True, tag=True):
    """First message after a connection: what the job is. The executor sets itself up by it."""

    spec: JobSpec
    kind: str


class Begin(_Message, frozen=True, kw_only=True, tag=True):
    """A generation starts: where each logical worker lives and where the members meet."""

    generation: int
    shares: tuple[int, ...]
    #: this executor's position in the placement
    index: int
    store: str


# ---- from an executor ----


class Hello(_Message, frozen=True, kw_only=True, tag=True):
    """The executor is set up: what it computes with."""

    executor: int
    pid: int
    kind: str
    fingerprint: str
    #: digest per kernel of the fingerprint, so that a refusal can name what differs
    kernels: dict[str, str]
    #: accuracy-relevant factors by name
    factors: dict[str, str]


class StepDone(_Message, frozen=True, kw_only=True, tag=True):
    """A step is committed. Sent by the first executor of the placement, never waited for."""

    step: int
    epoch: int
    loss: float | None
    seconds: float
    samples: int
    generation: int
    #: steps the job is expected to take in all, 0 if unknown
    total: int


class Logged(_Message, frozen=True, kw_only=True, tag=True):
    """Values of `job.log`."""

    step: int
    epoch: int
    values: dict[str, float | int | str | bool | None]


class Audited(_Message, frozen=True, kw_only=True, tag=True):
    """All executors hold the same state after `step`."""

    step: int
    digest: str


class Recorded(_Message, frozen=True, kw_only=True, tag=True):
    """Every logical worker's logged values of a step, as float hex, for exact comparison."""

    step: int
    values: dict[str, dict[int, str]]


class Saved(_Message, frozen=True, kw_only=True, tag=True):
    """A file of the job's is whole on disk."""

    step: int
    path: str
    seconds: float


class Finished(_Message, frozen=True, kw_only=True, tag=True):
    """The training function returned."""

    executor: int
    step: int
    digest: str
    stop_reason: str


class Failed(_Message, frozen=True, kw_only=True, tag=True):
    """The executor cannot go on."""

    executor: int
    #: class name of the error
    error: str
    #: one line
    summary: str
    #: the user's traceback; empty for errors that explain themselves
    traceback: str
    logical_rank: int | None
    exit_code: int
    step: int


FromCoordinator = Welcome | Begin
FromExecutor = Hello | StepDone | Logged | Audited | Recorded | Saved | Finished | Failed

_encoder = msgspec.msgpack.Encoder()
_from_coordinator: msgspec.msgpack.Decoder[FromCoordinator] = msgspec.msgpack.Decoder(FromCoordinator)
_from_executor: msgspec.msgpack.Decoder[FromExecutor] = msgspec.msgpack.Decoder(FromExecutor)


def encode(message: FromCoordinator | FromExecutor) -> bytes:
    return _encoder.encode(message)


def decode_from_coordinator(frame: bytes) -> FromCoordinator:
    """Raises `msgspec.DecodeError` on anything but a whole, valid message."""
    return _from_coordinator.decode(frame)


def decode_from_executor(frame: bytes) -> FromExecutor:
    return _from_executor.decode(frame)

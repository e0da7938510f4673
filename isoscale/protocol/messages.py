"""Messages between a job's coordinator, its executors and those who ask for something: the whole wire contract.

Each message is a tagged value, encoded as one MessagePack frame by `encode` and back by the decoder of
its direction. Sizes are bounded by `MAX_MESSAGE_BYTES`; a frame that does not decode is the peer's fault
and ends its connection. Executors obey only the coordinator with the highest term, and only orders for a
generation beyond the one they are in.

One file, long as it is: who wants to know what crosses a process boundary reads it from top to bottom.
"""

from __future__ import annotations

from typing import Any

import msgspec

from isoscale.batches import BatchChange
from isoscale.protocol.status import JobStatus
from isoscale.types import JobSpec, Settings

__all__ = [
    "MAX_MESSAGE_BYTES",
    "UNKNOWN_EXECUTOR",
    "Abandon",
    "Approach",
    "Audited",
    "Beat",
    "Begin",
    "Broken",
    "CheckpointFailed",
    "CheckpointWritten",
    "Declared",
    "Dismiss",
    "Failed",
    "Finished",
    "FromClient",
    "FromCoordinator",
    "FromExecutor",
    "GetStatus",
    "GoOn",
    "Grant",
    "Heard",
    "Held",
    "Hello",
    "Landed",
    "Leave",
    "Left",
    "Logged",
    "Notice",
    "Prepare",
    "Prepared",
    "Rebatch",
    "Rebatched",
    "Received",
    "Recorded",
    "Recover",
    "Rejoin",
    "Reply",
    "SaveResult",
    "Saved",
    "Scale",
    "Sealed",
    "StepDone",
    "Stop",
    "Streamed",
    "Suspect",
    "Switch",
    "Switched",
    "TakeCheckpoint",
    "Uses",
    "Warned",
    "Welcome",
    "decode_from_client",
    "decode_from_coordinator",
    "decode_from_executor",
    "decode_reply",
    "encode",
]

MAX_MESSAGE_BYTES = 4 * 2**20
#: why a coordinator closes the connection of an executor that is none of its own (any more)
UNKNOWN_EXECUTOR = "not an executor of this job"


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Common options; the class name is the tag."""


# ---- from the coordinator to an executor ----


class Welcome(_Message, frozen=True, kw_only=True, tag=True):
    """First message after a connection: what the job is. The executor sets itself up by it."""

    spec: JobSpec
    settings: Settings
    kind: str
    executor: int
    term: int
    #: for one that wants to join: hash by path, from the script's directory, of the code that the job has kept
    code: dict[str, str] = {}
    #: and the versions of Python and of packages that it has seen
    versions: dict[str, str] = {}


class Begin(_Message, frozen=True, kw_only=True, tag=True):
    """The first generation starts: run the training function as a member of it."""

    generation: int
    shares: tuple[int, ...]
    #: executor ids in placement order
    members: tuple[int, ...]
    #: this executor's position in the placement
    index: int
    #: where the members meet
    store: str
    #: across machines: where each of `members` listens, for one that cannot meet them to find out whom it cannot reach
    addresses: tuple[str, ...] = ()
    #: wait for the next generation when so many steps are committed
    hold_at: int | None = None
    #: a checkpoint to go on from; "" begins at the beginning
    checkpoint: str = ""
    #: changes of the batch size that an earlier life of the job has made, and how many steps it had committed: up to
    #: there the same are made
    batches: tuple[BatchChange, ...] = ()
    reached: int = 0


class Approach(_Message, frozen=True, kw_only=True, tag=True):
    """Run the training function, alone, to the place where newcomers wait for the job's state."""


class Prepare(_Message, frozen=True, kw_only=True, tag=True):
    """Form the next generation's group beside training. `index` is -1 for one that will leave."""

    generation: int
    shares: tuple[int, ...]
    members: tuple[int, ...]
    index: int
    store: str
    addresses: tuple[str, ...] = ()
    hold_at: int | None = None
    #: for each position that is new: the position it gets its state from, -1 for `sender`
    senders: dict[int, int] = {}
    #: where nobody who has the state stays: the executor of those who leave that hands it over; -1 elsewhere
    sender: int = -1


class Rebatch(_Message, frozen=True, kw_only=True, tag=True):
    """Somebody wants another batch size: change it when a seal shows that all know. Executors are told again and again
    as long as it is wanted; of several the one with the highest id counts."""

    #: of the request
    id: int
    size: int
    reason: str = "asked"


class Switch(_Message, frozen=True, kw_only=True, tag=True):
    """All have prepared: go over when a seal shows that all have this order, or at exactly `at_step`."""

    generation: int
    at_step: int | None = None
    #: to be changed with the executors
    batch: Rebatch | None = None


class Recover(_Message, frozen=True, kw_only=True, tag=True):
    """Give up the present exchange, wherever you are in it, and go on with these."""

    generation: int
    shares: tuple[int, ...]
    members: tuple[int, ...]
    index: int
    store: str
    addresses: tuple[str, ...] = ()
    hold_at: int | None = None


class Leave(_Message, frozen=True, kw_only=True, tag=True):
    """You are not needed any more: end."""

    reason: str


class TakeCheckpoint(_Message, frozen=True, kw_only=True, tag=True):
    """Write a checkpoint at the next place for one. An executor is told again and again as long as it is wanted."""

    #: of the request, so that one is not written twice for it
    id: int = 0
    #: wait at it for the end of the job
    final: bool = False
    #: why a client wants it
    reason: str = "asked"


class Abandon(_Message, frozen=True, kw_only=True, tag=True):
    """Give up the open step: write the last sealed state as the final checkpoint of this request, at once."""

    id: int


class GoOn(_Message, frozen=True, kw_only=True, tag=True):
    """To one that waits at a final checkpoint: the job does not end."""


class SaveResult(_Message, frozen=True, kw_only=True, tag=True):
    """Write final.pt: whoever should have is gone."""


class Dismiss(_Message, frozen=True, kw_only=True, tag=True):
    """The job is done and its result is on disk."""


class Heard(_Message, frozen=True, kw_only=True, tag=True):
    """So many of your messages have arrived; they need not be sent again."""

    count: int


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
    #: tells machines apart, so that a coordinator knows which processes it can signal
    machine: str = ""
    #: where this executor serves a store, if the job spans machines
    store: str = ""
    #: what it was given when it was started, by which its coordinator knows that `pid` is its own
    key: str = ""


class Uses(_Message, frozen=True, kw_only=True, tag=True):
    """What the executor has imported and what it reads, before `Hello` and whenever there is more of it."""

    #: hash by module
    modules: dict[str, str] = {}
    #: file by module, of those that are not installed libraries
    paths: dict[str, str] = {}
    #: of Python and of installed packages
    versions: dict[str, str] = {}
    #: size and fingerprint by loader
    data: dict[str, str] = {}


class Rejoin(_Message, frozen=True, kw_only=True, tag=True):
    """To a new coordinator: who I am and how far things have come."""

    hello: Hello
    #: warm, approaching, held, member, leaving or finished
    state: str
    generation: int
    members: tuple[int, ...]
    shares: tuple[int, ...]
    step: int
    #: highest generation this executor has heard of
    highest: int
    #: the exchange is broken and the executor waits to be told how to go on
    waiting: bool
    #: its generation has sealed a step
    sealed: bool = True
    #: it was told to go, and why
    noticed: str = ""
    #: it has come to the end of the training function
    finished: Finished | None = None
    #: when this was written, by `clock.since_boot` of its machine; 0 if unknown
    at: float = 0.0


class Held(_Message, frozen=True, kw_only=True, tag=True):
    """A newcomer has reached the place where it waits for the job's state."""


class Prepared(_Message, frozen=True, kw_only=True, tag=True):
    """The generation's group is formed."""

    generation: int


class Switched(_Message, frozen=True, kw_only=True, tag=True):
    """This executor went over to the generation, with `step` steps committed.

    Unix seconds, the second counted from the first: a clock that is set in between changes nothing.
    """

    generation: int
    step: int
    left_at: float
    started_at: float
    waited_s: float


class Received(_Message, frozen=True, kw_only=True, tag=True):
    """A newcomer has got the job's state, and is on its way to the place where it is loaded."""

    generation: int


class Landed(_Message, frozen=True, kw_only=True, tag=True):
    """A newcomer has loaded the job's state."""

    generation: int


class Sealed(_Message, frozen=True, kw_only=True, tag=True):
    """The first seal of a generation: all its members hold everything."""

    generation: int
    step: int
    #: for a coordinator that did not form this generation
    members: tuple[int, ...] = ()
    shares: tuple[int, ...] = ()


class Broken(_Message, frozen=True, kw_only=True, tag=True):
    """The exchange of this generation broke, or could not be formed; the executor waits to be told how to go on."""

    generation: int
    reason: str
    #: members of it to whom no connection could be opened
    unreachable: tuple[int, ...] = ()


class Beat(_Message, frozen=True, kw_only=True, tag=True):
    """Alive, from a thread of its own; and how fast, over the steps since the last beat."""

    step: int
    #: outside, turn, evaluation or exchange, and for how long, without what this process itself was stopped
    place: str
    place_s: float
    steps: int = 0
    #: seconds of one turn, of waiting in a step's exchange, and of a step, on average
    turn_s: float = 0.0
    exchange_s: float = 0.0
    step_s: float = 0.0
    #: seconds of a step's last turn, in which gradients are exchanged as well; 0 if unknown
    last_turn_s: float = 0.0
    #: when this was written, by `clock.since_boot` of its machine; 0 if unknown
    at: float = 0.0


class StepDone(_Message, frozen=True, kw_only=True, tag=True):
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


class Declared(_Message, frozen=True, kw_only=True, tag=True):
    """The script lets its batch size change: to which sizes, and by which rule ("own": a function; "": none)."""

    sizes: tuple[int, ...]
    size: int
    rule: str


class Rebatched(_Message, frozen=True, kw_only=True, tag=True):
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


class Logged(_Message, frozen=True, kw_only=True, tag=True):
    """Values of `job.log`."""

    step: int
    epoch: int
    values: dict[str, float | int | str | bool | None]
    #: when they were logged, by `clock.since_boot` of the executor's machine; 0 if unknown
    at: float = 0.0
    #: bytes that the executor had written to its log by then: they are shown before; -1 if unknown
    output: int = -1


class Audited(_Message, frozen=True, kw_only=True, tag=True):
    """All executors hold the same state after `step`."""

    step: int
    digest: str


class Streamed(_Message, frozen=True, kw_only=True, tag=True):
    """Partitions of a stream were given out (`partitions`), or a pass over it ended (`pass_ended`)."""

    event: str
    stream: str
    #: committed steps
    step: int
    fields: dict[str, Any]


class Recorded(_Message, frozen=True, kw_only=True, tag=True):
    """Every logical worker's logged values of a step, as float hex, for exact comparison."""

    step: int
    values: dict[str, dict[int, str]]


class CheckpointWritten(_Message, frozen=True, kw_only=True, tag=True):
    """A checkpoint is whole on disk under a temporary name; the coordinator decides whether it counts."""

    generation: int
    step: int
    #: fields of `runtime.checkpoint.files.Written`
    written: dict[str, Any]
    blocked_s: float
    seconds: float
    #: the executor waits at it, as it was told
    final: bool = False


class CheckpointFailed(_Message, frozen=True, kw_only=True, tag=True):
    """A checkpoint could not be written. Training goes on."""

    step: int
    reason: str


class Warned(_Message, frozen=True, kw_only=True, tag=True):
    message: str


class Notice(_Message, frozen=True, kw_only=True, tag=True):
    """This executor was told to go (SIGTERM): hand its logical workers over."""

    reason: str


class Suspect(_Message, frozen=True, kw_only=True, tag=True):
    """A turn that was run twice gave different bits; most executors blame this one."""

    executor: int
    reason: str


class Left(_Message, frozen=True, kw_only=True, tag=True):
    """The executor ends, as it was told."""

    reason: str


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


# ---- from a person or a scheduler, and back ----


class Scale(_Message, frozen=True, kw_only=True, tag=True):
    """`4`, `+1`, `-1`, or a device set; `away` names executors that shall not stay."""

    target: str
    away: tuple[int, ...] = ()
    reason: str = "asked"
    #: batch size of every logical worker, to be changed with the devices; None: it stays
    batch: int | None = None


class GetStatus(_Message, frozen=True, kw_only=True, tag=True):
    pass


class Stop(_Message, frozen=True, kw_only=True, tag=True):
    """End the job after a checkpoint; with `now` at once, without one."""

    now: bool = False
    reason: str = "asked"


class Grant(_Message, frozen=True, kw_only=True, tag=True):
    """From the service that runs this job: its grant file has this number now.

    `within_s`: devices that it takes away must be free by then, the open step is given up if need be. `cancel`: end at
    once, saving nothing.
    """

    number: int
    within_s: float | None = None
    cancel: bool = False
    reason: str = "granted"


class Reply(_Message, frozen=True, kw_only=True, tag=True):
    ok: bool
    #: what was refused and why
    error: str = ""
    status: JobStatus | None = None
    #: of the request, if one was accepted: its answer is in a later `status`, and in the event log
    id: int | None = None


FromCoordinator = (
    Welcome
    | Begin
    | Approach
    | Prepare
    | Rebatch
    | Switch
    | Recover
    | Leave
    | TakeCheckpoint
    | Abandon
    | GoOn
    | SaveResult
    | Dismiss
    | Heard
)
FromExecutor = (
    Hello
    | Uses
    | Rejoin
    | Held
    | Prepared
    | Switched
    | Received
    | Landed
    | Sealed
    | Broken
    | Beat
    | StepDone
    | Declared
    | Rebatched
    | Logged
    | Audited
    | Streamed
    | Recorded
    | CheckpointWritten
    | CheckpointFailed
    | Warned
    | Notice
    | Suspect
    | Left
    | Saved
    | Finished
    | Failed
)
FromClient = Scale | GetStatus | TakeCheckpoint | Stop | Grant

_encoder = msgspec.msgpack.Encoder()
_from_coordinator: msgspec.msgpack.Decoder[FromCoordinator] = msgspec.msgpack.Decoder(FromCoordinator)
_from_executor: msgspec.msgpack.Decoder[FromExecutor] = msgspec.msgpack.Decoder(FromExecutor)
_from_client: msgspec.msgpack.Decoder[FromClient] = msgspec.msgpack.Decoder(FromClient)
_reply: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


def encode(message: FromCoordinator | FromExecutor | FromClient | Reply) -> bytes:
    return _encoder.encode(message)


def decode_from_coordinator(frame: bytes) -> FromCoordinator:
    """Raises `msgspec.DecodeError` on anything but a whole, valid message."""
    return _from_coordinator.decode(frame)


def decode_from_executor(frame: bytes) -> FromExecutor:
    return _from_executor.decode(frame)


def decode_from_client(frame: bytes) -> FromClient:
    return _from_client.decode(frame)


def decode_reply(frame: bytes) -> Reply:
    return _reply.decode(frame)

"""From an executor to its coordinator, of itself: who it is, where it is in a change, how fast it is, why it ends.

What the state machine of a job goes by. What an executor tells of the job is in `protocol.messages.facts`.
"""

from __future__ import annotations

import msgspec

from isoscale.protocol.messages.message import Message

__all__ = [
    "Beat",
    "Broken",
    "Failed",
    "Finished",
    "Held",
    "Hello",
    "Landed",
    "Left",
    "Notice",
    "Prepared",
    "Received",
    "Rejoin",
    "Report",
    "Sealed",
    "Suspect",
    "Switched",
    "Uses",
]


class Hello(Message, frozen=True, kw_only=True, tag=True):
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


class Uses(Message, frozen=True, kw_only=True, tag=True):
    """What the executor has imported and what it reads, before `Hello` and whenever there is more of it."""

    #: hash by module
    modules: dict[str, str] = msgspec.field(default_factory=dict)
    #: file by module, of those that are not installed libraries
    paths: dict[str, str] = msgspec.field(default_factory=dict)
    #: of Python and of installed packages
    versions: dict[str, str] = msgspec.field(default_factory=dict)
    #: size and fingerprint by loader
    data: dict[str, str] = msgspec.field(default_factory=dict)


class Rejoin(Message, frozen=True, kw_only=True, tag=True):
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


class Held(Message, frozen=True, kw_only=True, tag=True):
    """A newcomer has reached the place where it waits for the job's state."""


class Prepared(Message, frozen=True, kw_only=True, tag=True):
    """The generation's group is formed."""

    generation: int


class Switched(Message, frozen=True, kw_only=True, tag=True):
    """This executor went over to the generation, with `step` steps committed.

    Unix seconds, the second counted from the first: a clock that is set in between changes nothing.
    """

    generation: int
    step: int
    left_at: float
    started_at: float
    waited_s: float


class Received(Message, frozen=True, kw_only=True, tag=True):
    """A newcomer has got the job's state, and is on its way to the place where it is loaded."""

    generation: int


class Landed(Message, frozen=True, kw_only=True, tag=True):
    """A newcomer has loaded the job's state."""

    generation: int


class Sealed(Message, frozen=True, kw_only=True, tag=True):
    """The first seal of a generation: all its members hold everything."""

    generation: int
    step: int
    #: for a coordinator that did not form this generation
    members: tuple[int, ...] = ()
    shares: tuple[int, ...] = ()


class Broken(Message, frozen=True, kw_only=True, tag=True):
    """The exchange of this generation broke, or could not be formed; the executor waits to be told how to go on."""

    generation: int
    reason: str
    #: members of it to whom no connection could be opened
    unreachable: tuple[int, ...] = ()


class Beat(Message, frozen=True, kw_only=True, tag=True):
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


class Notice(Message, frozen=True, kw_only=True, tag=True):
    """This executor was told to go (SIGTERM): hand its logical workers over."""

    reason: str


class Suspect(Message, frozen=True, kw_only=True, tag=True):
    """A turn that was run twice gave different bits; most executors blame this one."""

    executor: int
    reason: str


class Left(Message, frozen=True, kw_only=True, tag=True):
    """The executor ends, as it was told."""

    reason: str


class Finished(Message, frozen=True, kw_only=True, tag=True):
    """The training function returned."""

    executor: int
    step: int
    digest: str
    stop_reason: str


class Failed(Message, frozen=True, kw_only=True, tag=True):
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


Report = (
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
    | Notice
    | Suspect
    | Left
    | Finished
    | Failed
)

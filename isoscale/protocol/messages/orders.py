"""From a job's coordinator to its executors: what the job is, which generation they form, when they write and end.

Executors obey only the coordinator with the highest term, and only orders for a generation beyond the one they are in.
"""

from __future__ import annotations

import msgspec

from isoscale.batches import BatchChange
from isoscale.protocol.messages.message import Message
from isoscale.types import JobSpec, Settings

__all__ = [
    "UNKNOWN_EXECUTOR",
    "Abandon",
    "Approach",
    "Begin",
    "Dismiss",
    "FromCoordinator",
    "GoOn",
    "Heard",
    "Leave",
    "Prepare",
    "Rebatch",
    "Recover",
    "SaveResult",
    "Switch",
    "TakeCheckpoint",
    "Welcome",
]

#: why a coordinator closes the connection of an executor that is none of its own (any more)
UNKNOWN_EXECUTOR = "not an executor of this job"


class Welcome(Message, frozen=True, kw_only=True, tag=True):
    """First message after a connection: what the job is. The executor sets itself up by it."""

    spec: JobSpec
    settings: Settings
    kind: str
    executor: int
    term: int
    #: for one that wants to join: hash by path, from the script's directory, of the code that the job has kept
    code: dict[str, str] = msgspec.field(default_factory=dict)
    #: and the versions of Python and of packages that it has seen
    versions: dict[str, str] = msgspec.field(default_factory=dict)


class _Forming(Message, frozen=True, kw_only=True):
    """What every order to form a generation says."""

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


class Begin(_Forming, frozen=True, kw_only=True, tag=True):
    """The first generation starts: run the training function as a member of it."""

    #: a checkpoint to go on from; "" begins at the beginning
    checkpoint: str = ""
    #: changes of the batch size that an earlier life of the job has made, and how many steps it had committed: up to
    #: there the same are made
    batches: tuple[BatchChange, ...] = ()
    reached: int = 0


class Approach(Message, frozen=True, kw_only=True, tag=True):
    """Run the training function, alone, to the place where newcomers wait for the job's state."""


class Prepare(_Forming, frozen=True, kw_only=True, tag=True):
    """Form the next generation's group beside training. `index` is -1 for one that will leave."""

    #: for each position that is new: the position it gets its state from, -1 for `sender`
    senders: dict[int, int] = msgspec.field(default_factory=dict)
    #: where nobody who has the state stays: the executor of those who leave that hands it over; -1 elsewhere
    sender: int = -1


class Rebatch(Message, frozen=True, kw_only=True, tag=True):
    """Somebody wants another batch size: change it when a seal shows that all know. Executors are told again and again
    as long as it is wanted; of several the one with the highest id counts."""

    #: of the request
    id: int
    size: int
    reason: str = "asked"


class Switch(Message, frozen=True, kw_only=True, tag=True):
    """All have prepared: go over when a seal shows that all have this order, or at exactly `at_step`."""

    generation: int
    at_step: int | None = None
    #: to be changed with the executors
    batch: Rebatch | None = None


class Recover(_Forming, frozen=True, kw_only=True, tag=True):
    """Give up the present exchange, wherever you are in it, and go on with these."""


class Leave(Message, frozen=True, kw_only=True, tag=True):
    """You are not needed any more: end."""

    reason: str


class TakeCheckpoint(Message, frozen=True, kw_only=True, tag=True):
    """Write a checkpoint at the next place for one. An executor is told again and again as long as it is wanted."""

    #: of the request, so that one is not written twice for it
    id: int = 0
    #: wait at it for the end of the job
    final: bool = False
    #: why a client wants it
    reason: str = "asked"


class Abandon(Message, frozen=True, kw_only=True, tag=True):
    """Give up the open step: write the last sealed state as the final checkpoint of this request, at once."""

    id: int


class GoOn(Message, frozen=True, kw_only=True, tag=True):
    """To one that waits at a final checkpoint: the job does not end."""


class SaveResult(Message, frozen=True, kw_only=True, tag=True):
    """Write final.pt: whoever should have is gone."""


class Dismiss(Message, frozen=True, kw_only=True, tag=True):
    """The job is done and its result is on disk."""


class Heard(Message, frozen=True, kw_only=True, tag=True):
    """So many of your messages have arrived; they need not be sent again."""

    count: int


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

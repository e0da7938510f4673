"""From a person or a scheduler to a job's coordinator, and back. A checkpoint is asked for by what also orders it."""

from __future__ import annotations

from isoscale.protocol.messages.message import Message
from isoscale.protocol.messages.orders import TakeCheckpoint
from isoscale.protocol.status import JobStatus

__all__ = [
    "FromClient",
    "GetStatus",
    "Grant",
    "Reply",
    "Scale",
    "Stop",
]


class Scale(Message, frozen=True, kw_only=True, tag=True):
    """`4`, `+1`, `-1`, or a device set; `away` names executors that shall not stay."""

    target: str
    away: tuple[int, ...] = ()
    reason: str = "asked"
    #: batch size of every logical worker, to be changed with the devices; None: it stays
    batch: int | None = None


class GetStatus(Message, frozen=True, kw_only=True, tag=True):
    pass


class Stop(Message, frozen=True, kw_only=True, tag=True):
    """End the job after a checkpoint; with `now` at once, without one."""

    now: bool = False
    reason: str = "asked"


class Grant(Message, frozen=True, kw_only=True, tag=True):
    """From the service that runs this job: its grant file has this number now.

    `within_s`: devices that it takes away must be free by then, the open step is given up if need be. `cancel`: end at
    once, saving nothing.
    """

    number: int
    within_s: float | None = None
    cancel: bool = False
    reason: str = "granted"


class Reply(Message, frozen=True, kw_only=True, tag=True):
    ok: bool
    #: what was refused and why
    error: str = ""
    status: JobStatus | None = None
    #: of the request, if one was accepted: its answer is in a later `status`, and in the event log
    id: int | None = None


FromClient = Scale | GetStatus | TakeCheckpoint | Stop | Grant

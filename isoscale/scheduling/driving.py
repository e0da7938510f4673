"""What a driver is told of the world and of people, and what it says is to be done. Values only.

Two worlds speak this language: the cluster service, where a *run* is a coordinator process with its executors, and the
simulator, where it is a number that grows. Times are seconds of one clock that never jumps; which one is the caller's
choice. Devices have names; an allocation (`state`) says how many of each node, a *grant* says which.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from isoscale.scheduling.events import JobProgress, JobSubmitted, PricesChanged, RequestChanged, SpeedLearned
from isoscale.scheduling.state import Allocation

__all__ = [
    "CancelAsked",
    "CancelRun",
    "DeviceFailed",
    "DeviceRepaired",
    "DevicesLent",
    "DevicesReleased",
    "Grant",
    "GrantReported",
    "Happening",
    "Instruction",
    "JobAdopted",
    "JobState",
    "KillRun",
    "Launch",
    "PauseAsked",
    "PauseRun",
    "ReclaimAsked",
    "RejectJob",
    "ResumeAsked",
    "ReturnDevices",
    "RunAnswers",
    "RunEnded",
    "RunOutcome",
    "RunSilent",
    "SendGrant",
    "Standing",
    "StateChanged",
]

#: queued: waits for its first devices, or for another try · starting: a run was launched and does not train yet ·
#: running · resizing: trains, and a grant is on its way · pausing: was told to save its state and end · paused: holds
#: no device, its state is kept · finished, failed, cancelled: over, for good
JobState = Literal["queued", "starting", "running", "resizing", "pausing", "paused", "finished", "failed", "cancelled"]
#: how a run ended: with its result; by an error that it told; saved, as it was told; or without a word
RunOutcome = Literal["finished", "failed", "paused", "died"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """The devices that a run may use from now on, and no others. A higher number overrides all lower ones."""

    number: int
    #: names, ascending by node and position
    devices: tuple[str, ...]
    #: the same, counted by node
    allocation: Allocation
    #: global batch; 0: not ours to choose
    batch: int = 0
    #: devices that this grant takes away must be free by then; infinity: at the next switch
    deadline_s: float = math.inf
    reason: str = ""
    #: counts decisions: of grants that come at one moment, the one that was decided first has the lowest
    decision: int = 0


# ---- what happened ----


@dataclass(frozen=True, slots=True)
class JobAdopted:
    """A job that was known before the driver began: its standing as it was saved, corrected by what was found.

    `standing.holds` are devices on which a process of the job was found alive, or on which one may live since nobody
    can look; `is_up` whether its coordinator lives. Tell all jobs in order of submission before anything else.
    """

    submitted: JobSubmitted
    standing: Standing


@dataclass(frozen=True, slots=True)
class GrantReported:
    """A run says which devices it still holds, and by which grant it goes.

    A device that the grant does not name and that is not among `held` is free: its process and its children were seen
    dead. A report by an older grant says nothing of devices that a newer one took away.
    """

    job: str
    number: int
    #: devices on which a process of the run lives or is being started
    held: tuple[str, ...]
    #: the run trains on exactly the granted devices
    is_settled: bool = True
    #: granted devices that the run does not want: a straggler that was set aside, a device on which nothing starts
    given_up: tuple[str, ...] = ()
    #: work thrown away to be in time, in seconds of training, since the last report
    abandoned_s: float = 0.0
    #: why devices were given up
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RunEnded:
    """A run's coordinator has ended.

    `attempt` is that of the `Launch`; the end of an older one is no news. `alive`: devices on which processes of it
    are left; they count as held until `DevicesReleased`. `error` is a class that the retry rule knows, "" if none.
    `progressed`: it committed steps that no earlier attempt had.
    """

    job: str
    attempt: int
    outcome: RunOutcome
    error: str = ""
    reason: str = ""
    alive: tuple[str, ...] = ()
    progressed: bool = False
    abandoned_s: float = 0.0


@dataclass(frozen=True, slots=True)
class DevicesReleased:
    """What ran on these devices for this job was seen dead, by whoever looked."""

    job: str
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RunSilent:
    """A run's coordinator lives and does not answer. It keeps its devices, and nobody waits for them."""

    job: str


@dataclass(frozen=True, slots=True)
class RunAnswers:
    """A silent run answers again. Send its `GrantReported` next."""

    job: str


@dataclass(frozen=True, slots=True)
class PauseAsked:
    """Its owner wants the job to stop until `ResumeAsked`; nobody else starts it meanwhile."""

    job: str
    reason: str = "asked"


@dataclass(frozen=True, slots=True)
class ResumeAsked:
    """Its owner wants the job to go on when its turn comes."""

    job: str


@dataclass(frozen=True, slots=True)
class CancelAsked:
    """The job shall end without a result. A run that has not gone by `deadline_s` is killed."""

    job: str
    deadline_s: float = math.inf
    reason: str = "asked"


@dataclass(frozen=True, slots=True)
class DevicesLent:
    """So many devices of a node that were not ours are ours from now on: these, if they are named."""

    node: int
    count: int
    devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReclaimAsked:
    """The owner of a node wants devices back by `deadline_s`; answered by one `ReturnDevices` with this id."""

    reclaim: str
    node: int
    count: int
    deadline_s: float = math.inf


@dataclass(frozen=True, slots=True)
class DeviceFailed:
    """A device is broken, and what ran on it is dead. `ends_run`: the run that used it cannot go on without it."""

    device: str
    reason: str = "device failed"
    ends_run: bool = False


@dataclass(frozen=True, slots=True)
class DeviceRepaired:
    device: str


Happening = (
    JobSubmitted
    | JobProgress
    | SpeedLearned
    | PricesChanged
    | RequestChanged
    | JobAdopted
    | GrantReported
    | RunEnded
    | DevicesReleased
    | RunSilent
    | RunAnswers
    | PauseAsked
    | ResumeAsked
    | CancelAsked
    | DevicesLent
    | ReclaimAsked
    | DeviceFailed
    | DeviceRepaired
)


# ---- what is to be done ----


@dataclass(frozen=True, slots=True)
class Launch:
    """Start a run with this grant, written down before the process exists.

    `goes_on`: from what an earlier attempt left, live executors included. `attempt` counts launches of the job. A grant
    of no device: the earlier attempt died while it was told to pause; this one saves what is alive and ends.
    """

    job: str
    attempt: int
    grant: Grant
    goes_on: bool = False


@dataclass(frozen=True, slots=True)
class SendGrant:
    """Write the grant down, then send it. Repeating it is harmless."""

    job: str
    grant: Grant


@dataclass(frozen=True, slots=True)
class PauseRun:
    """Have the run save its state and end. `grant` names no device; it overtakes every change under way."""

    job: str
    grant: Grant


@dataclass(frozen=True, slots=True)
class CancelRun:
    """Have the run end at once, saving nothing. `grant` names no device."""

    job: str
    grant: Grant


@dataclass(frozen=True, slots=True)
class KillRun:
    """Its time is over: kill what runs on these devices by proof of identity, then tell `DevicesReleased`.

    With `coordinator` the coordinator first, then tell `RunEnded`.
    """

    job: str
    devices: tuple[str, ...]
    coordinator: bool
    reason: str


@dataclass(frozen=True, slots=True)
class RejectJob:
    """The policy drops the job for good; it is `failed` with this reason."""

    job: str
    reason: str


@dataclass(frozen=True, slots=True)
class ReturnDevices:
    """All devices of a reclaim are free: give them back. `abandoned_s` of work was thrown away for it."""

    reclaim: str
    devices: tuple[str, ...]
    abandoned_s: float = 0.0
    #: after the deadline
    is_late: bool = False


@dataclass(frozen=True, slots=True)
class StateChanged:
    """For the store, the event log and whoever watches. Follows the instruction that it belongs to."""

    job: str
    old: JobState
    new: JobState
    reason: str


Instruction = Launch | SendGrant | PauseRun | CancelRun | KillRun | RejectJob | ReturnDevices | StateChanged


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A job in the driver's book: what is shown, and what is saved to go on after a restart (`JobAdopted`)."""

    state: JobState = "queued"
    reason: str = ""
    #: as decided; what `grant` names as soon as the devices are free
    wanted: Allocation = ()
    batch: int = 0
    #: number and devices of the newest grant
    number: int = 0
    granted: tuple[str, ...] = ()
    #: devices that nobody else may have yet: granted, or taken away and not seen free
    holds: tuple[str, ...] = ()
    attempt: int = 0
    #: a coordinator was launched and has not ended
    is_up: bool = False
    is_silent: bool = False
    #: held back by its owner
    is_paused_by_owner: bool = False
    is_cancelling: bool = False
    #: failures that count against the budget, and the time before which it is not tried again
    failures: int = 0
    not_before_s: float = 0.0
    #: devices that this job gave up: others are preferred for it
    avoids: tuple[str, ...] = field(default=())

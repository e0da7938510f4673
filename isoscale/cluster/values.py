"""What the service, its clients and its database say of jobs, devices and tokens. Values only: no I/O, no clock."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal

from isoscale import limits
from isoscale.errors import UserError
from isoscale.kinds import parse_kinds
from isoscale.types import Level, Order

__all__ = [
    "ENDED",
    "HOLDING",
    "MAX_TEXT",
    "NEXT",
    "PRIORITY",
    "Attempt",
    "DeviceShown",
    "Event",
    "JobRecord",
    "JobShown",
    "NodeShown",
    "Reclaim",
    "Role",
    "State",
    "Submission",
    "TokenShown",
    "Wanted",
    "Why",
    "check_name",
    "check_transition",
]

#: queued: waits for its first devices · starting: its coordinator is being started · running: it trains · resizing: its
#: devices are changing · pausing: it writes a checkpoint to give them up · paused: without devices, its state kept ·
#: finished, failed, cancelled: over
State = Literal["queued", "starting", "running", "resizing", "pausing", "paused", "finished", "failed", "cancelled"]
#: what its owner wants of it, which outlives whatever is under way
Wanted = Literal["run", "pause", "cancel"]
Role = Literal["viewer", "user", "operator", "admin"]

ENDED: frozenset[State] = frozenset({"finished", "failed", "cancelled"})
#: may have processes
HOLDING: frozenset[State] = frozenset({"starting", "running", "resizing", "pausing"})

#: which states may follow which; every one but an ended one may be followed by an end
_THEN: dict[State, tuple[State, ...]] = {
    "queued": ("starting", "paused"),
    "starting": ("running", "resizing", "pausing", "paused", "queued"),
    "running": ("resizing", "pausing", "paused", "starting", "queued"),
    "resizing": ("running", "pausing", "paused", "starting", "queued"),
    "pausing": ("paused", "running", "resizing", "starting", "queued"),
    "paused": ("starting", "queued", "running"),
}
NEXT: dict[State, frozenset[State]] = {
    **{state: frozenset(then) | ENDED for state, then in _THEN.items()},
    **{state: frozenset[State]() for state in ENDED},
}

#: characters of a name, a tenant, a key
MAX_TEXT = 128
_MAX_ARGS, _MAX_ARG_CHARS = 1_000, 32_768
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
PRIORITY = limits.Range(-1_000_000, 1_000_000)
_MAX_AFTER = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """What an owner asks for. `check` refuses what no job can be; the rest only the cluster can tell."""

    #: id of the code that was uploaded before (`PUT /api/code/ID`)
    code: str
    workers: int
    name: str = ""
    tenant: str = ""
    script_args: tuple[str, ...] = ()
    min_devices: int = 1
    #: 0: as many as it has logical workers
    max_devices: int = 0
    kinds: tuple[str, ...] = ()
    #: per logical worker; declared for policies that choose them
    batch_sizes: tuple[int, ...] = ()
    #: steps in all, as the owner knows them; 0 if not
    work: int = 0
    priority: int = 0
    determinism: Level = "elastic"
    order: Order = "ddp"
    seed: int = 0
    threads: int = 1
    until: int = 0
    #: the gradient noise scale is estimated every so many steps; 0: never
    measure_noise: int = 0
    #: times that it is started again after an error of its own
    retries: int = 0
    #: the same key from the same owner is the same submission
    key: str = ""
    #: ids of jobs that must have finished first
    after: tuple[str, ...] = ()

    @property
    def most_devices(self) -> int:
        return self.max_devices or self.workers

    def check(self) -> None:
        """Raises UserError that names the field."""
        limits.within(self.workers, "workers", limits.LOGICAL_WORKERS)
        limits.within(self.min_devices, "min", limits.EXECUTORS)
        if self.max_devices:
            limits.within(self.max_devices, "max", limits.EXECUTORS)
        if self.min_devices > self.workers:
            raise _refused("min", self.min_devices, f"more than the {self.workers} logical workers", "give fewer")
        if self.max_devices > self.workers:
            raise _refused("max", self.max_devices, f"more than the {self.workers} logical workers", "give fewer")
        if self.max_devices and self.max_devices < self.min_devices:
            problem = f"less than min, which is {self.min_devices}"
            raise _refused("max", self.max_devices, problem, "give as many or more")
        limits.within(self.threads, "threads", limits.THREADS)
        last_seed = limits.SEED.most - self.workers
        limits.within(self.seed, "seed", limits.Range(0, last_seed, "seed + logical rank must fit 32 bits"))
        limits.within(self.until, "until", limits.STEP)
        limits.within(self.work, "work", limits.STEP)
        limits.within(self.measure_noise, "measure_noise", limits.STEP)
        if self.measure_noise and self.workers < 2:
            problem = "one logical worker has no other gradient to compare with"
            raise _refused("measure_noise", self.measure_noise, problem, "give --workers 2 or more")
        limits.within(self.retries, "retries", limits.RETRIES)
        limits.within(self.priority, "priority", PRIORITY)
        for batch in self.batch_sizes:
            limits.within(batch, "batch_sizes", limits.BATCH)
        if self.kinds:
            parse_kinds(",".join(self.kinds))
        check_name("name", self.name, empty=True)
        check_name("tenant", self.tenant, empty=True)
        check_name("key", self.key, empty=True)
        if len(self.after) > _MAX_AFTER:
            raise _refused("after", len(self.after), "too many jobs to wait for", f"give at most {_MAX_AFTER}")
        for one in self.after:
            check_name("after", one)
        if len(self.script_args) > _MAX_ARGS or sum(map(len, self.script_args)) > _MAX_ARG_CHARS:
            raise _refused("script_args", len(self.script_args), "too many or too long", "put them into a file")
        if any("\0" in one for one in self.script_args):
            raise _refused("script_args", "...", "holds a NUL character", "leave it out")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """A job as the database has it."""

    id: str
    #: counts submissions
    number: int
    submission: Submission
    name: str
    tenant: str
    #: the token's name that submitted it
    owner: str
    state: State = "queued"
    wanted: Wanted = "run"
    priority: int = 0
    #: the most devices that its owner wants it to have now (`jobs scale`); 0: as submitted
    cap: int = 0
    #: of the script, for people
    script: str = ""
    submitted_s: float = 0.0
    started_s: float | None = None
    ended_s: float | None = None
    step: int = 0
    #: steps in all, as its script says; 0 if unknown
    total: int = 0
    #: failed starts and runs that counted against `retries`
    failures: int = 0
    digest: str = ""
    error: str = ""
    exit_code: int | None = None
    #: read in committed steps; None if it never said
    samples: int | None = None
    #: its place in the driver's book, as JSON (`scheduling.driving.Standing`); "" before it has one
    standing: str = ""

    @property
    def most_devices(self) -> int:
        most = self.submission.most_devices
        return min(self.cap, most) if self.cap else most

    @property
    def is_over(self) -> bool:
        return self.state in ENDED


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One coordinator process of a job: intended first, then started. Never two that live at a time."""

    job: str
    #: counts the job's coordinators
    number: int
    term: int
    #: of the system that ran when it was intended: after a reboot its processes are dead
    boot: str
    begun_s: float
    #: 0 until the process is there
    pid: int = 0
    born: int = 0
    ended_s: float | None = None
    outcome: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reclaim:
    """Devices that the owner of a node wants back: on record from when it was asked for."""

    id: str
    node: str
    count: int
    #: None: when jobs have let go of them in their own time
    within_s: float | None
    by: str
    #: the system that ran then, and the seconds since its start
    boot: str
    asked_s: float
    #: once it is done; `seconds` that it took, None as long as it is not
    devices: tuple[str, ...] = ()
    seconds: float | None = None
    abandoned_s: float = 0.0
    late: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A row of the log: written in the transaction of what it tells."""

    id: int
    t: float
    event: str
    job: str = ""
    tenant: str = ""
    #: who asked for it; "" for the service itself
    by: str = ""
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """Why a job is where it is. `reason` is one of `why.REASONS`; `text` says it with the numbers."""

    reason: str
    text: str
    #: place in the queue, from 1; None if it does not wait for devices
    position: int | None = None
    #: ids of jobs that are served before it
    ahead: tuple[str, ...] = ()
    #: devices by job, of those who hold what it waits for
    holders: dict[str, int] = field(default_factory=dict)
    #: unix seconds, None if nobody can tell
    estimated_start_s: float | None = None
    estimated_end_s: float | None = None
    #: earliest and latest, from the errors of earlier forecasts
    start_range_s: tuple[float, float] | None = None
    end_range_s: tuple[float, float] | None = None
    numbers: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobShown:
    """A job as clients see it. Times are unix seconds."""

    id: str
    name: str
    tenant: str
    owner: str
    state: State
    wanted: Wanted
    priority: int
    #: ids of devices that it holds
    devices: tuple[str, ...]
    executors: int
    workers: int
    min_devices: int
    max_devices: int
    step: int
    total: int
    #: read in committed steps; None if the job does not tell
    samples: int | None
    submitted_s: float
    started_s: float | None
    ended_s: float | None
    digest: str
    error: str
    exit_code: int | None
    script: str
    why: Why
    #: verbs that make sense now
    actions: tuple[str, ...] = ()
    loss: float | None = None
    steps_per_s: float | None = None
    #: batch size of a logical worker, where it may change, and the gradient noise scale, where it is measured
    batch: int | None = None
    noise_scale: float | None = None
    failures: int = 0
    after: tuple[str, ...] = ()
    directory: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceShown:
    id: str
    node: str
    kind: str
    #: free, held, releasing (its process is not seen dead yet), away (lent out or reclaimed)
    state: Literal["free", "held", "releasing", "away"]
    #: the job that holds it; "" if nobody, or nobody that the asker may know of
    job: str = ""
    #: its processes run on these cores only; (): on any
    cores: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeShown:
    name: str
    kind: str
    num_devices: int
    #: that the service may use now
    num_ours: int
    devices: tuple[DeviceShown, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenShown:
    """A token without its secret."""

    id: int
    name: str
    role: Role
    tenant: str
    created_s: float
    expires_s: float | None
    revoked_s: float | None = None


def check_transition(job: str, old: State, new: State) -> None:
    """Raises ValueError: a mistake of the service, which must not reach the database."""
    if new != old and new not in NEXT[old]:
        raise ValueError(f"job {job}: {old} cannot become {new}")


def check_name(field_name: str, value: str, *, empty: bool = False) -> None:
    """Names are used in file names, logs and pages: letters, digits, '.', '_' and '-'. Raises UserError."""
    if (empty and not value) or _NAME.fullmatch(value):
        return
    if len(value) > MAX_TEXT:
        raise _refused(field_name, value, "is too long", f"give at most {MAX_TEXT} characters")
    problem = "has other characters than letters, digits, '.', '_' and '-', or begins with one of the last three"
    raise _refused(field_name, value, problem, "give a plain name, such as my-job.2")


def _refused(field_name: str, value: object, problem: str, remedy: str) -> UserError:
    return UserError(field=field_name, value=value, problem=problem, remedy=remedy)

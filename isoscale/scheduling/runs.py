"""One job in the driver's book: what it shall hold, what it was granted, what it has not let go of yet."""

from __future__ import annotations

import math

from isoscale.scheduling.device_pool import DevicePool
from isoscale.scheduling.driving import Instruction, JobState, Standing, StateChanged
from isoscale.scheduling.state import Allocation

__all__ = ["OVER", "Run", "adopted", "standing_of"]

OVER: frozenset[JobState] = frozenset(("finished", "failed", "cancelled"))


class Run:
    __slots__ = (
        "attempt",
        "avoids",
        "batch",
        "deadline_s",
        "decision",
        "dropped",
        "failures",
        "granted",
        "is_cancelling",
        "is_paused_by_owner",
        "is_silent",
        "is_up",
        "min_devices",
        "misses",
        "name",
        "not_before_s",
        "number",
        "reason",
        "sent",
        "state",
        "wanted",
        "why",
    )

    def __init__(self, name: str, min_devices: int) -> None:
        self.name = name
        self.min_devices = min_devices
        self.state: JobState = "queued"
        self.reason = "submitted"
        #: as decided, and why
        self.wanted: Allocation = ()
        self.batch = 0
        self.why = ""
        #: counts decisions of the whole cluster
        self.decision = 0
        #: of the newest grant
        self.number = 0
        self.granted: set[int] = set()
        #: number and batch of the grant that was sent last
        self.sent = (0, 0)
        #: devices taken away and not seen free, with the number of the grant that took each away
        self.dropped: dict[int, int] = {}
        #: when they must be free
        self.deadline_s = math.inf
        self.attempt = 0
        self.is_up = False
        self.is_silent = False
        self.is_paused_by_owner = False
        self.is_cancelling = False
        self.failures = 0
        #: tries in a row, of late, that were no failures of the job's
        self.misses = 0
        self.not_before_s = 0.0
        self.avoids: frozenset[int] = frozenset()

    @property
    def is_free_to_go(self) -> bool:
        """Whether decisions about it are carried out now."""
        return not (self.is_silent or self.is_paused_by_owner or self.is_cancelling or self.state in OVER)

    def holds(self) -> set[int]:
        """Devices that nobody else may have."""
        return {*self.granted, *self.dropped}

    def turn(self, state: JobState, why: str, out: list[Instruction]) -> None:
        if state != self.state:
            out.append(StateChanged(self.name, self.state, state, why))
            self.state = state
        self.reason = why


def standing_of(run: Run, pool: DevicePool) -> Standing:
    names = pool.names_of
    return Standing(
        state=run.state,
        reason=run.reason,
        wanted=run.wanted,
        batch=run.batch,
        number=run.number,
        granted=names(run.granted),
        holds=names(run.holds()),
        attempt=run.attempt,
        is_up=run.is_up,
        is_silent=run.is_silent,
        is_paused_by_owner=run.is_paused_by_owner,
        is_cancelling=run.is_cancelling,
        failures=run.failures,
        not_before_s=run.not_before_s,
        avoids=names(run.avoids),
    )


def adopted(name: str, min_devices: int, saved: Standing, pool: DevicePool) -> Run:
    """The job as it was saved and found. Of one that does not run nothing is granted."""
    run = Run(name, min_devices)
    run.state, run.reason, run.attempt, run.number = saved.state, saved.reason, saved.attempt, saved.number
    run.is_up, run.failures, run.batch, run.why = saved.is_up, saved.failures, saved.batch, saved.reason
    run.is_paused_by_owner, run.is_cancelling = saved.is_paused_by_owner, saved.is_cancelling
    run.avoids = frozenset(pool.numbers[device] for device in saved.avoids)
    holds = {pool.numbers[device] for device in saved.holds}
    run.granted = {pool.numbers[device] for device in saved.granted} if run.is_up else set()
    run.dropped = dict.fromkeys(holds - run.granted, run.number)
    run.wanted = pool.allocation_of(run.granted)
    return run

"""What a controller is told. The live cluster service and the simulator feed the same values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from isoscale.scheduling.state import Allocation, JobRequest, SpeedModel

__all__ = [
    "AllocationChanged",
    "CapacityChanged",
    "Event",
    "JobEnded",
    "JobOffered",
    "JobProgress",
    "JobSubmitted",
    "JobWithheld",
    "PricesChanged",
    "RequestChanged",
    "SpeedLearned",
]


@dataclass(frozen=True, slots=True)
class JobSubmitted:
    """A job waits from now on. `remaining_work` is its declared total, None if it declares none."""

    request: JobRequest
    speed: SpeedModel
    remaining_work: float | None = None


@dataclass(frozen=True, slots=True)
class JobEnded:
    """A job finished, failed for good or was withdrawn; its devices are free."""

    job: str


@dataclass(frozen=True, slots=True)
class JobProgress:
    """Work a job still has to do. Does not count as a change: policies that care set `watches_time`."""

    job: str
    remaining_work: float


@dataclass(frozen=True, slots=True)
class SpeedLearned:
    """A better speed model of a job, fitted from what was measured."""

    job: str
    speed: SpeedModel


@dataclass(frozen=True, slots=True)
class AllocationChanged:
    """A job's devices are not what was decided: a start failed, an executor died and was not replaced."""

    job: str
    allocation: Allocation


@dataclass(frozen=True, slots=True)
class CapacityChanged:
    """A node has this many devices for us now: devices failed, were repaired, lent to us, or reclaimed."""

    node: int
    num_devices: int


@dataclass(frozen=True, slots=True)
class RequestChanged:
    """The owner declares something else: a priority, other limits. The name stays."""

    request: JobRequest


@dataclass(frozen=True, slots=True)
class JobWithheld:
    """A job is not the policy's to decide about until `JobOffered`: paused by its owner, out of reach, not yet to be
    tried again. What it holds is not booked: `CapacityChanged` says what is left for the others."""

    job: str


@dataclass(frozen=True, slots=True)
class JobOffered:
    """The job is the policy's again, with the place in the queue that it had."""

    job: str


@dataclass(frozen=True, slots=True)
class PricesChanged:
    """What a device of each kind costs from now on, in dollars an hour."""

    prices: Mapping[str, float]


Event = (
    JobSubmitted
    | JobEnded
    | JobProgress
    | SpeedLearned
    | AllocationChanged
    | CapacityChanged
    | RequestChanged
    | JobWithheld
    | JobOffered
    | PricesChanged
)

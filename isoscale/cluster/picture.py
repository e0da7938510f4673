"""The cluster at one moment, as the engine publishes it after every turn: what answers to clients are made of.

Frozen values. The engine replaces the whole picture; whoever answers a request looks at one picture from beginning to
end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from isoscale.scheduling.driving import Standing

__all__ = ["Estimate", "JobPicture", "NodePicture", "Picture"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """When a job will start and end, by the simulator; unix seconds, None if nobody can tell."""

    start_s: float | None = None
    end_s: float | None = None
    start_range_s: tuple[float, float] | None = None
    end_range_s: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPicture:
    """What is known of a job that is not over, beside its record."""

    standing: Standing
    step: int = 0
    total: int = 0
    samples: int | None = None
    #: of one logical worker, where it may change
    batch: int | None = None
    noise_scale: float | None = None
    loss: float | None = None
    steps_per_s: float | None = None
    executors: int = 0
    #: of jobs that must finish first, those that have not
    waits_for: tuple[str, ...] = ()
    #: of a job that has failed: whether it is tried again, and why; "" otherwise
    verdict: str = ""
    #: the coordinator's own last word on what it does
    doing: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePicture:
    name: str
    kind: str
    devices: tuple[str, ...]
    #: devices that are lent out, reclaimed or broken
    away: frozenset[str] = frozenset()
    #: that a device's processes run on; one that is not in it has all
    cores: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Picture:
    t: float
    policy: str
    interval_s: float = 0.0
    nodes: tuple[NodePicture, ...] = ()
    jobs: Mapping[str, JobPicture] = field(default_factory=dict)
    #: ids of jobs that wait for devices, the next one first
    queue: tuple[str, ...] = ()
    #: tenant of every job that is not over
    tenants: Mapping[str, str] = field(default_factory=dict)
    quotas: Mapping[str, int] = field(default_factory=dict)
    estimates: Mapping[str, Estimate] = field(default_factory=dict)
    #: seconds to the next decision; None if none is due
    decides_in_s: float | None = None

    @cached_property
    def positions(self) -> Mapping[str, int]:
        """Places in the queue, from 1."""
        return {job: place for place, job in enumerate(self.queue, 1)}

    @cached_property
    def holders(self) -> Mapping[str, str]:
        """Job by device."""
        return {device: job for job, one in self.jobs.items() for device in one.standing.holds}

    @cached_property
    def granted(self) -> Mapping[str, str]:
        return {device: job for job, one in self.jobs.items() for device in one.standing.granted}

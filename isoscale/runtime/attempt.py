"""A change of a job's executors, as values: what a plan asks for, and a generation in the making."""

from __future__ import annotations

from dataclasses import dataclass, field

from isoscale.kinds import DeviceSet
from isoscale.protocol import messages as m

__all__ = ["Attempt", "PlanEntry", "pause_of"]


@dataclass(frozen=True, slots=True)
class PlanEntry:
    """From `step` committed steps on the job has these devices."""

    step: int
    devices: DeviceSet


@dataclass(slots=True)
class Attempt:
    """A generation in the making."""

    generation: int
    members: tuple[int, ...]
    shares: tuple[int, ...]
    coming: frozenset[int]
    leaving: tuple[int, ...]
    reason: str
    #: who has not formed the group yet
    forming: set[int]
    at_step: int | None = None
    switch_sent: bool = False
    #: who has gone over: unix seconds of leaving the old and of starting in the new generation, seconds waited
    switched: dict[int, m.Switched] = field(default_factory=dict)


def pause_of(switched: dict[int, m.Switched]) -> tuple[float, float]:
    """Seconds from the last one leaving its old step to the first one starting a new one, and of them those waited."""
    if not switched:
        return 0.0, 0.0
    waited = max(one.waited_s for one in switched.values())
    left = max(one.left_at for one in switched.values())
    started = min(one.started_at for one in switched.values())
    return max(0.0, started - left - waited), waited

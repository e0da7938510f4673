"""What a new service makes of the jobs that it finds: result first, then the coordinator, then executors. Pure.

`Found` is what somebody saw in the job's directory and in the process table. What follows from it is said in the
driver's words. Only when every job has been looked at is anything scheduled.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from isoscale.cluster.outcome import Outcome
from isoscale.cluster.retrying import class_of
from isoscale.cluster.values import JobRecord
from isoscale.scheduling.driving import (
    CancelAsked,
    Happening,
    JobAdopted,
    PauseAsked,
    ResumeAsked,
    RunEnded,
    Standing,
)
from isoscale.scheduling.events import JobSubmitted

__all__ = ["Adopted", "Found", "adopt", "wishes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What is there of a job."""

    #: what its directory says of its end; kind "died" if nothing
    outcome: Outcome
    #: a coordinator of it lives on this machine
    is_up: bool
    #: devices on which processes of it live
    alive: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """`over`: the job has its result, and the driver need not hear of it. Otherwise `events` for the driver."""

    over: Literal["", "finished"] = ""
    events: tuple[Happening, ...] = ()
    #: the coordinator is to be watched
    watch: bool = False


def adopt(
    record: JobRecord,
    saved: Standing | None,
    found: Found,
    submitted: JobSubmitted,
    devices: frozenset[str],
    cancel_by_s: float,
) -> Adopted:
    """`saved` is the standing as it was last written down; `devices` are those that there are now."""
    if found.outcome.kind == "finished" and not found.is_up:
        return Adopted(over="finished")
    if saved is None:
        return Adopted(events=(submitted, *wishes(record, None, cancel_by_s)))
    alive = tuple(device for device in found.alive if device in devices)
    granted = tuple(device for device in saved.granted if device in devices)
    was_up = saved.is_up or found.is_up
    holds = tuple(dict.fromkeys([*alive, *(granted if was_up else ())]))
    standing = replace(
        saved,
        # Devices that are no more: another grant, which the coordinator has not heard of.
        number=saved.number + (was_up and granted != saved.granted),
        granted=granted if was_up else (),
        holds=holds,
        is_up=was_up,
        is_silent=False,
        avoids=tuple(device for device in saved.avoids if device in devices),
    )
    events: list[Happening] = [JobAdopted(submitted, standing)]
    if was_up and not found.is_up:
        outcome = found.outcome
        events.append(
            RunEnded(
                record.id,
                saved.attempt,
                outcome.kind,
                error=class_of(outcome),
                reason=outcome.error or "it was not there when the service came back",
                alive=alive,
                # Nobody can tell, and a service that was killed must not use up a job's tries.
                progressed=True,
            )
        )
    return Adopted(events=(*events, *wishes(record, standing, cancel_by_s)), watch=found.is_up)


def wishes(record: JobRecord, standing: Standing | None, cancel_by_s: float) -> list[Happening]:
    """What its owner asked for and the driver had not heard yet."""
    is_paused = standing is not None and standing.is_paused_by_owner
    is_cancelling = standing is not None and standing.is_cancelling
    if record.wanted == "cancel" and not is_cancelling:
        return [CancelAsked(record.id, cancel_by_s, "its owner cancelled it")]
    if record.wanted == "pause" and not is_paused:
        return [PauseAsked(record.id, "its owner paused it")]
    if record.wanted == "run" and is_paused:
        return [ResumeAsked(record.id)]
    return []

"""Which of the granted devices a job has, where a cluster service grants them; what it was told to give back, and when.

The file in the run's directory counts (`runtime.control.grants`): it is looked at before every start.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from pathlib import Path

from isoscale.backends.seam import Device
from isoscale.errors import StartError, UserError
from isoscale.protocol.status import GrantStatus
from isoscale.runtime.control.grants import DeviceGrant, read_grant
from isoscale.runtime.coordinator.processes import Processes
from isoscale.runtime.membership.reclaim import Reclaim
from isoscale.runtime.membership.state_machine import Membership

__all__ = ["Holdings"]


class Holdings:
    def __init__(self, place: Callable[[], Path], processes: Processes, membership: Membership) -> None:
        """`place`: the run's directory, wherever it is. Raises UserError if it has no grant."""
        self._place = place
        self._processes = processes
        self._membership = membership
        grant = read_grant(place())
        if grant is None:
            raise UserError(
                field="DIR", value=place(), problem="has no grant", remedy="write one: isoscale.runtime.control.grants"
            )
        self.grant: DeviceGrant = grant
        #: devices that the job does without, and why
        self._given_up: dict[str, str] = {}
        #: executors on devices that were taken away must be gone by then
        self.reclaim: Reclaim | None = None
        #: number of the newest grant whose batch size was asked for
        self._batch_asked = 0
        processes.free_device = self.free_device

    def look(self) -> DeviceGrant:
        """The newest grant."""
        with contextlib.suppress(UserError):  # a torn file: the last whole one counts
            found = read_grant(self._place())
            if found is not None and found.number > self.grant.number:
                self.grant, self._given_up = found, {}
        return self.grant

    def open_batch(self) -> int | None:
        """The batch size that the newest grant names, once: the job may refuse it, and is not asked again."""
        if self.grant.number <= self._batch_asked:
            return None
        self._batch_asked = self.grant.number
        return self.grant.batch

    def free_device(self, kind: str, taken: Collection[str]) -> Device:
        for device in self.look().devices:
            if device.kind == kind and device.id not in taken and device.id not in self._given_up:
                return device
        granted = ", ".join(sorted(self.grant.ids)) or "none"
        raise StartError(what=kind, reason=f"no granted device is free (grant {self.grant.number}: {granted})")

    def allows(self, executor: int) -> bool:
        """Whether the device of an executor is granted, by what is on the disk now."""
        return self._processes.device_of(executor) in self.look().ids

    def strangers(self) -> tuple[int, ...]:
        """Executors on devices that are not granted any more."""
        granted = self.grant.ids
        return tuple(e for e in self._processes if self._processes.device_of(e) not in granted)

    def lets_go(self) -> bool:
        """Nothing runs on a device that is not granted."""
        return self._processes.devices() <= self.grant.ids

    def set_aside(self, executors: Collection[int], reason: str) -> None:
        """The job does better without these."""
        for executor in executors:
            if device := self._processes.device_of(executor):
                self._given_up[device] = reason

    def status(self, abandoned_s: float, write_s: float, unsaved_steps: int) -> GrantStatus:
        held, goal = self._processes.devices(), self._membership.goal
        given_up = {device: why for device, why in self._given_up.items() if device in self.grant.ids}
        if goal.refused:
            given_up |= dict.fromkeys(self.grant.ids - held, goal.refused)
        members = {self._processes.device_of(executor) for executor in self._membership.members}
        calm = self._membership.phase == "training" and self._membership.sealed and self._membership.attempt is None
        return {
            "number": self.grant.number,
            "devices": sorted(self.grant.ids),
            "held": sorted(held),
            "settled": calm and members == self.grant.ids == held,
            "given_up": sorted(given_up),
            "reason": next(iter(given_up.values()), ""),
            "abandoned_s": round(abandoned_s, 3),
            "write_s": write_s or None,
            "unsaved_steps": unsaved_steps,
        }

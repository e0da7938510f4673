"""This machine as a backend: processes are forked from a warm parent where that gives the same, else started afresh.

A process gets its own session, so a Ctrl-C in the terminal reaches only the coordinator, which then ends it.
Its output goes straight into a log file: it must not depend on the coordinator, which may die first. A process
that an earlier coordinator started is found again by its pid and its time of birth.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from isoscale import env
from isoscale.backends.host_id import machine_id
from isoscale.backends.leftovers import marks_of
from isoscale.backends.local_process import ForkedProcess, FoundProcess, LocalProcess, SpawnedProcess
from isoscale.backends.seam import Device, DeviceGone, DeviceLeaving, Identity, Launch, Notice
from isoscale.backends.system import can_lower_priority, lives, lower_session, pin
from isoscale.backends.warm import NEWCOMER_NICE, UnavailableError, WarmParents
from isoscale.errors import StartError
from isoscale.kinds import NumericProfile, executor_environment

__all__ = ["ALLOCATOR", "LocalBackend", "training_environment"]

#: glibc's malloc, for processes that train: memory stays with the process. Every turn frees its gradients and the
#: next one asks for them again; handing pages back to the system in between cost 1 ms a turn for a 6.5 MB model.
ALLOCATOR = {"MALLOC_TRIM_THRESHOLD_": str(2**40), "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20)}


def training_environment(variables: Mapping[str, str], profile: NumericProfile, threads: int) -> dict[str, str]:
    """Of a process that trains: this one's, with `variables`, the caps of `profile`, and what makes it repeatable."""
    # Sets and dicts of strings iterate in the same order in every process.
    fixed = {"PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "1", **variables}
    return executor_environment({**ALLOCATOR, **env.child_environment(fixed)}, profile, threads)


class LocalBackend:
    """Devices are slots: as many of each kind as are asked for, or those that `devices` names and no others."""

    def __init__(self, *, warm: WarmParents | None = None, devices: Sequence[Device] | None = None) -> None:
        """`warm`: who forks processes; None: all are started afresh."""
        self._warm = warm
        self._devices = None if devices is None else {device.id: device for device in devices}
        self._listeners: list[Callable[[Notice], None]] = []
        self._running: dict[str, LocalProcess] = {}

    def devices(self) -> Sequence[Device]:
        return tuple((self._devices or {}).values())

    def free_device(self, kind: str, taken: Collection[str]) -> Device:
        if self._devices is None:
            slots = (f"{kind}/{number}" for number in itertools.count())
            return Device(id=next(slot for slot in slots if slot not in taken), kind=kind, node=machine_id())
        for device in self._devices.values():
            if device.kind == kind and device.id not in taken:
                return device
        raise StartError(what=kind, reason=f"no device is free; {len(taken)} of {len(self._devices)} are taken")

    def prepare(self, environment: Mapping[str, str]) -> None:
        if self._warm is not None:
            with contextlib.suppress(UnavailableError):
                self._warm.begun(environment)

    async def start(self, launch: Launch, device: Device) -> LocalProcess:
        if self._devices is not None and device.id not in self._devices:
            raise StartError(what=device.id, reason="this device is gone")
        launch = replace(launch, cores=device.cores)
        try:
            with _log_file(launch.log) as log:
                process = await self._fork(launch, device, log) or await _spawn(launch, device, log)
        except OSError as error:
            raise StartError(what=launch.command[0], reason=error.strerror or str(error)) from error
        if device.cores and not pin(process.pid, device.cores):
            await process.end()
            raise StartError(what=device.id, reason=f"there are no such cores: {', '.join(map(str, device.cores))}")
        self._running[device.id] = process
        return process

    def lives(self, identity: Identity) -> bool:
        return identity.machine == machine_id() and lives(identity.pid, identity.born)

    def find(self, identity: Identity, log: Path) -> LocalProcess | None:
        if not self.lives(identity):
            return None
        try:
            process = FoundProcess(identity, log)
        except ProcessLookupError:
            return None
        self._running[identity.device] = process
        return process

    def listen(self, listener: Callable[[Notice], None]) -> None:
        self._listeners.append(listener)

    async def withdraw(self, device: str, *, within_s: float, reason: str) -> None:
        """Take a device away: what runs on it is told, and killed when its time is over. Returns when it is free."""
        if self._devices is not None:
            self._devices.pop(device, None)
        process = self._running.pop(device, None)
        if process is not None:
            self._tell(DeviceLeaving(device=device, within_s=within_s, reason=reason))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    await process.wait()
            await process.end()
        self._tell(DeviceGone(device=device, reason=reason))

    async def close(self) -> None:
        if self._warm is not None:
            self._warm.close()

    def _tell(self, notice: Notice) -> None:
        for listener in self._listeners:
            listener(notice)

    async def _fork(self, launch: Launch, device: Device, log: BinaryIO) -> ForkedProcess | None:
        """None if it must be started afresh."""
        if self._warm is None or not launch.entry:
            return None
        try:
            pid = await self._warm.fork(launch, log)
            return ForkedProcess(pid, device.id, launch.log, marks_of(launch.environment), self._warm.how_ended)
        except UnavailableError:
            return None


async def _spawn(launch: Launch, device: Device, log: BinaryIO) -> SpawnedProcess:
    lowered = launch.newcomer and can_lower_priority()
    process = await asyncio.create_subprocess_exec(
        *(("nice", "-n", str(NEWCOMER_NICE)) if lowered else ()),
        *launch.command,
        env=dict(launch.environment),
        cwd=launch.cwd,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=log,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    if launch.newcomer:
        lower_session(NEWCOMER_NICE, process.pid)
    return SpawnedProcess(process, device.id, launch.log, marks_of(launch.environment))


def _log_file(log: Path) -> BinaryIO:
    """What the process writes is lost if the directory of logs is gone: that is no reason to do without the process."""
    try:
        return log.open("ab")
    except (FileNotFoundError, NotADirectoryError):
        return open(os.devnull, "ab")

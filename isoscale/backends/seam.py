"""The seam between a job and what its executors run on: devices, and processes on them.

A coordinator knows this module only. Behind it a **backend** says which devices there are, starts a process on one,
tells when a device is about to go or is gone, and finds processes again that an earlier coordinator has started.
`isoscale.testing.conformance` holds every backend against what is written here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

__all__ = [
    "Backend",
    "Device",
    "DeviceGone",
    "DeviceLeaving",
    "ExecutorProcess",
    "Identity",
    "Launch",
    "Notice",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One slot on which one executor runs."""

    #: unique among all devices of a backend, and the same after a restart of whoever asks
    id: str
    kind: str
    #: devices of one node share a machine
    node: str
    #: a process on it runs on these cores only; (): on any
    cores: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLeaving:
    """The device will be taken away: whoever runs on it should leave. `within_s` is how long it has."""

    device: str
    within_s: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceGone:
    """The device is no more, and neither is what ran on it."""

    device: str
    reason: str


Notice = DeviceLeaving | DeviceGone


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What to run, told in two ways that come to the same."""

    #: for a fresh process: the program and its arguments
    command: tuple[str, ...]
    #: for a process that has Python's libraries in memory already: "module:function", which takes `arguments`, a list
    #: of strings, and ends the process; "" if there is only the command
    entry: str = ""
    arguments: tuple[str, ...] = ()
    #: the whole environment
    environment: Mapping[str, str] = field(default_factory=dict)
    #: the working directory; None: that of whoever asks
    cwd: Path | None = None
    #: stdout and stderr go to the end of this file
    log: Path
    #: it runs on these cores only; (): where whoever asks may run. A backend sets this by the device
    cores: tuple[int, ...] = ()
    #: by variable of the environment: what stands in the file that the variable names, for a machine that does not
    #: see that file. It may be secret: it gets a file of its own there, which the variable then names
    files: Mapping[str, bytes] = field(default_factory=dict)
    #: a job trains on the same machine: the process is to start at a lower priority, and raises it when it joins
    newcomer: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """By which a process is known again, though whoever started it is gone."""

    pid: int
    #: when it was born, in the clock of its machine
    born: int
    machine: str
    device: str = ""
    #: by which its backend finds it, where that takes more than the above
    name: str = ""


class ExecutorProcess(Protocol):
    """A process that was started or found again."""

    @property
    def identity(self) -> Identity: ...

    async def wait(self) -> str:
        """Until it has ended: "exit code 3", "killed by SIGKILL", or "ended" if nobody can tell."""

    def is_stopped(self) -> bool:
        """Stopped by a signal, so that it cannot answer. False if that cannot be known."""

    def signal(self, number: int) -> None:
        """To the process itself; nothing happens if it is gone."""

    def kill(self) -> None:
        """At once, with its process group: whatever it held is held by others, or in a checkpoint."""

    async def sweep(self) -> None:
        """It has ended: so has everything that it started, when this returns."""

    async def end(self) -> None:
        """Kill, wait, sweep."""

    def tail(self) -> str:
        """The last lines of its output."""


class Backend(Protocol):
    """Where processes run. Used from one event loop."""

    def devices(self) -> Sequence[Device]:
        """Those that are there now."""

    def free_device(self, kind: str, taken: Collection[str]) -> Device:
        """One of this kind that is not among `taken`. Raises StartError if there is none."""

    def prepare(self, environment: Mapping[str, str]) -> None:
        """Processes with this environment will be asked for soon. Returns at once; nothing depends on it."""

    async def start(self, launch: Launch, device: Device) -> ExecutorProcess:
        """Returns when the process exists. Raises StartError, also when it takes too long; then there is none."""

    def find(self, identity: Identity, log: Path) -> ExecutorProcess | None:
        """A process that somebody else started, if it lives. None: it does not, or it cannot be known from here."""

    def lives(self, identity: Identity) -> bool:
        """Whether `find` would find it; leaves it alone."""

    def listen(self, listener: Callable[[Notice], None]) -> None:
        """Tell this one of devices that go, from now on."""

    async def close(self) -> None:
        """Nothing will be started any more. Processes go on."""

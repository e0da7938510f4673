"""A job's processes as the system knows them: started through the gate, found again, watched, ended by proof.

A process is known by its number and its time of birth, and only on the boot on which it was recorded.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from isoscale import env
from isoscale.backends.host_id import machine_id
from isoscale.backends.leftovers import Lineage, end_leftovers, marks_of
from isoscale.backends.seam import Identity
from isoscale.backends.system import born, leads_session, lives
from isoscale.cluster import faults
from isoscale.protocol.files import read_small_json

__all__ = [
    "CoordinatorProcess",
    "Executor",
    "Executors",
    "LocalExecutors",
    "end_executors",
    "live_executors",
    "recorded_executors",
    "start_gated",
    "until_readable",
]

_GATE = Path(__file__).with_name("gate.py")
#: until something that was killed is seen dead; a process in the kernel's hands may take longer
_DEATH_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Executor:
    """One that a coordinator recorded, and that lives."""

    executor: int
    pid: int
    born: int
    device: str


class Executors(Protocol):
    """What lives of the runs of a service, wherever their executors are."""

    def live(self, directory: Path) -> list[Executor]:
        """Of the run in a directory, whoever started them."""

    def end(self, directory: Path, devices: Collection[str]) -> list[str]:
        """Kill what runs on these devices for the run in a directory, its children too; returns those seen free."""


class CoordinatorProcess:
    """One that lives, or lived: ours, or another service's. `wait` sees its end at once, whoever its parent is."""

    def __init__(self, pid: int, birth: int, child: subprocess.Popen[bytes] | None = None) -> None:
        self.pid, self.born = pid, birth
        self._child = child
        self._descriptor = -1
        with contextlib.suppress(OSError):
            self._descriptor = os.pidfd_open(pid)
        if self._descriptor >= 0 and not lives(pid, birth):  # the number is somebody else's by now
            self._close()

    def is_alive(self) -> bool:
        """By its descriptor where there is one: that needs no file, of which a busy service may have none left."""
        return lives(self.pid, self.born) if self._descriptor < 0 else not until_readable(self._descriptor, seconds=0.0)

    def wait(self, seconds: float, wake: int) -> bool:
        """Until it has ended (True), `wake` is readable, or the time is over."""
        if self._descriptor < 0:
            until_readable(wake, seconds=seconds if self.is_alive() else 0.0)
        else:
            until_readable(self._descriptor, wake, seconds=seconds)
        return not self.is_alive()

    def exit_code(self) -> int | None:
        """None if it is not our child: then nobody tells."""
        if self._child is None:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._child.wait(1.0)
        return None

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self._descriptor >= 0:
                signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)
            elif self.is_alive():
                os.kill(self.pid, signal.SIGKILL)
        _until(lambda: not self.is_alive())
        if self._child is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._child.wait(1.0)

    def close(self) -> None:
        self._close()

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def start_gated(
    command: Sequence[str],
    *,
    cwd: Path,
    environment: dict[str, str],
    log: Path,
    record: Callable[[int, int], None],
) -> CoordinatorProcess:
    """In a session of its own. `record(pid, born)` makes it known before it does anything. Raises OSError."""
    inner, outer = os.pipe()
    try:
        with log.open("ab") as output:
            child = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_GATE), str(inner), *command],
                cwd=cwd,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(inner,),
            )
        faults.reached("start-spawned")
        return _let_go(child, outer, record)
    finally:
        os.close(inner)
        os.close(outer)


def _let_go(child: subprocess.Popen[bytes], gate: int, record: Callable[[int, int], None]) -> CoordinatorProcess:
    """Once it is recorded. One that cannot be ends at the gate, and was never there."""
    process = CoordinatorProcess(child.pid, born(child.pid), child)
    try:
        if not process.born:  # one that cannot be told from another must not begin
            raise OSError(f"process {child.pid} ended before it began")
        record(process.pid, process.born)
        faults.reached("start-recorded")
        os.write(gate, b"1")
        faults.reached("start-released")
    except BaseException:
        child.kill()
        child.wait(_DEATH_S)
        process.close()
        raise
    return process


def until_readable(*descriptors: int, seconds: float | None = None) -> bool:
    """Until there is something to read, or the time is over (False). Not `select`, which knows no number above 1023."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(None if seconds is None else max(0.0, seconds) * 1000))


def recorded_executors(directory: Path) -> list[tuple[Executor, Identity]]:
    """Those that the last coordinator of the run in a directory has written down."""
    found: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        found = read_small_json(directory / "control" / "executors.json")
    recorded = []
    for number, fields in found.items() if isinstance(found, dict) else ():
        with contextlib.suppress(KeyError, TypeError, ValueError):
            pid, birth, device = int(fields["pid"]), int(fields["born"]), str(fields["device"])
            machine, name = str(fields["machine"]), str(fields.get("name", ""))
            identity = Identity(pid=pid, born=birth, machine=machine, device=device, name=name)
            recorded.append((Executor(executor=int(number), pid=pid, born=birth, device=device), identity))
    return recorded


def live_executors(directory: Path) -> list[Executor]:
    """Of the run in a directory, on this machine and this boot, whoever started them."""
    here = machine_id()
    recorded = recorded_executors(directory)
    return [one for one, identity in recorded if identity.machine == here and lives(one.pid, one.born)]


def end_executors(directory: Path, devices: Collection[str]) -> list[str]:
    """Kill what runs on these devices for the run in a directory, its children too; returns those seen free."""
    condemned = [one for one in live_executors(directory) if one.device in devices]
    for one in condemned:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(one.pid, signal.SIGKILL) if leads_session(one.pid) else os.kill(one.pid, signal.SIGKILL)
    _until(lambda: not any(lives(one.pid, one.born) for one in condemned))
    token = str((directory / "control" / "token").resolve())
    for one in condemned:
        marks = marks_of({env.EXECUTOR: str(one.executor), env.TOKEN_FILE: token})
        end_leftovers(Lineage(leader=one.pid, marks=marks, died=None, leads=False, since=one.born))
    left = {one.device for one in condemned if lives(one.pid, one.born)}
    return [device for device in devices if device not in left]


class LocalExecutors:
    """On this machine."""

    def live(self, directory: Path) -> list[Executor]:
        return live_executors(directory)

    def end(self, directory: Path, devices: Collection[str]) -> list[str]:
        return end_executors(directory, devices)


def _until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _DEATH_S
    while not done() and time.monotonic() < deadline:
        time.sleep(0.01)

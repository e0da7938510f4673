"""Processes that an executor has started and left behind: found by proof, ended, seen dead. Linux only.

An executor leads a session, and everything that it starts inherits its session and its environment. One that is left
when the executor is dead belongs to it if its environment names the run and the executor, whatever sessions it made
since; or if it is in the executor's session and was there before the executor died. The number of a session is not
given to anybody else while a process is in it, so the second is a proof, too. A process that must outlive its executor
has neither: `env -u ISOSCALE_EXECUTOR setsid COMMAND`. Does not watch executors.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from isoscale import env
from isoscale.backends.system import born

__all__ = [
    "Lineage",
    "Process",
    "belongs",
    "end_leftovers",
    "end_own_leftovers",
    "marks_at",
    "marks_of",
    "now_ticks",
]

_PROC = Path("/proc")
#: looks after which it is given up, and from which on even those that end by themselves are ended
_LOOKS, _PATIENT_LOOKS, _PAUSE_S = 60, 20, 0.05
#: Python's own helpers: they clean up when their parent is gone, and end
_TIDY = (b"multiprocessing.resource_tracker", b"multiprocessing.forkserver")


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """What is known of a process. Times are clock ticks since the system began."""

    pid: int
    born: int
    state: str
    session: int
    parent: int = 0
    environ: frozenset[bytes] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """Whose leftovers are meant."""

    #: the executor's process
    leader: int
    #: what its environment says of it, to tell it from all other processes: empty if that is not known
    marks: frozenset[bytes]
    #: when it died; None: it lives, and asks for itself
    died: int | None
    #: it was a session's leader
    leads: bool = True
    #: when it was born: what it started is no older. 0: not known
    since: int = 0


def _is_linux() -> bool:
    return sys.platform.startswith("linux")


def belongs(process: Process, lineage: Lineage) -> bool:
    """Whether it is proven to be a leftover.

    >>> mark = frozenset({b"ISOSCALE_EXECUTOR=1", b"ISOSCALE_TOKEN_FILE=/run/token"})
    >>> dead = Lineage(leader=100, marks=mark, died=500)
    >>> belongs(Process(pid=101, born=400, state="S", session=100), dead)
    True
    >>> belongs(Process(pid=101, born=600, state="S", session=100), dead)  # perhaps of a new session of that number
    False
    >>> belongs(Process(pid=101, born=600, state="S", session=101, environ=mark | {b"HOME=/"}), dead)
    True
    """
    if process.pid == lineage.leader or process.state in "ZX" or process.born < lineage.since:
        return False
    if lineage.marks and lineage.marks <= process.environ:
        return True
    in_session = lineage.leads and process.session == lineage.leader
    return in_session and (lineage.died is None or process.born < lineage.died)


def marks_of(environment: Mapping[str, str]) -> frozenset[bytes]:
    """What tells an executor of a run from all others; empty if it is none."""
    names = (env.EXECUTOR, env.TOKEN_FILE)
    if any(name not in environment for name in names):
        return frozenset()
    return frozenset(f"{name}={environment[name]}".encode(errors="surrogateescape") for name in names)


def marks_at(pid: int) -> frozenset[bytes]:
    """As `marks_of`, of a process that is there."""
    prefixes = tuple(f"{name}=".encode() for name in (env.EXECUTOR, env.TOKEN_FILE))
    found = frozenset(variable for variable in _environ(pid) if variable.startswith(prefixes))
    return found if len(found) == len(prefixes) else frozenset()


def now_ticks() -> int:
    """The clock that tells when processes are born."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK")) if _is_linux() else 0


def end_leftovers(lineage: Lineage) -> int:
    """Ends them and sees them dead; how many there were. Takes no time if there are none; not on the event loop."""
    ended: set[tuple[int, int]] = set()
    for look in range(_LOOKS):
        found = list(_processes(lineage))
        _reap(found, lineage)
        left = [one for one in found if belongs(one, lineage)]
        if not left:
            break
        for one in left:
            if look >= _PATIENT_LOOKS or not _is_tidy(one.pid):
                _kill(one)
                ended.add((one.pid, one.born))
        time.sleep(_PAUSE_S)
    return len(ended)


def end_own_leftovers() -> int:
    """What this process has started: it is about to end. Its own helpers end by themselves when it has."""
    if not _is_linux():
        return 0
    pid = os.getpid()
    own = Lineage(leader=pid, marks=marks_at(pid), died=None, leads=os.getsid(0) == pid, since=born(pid))
    left = [one for one in _processes(own) if belongs(one, own) and not _is_tidy(one.pid)]
    for one in left:
        _kill(one)
    return len(left)


def _reap(processes: Iterable[Process], lineage: Lineage) -> None:
    """Orphans of its session that have ended, and that are this process's children by now (`backends.warm`). Of no
    session if it led none: the rest of a container is in session 0."""
    if not lineage.leads:
        return
    for one in processes:
        if one.state == "Z" and one.session == lineage.leader != one.pid and one.parent == os.getpid():
            with contextlib.suppress(OSError):
                os.waitpid(one.pid, os.WNOHANG)


def _kill(process: Process) -> None:
    """It and no other: the number may be somebody else's by now."""
    with contextlib.suppress(OSError):
        handle = os.pidfd_open(process.pid)
        try:
            found = _look_at(process.pid)
            if found is not None and found.born == process.born:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)


def _processes(lineage: Lineage) -> Iterator[Process]:
    """Of this user; the environment only of those about whom it is asked. To read it takes a lock of the process, for
    which one may have to wait, and somebody waits for the device."""
    if not _is_linux():
        return
    user = os.geteuid()
    for entry in os.scandir(_PROC):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if entry.stat().st_uid == user and (found := _look_at(int(entry.name))) is not None:
                    yield _with_environ(found) if lineage.marks and found.born >= lineage.since else found


def _with_environ(process: Process) -> Process:
    return Process(
        pid=process.pid,
        born=process.born,
        state=process.state,
        session=process.session,
        parent=process.parent,
        environ=_environ(process.pid),
    )


def _look_at(pid: int) -> Process | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        # The name before the last bracket may contain anything.
        fields = (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        return Process(pid=pid, born=int(fields[19]), state=fields[0], session=int(fields[3]), parent=int(fields[1]))
    return None


def _environ(pid: int) -> frozenset[bytes]:
    with contextlib.suppress(OSError):
        return frozenset((_PROC / str(pid) / "environ").read_bytes().split(b"\0"))
    return frozenset()


def _is_tidy(pid: int) -> bool:
    with contextlib.suppress(OSError):
        command = (_PROC / str(pid) / "cmdline").read_bytes()
        return any(name in command for name in _TIDY)
    return False

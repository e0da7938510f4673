"""What the system says of a process of this machine: whether it lives, since when, as whom; and its priority.

A process is known by its number and its time of birth: numbers are used again. Reads /proc, so Linux only; elsewhere
nothing is known of anybody.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path

from isoscale import env

__all__ = [
    "born",
    "can_lower_priority",
    "how_ended",
    "is_executor",
    "is_stopped",
    "leads_session",
    "lives",
    "lower_session",
    "pin",
    "restore_priority",
    "restore_session",
]

#: between attempts to raise a session's share
_RETRY_S = 0.03


def born(pid: int) -> int:
    """When a process was born, in clock ticks since the system was; 0 if none runs. Tells it from a successor."""
    fields = _stat(pid)
    return int(fields[19]) if fields and fields[0] not in ("Z", "X") else 0


def is_executor(pid: int, executor: int) -> bool:
    """Whether the process was started as this executor. A number that somebody sends could be any process's."""
    if not sys.platform.startswith("linux"):
        return True
    with contextlib.suppress(OSError):
        return f"{env.EXECUTOR}={executor}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return False


def is_stopped(pid: int) -> bool:
    """Stopped by a signal: it will not say so itself."""
    fields = _stat(pid)
    return bool(fields) and fields[0] in ("T", "t")


def lives(pid: int, birth: int) -> bool:
    """Whether the process born then still runs; one that ended and that nobody has asked about does not.

    Who cannot look (no descriptor is left, say) takes a process of that number for it: its device is given to nobody.
    """
    if not birth:
        return False
    try:
        fields = _read_stat(pid)
    except OSError:
        return _is_there(pid)
    return bool(fields) and fields[0] not in ("Z", "X") and int(fields[19]) == birth


def leads_session(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return os.getsid(pid) == pid
    return False


def how_ended(code: int) -> str:
    """Of an exit code, or minus the number of a signal.

    >>> how_ended(3), how_ended(-9)
    ('exit code 3', 'killed by SIGKILL')
    """
    return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"


def lower_session(nice: int, pid: int | None = None) -> None:
    """Have a session of processes of its own, which this process or `pid` leads, get less of the machine.

    Linux shares the machine out among sessions first (`sched_autogroup`): a process's own priority then says only what
    it gets of its session's share, and executors have sessions of their own. Anybody may raise it again, up to 0.
    """
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid or 'self'}/autogroup").write_text(str(nice))


def restore_priority() -> None:
    """A newcomer is about to join: it is as good as the others from now on."""
    for thread in Path("/proc/self/task").iterdir() if Path("/proc/self/task").is_dir() else ():
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, int(thread.name), 0)
    restore_session()


def restore_session() -> None:
    """What `lower_session` did to the session of this process is undone."""
    if not _restore_session():
        threading.Thread(target=_keep_restoring, name="priority", daemon=True).start()


def _restore_session() -> bool:
    """False: not yet. In a tenth of a second one process of the whole machine may, unless it is privileged."""
    share = Path("/proc/self/autogroup")
    try:
        nice = share.read_text().split()[-1:]
        if nice and int(nice[0]) > 0:
            share.write_text("0")
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def _keep_restoring() -> None:
    while not _restore_session():
        time.sleep(_RETRY_S)


def can_lower_priority() -> bool:
    """Whether a process that lowers its priority may raise it again."""
    return os.geteuid() == 0 or resource.getrlimit(resource.RLIMIT_NICE)[0] >= 20


def _stat(pid: int) -> list[str]:
    """/proc/PID/stat from the state on; the name before it may contain anything."""
    with contextlib.suppress(OSError):
        return _read_stat(pid)
    return []


def _read_stat(pid: int) -> list[str]:
    """Empty if there is no such process. Raises OSError if nobody can tell."""
    if not sys.platform.startswith("linux"):
        return []
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _is_there(pid: int) -> bool:
    """Some process has this number. Takes no descriptor."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        pass
    return True


def pin(pid: int, cores: tuple[int, ...]) -> bool:
    """Have all that the process does run on these cores; False if there are none such. One that is gone needs none."""
    try:
        for task in os.listdir(f"/proc/{pid}/task"):  # threads that it starts later do as the one that starts them
            os.sched_setaffinity(int(task), cores)
    except (ProcessLookupError, FileNotFoundError):
        pass
    except OSError:
        return False
    return True

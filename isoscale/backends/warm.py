"""Warm parents as their owner sees them: one for each environment that matters at import, started, asked, replaced.

Forking a process that has imported torch takes milliseconds, importing torch seconds. The owner becomes a subreaper: an
orphan among its descendants becomes its child. So a process that a warm parent forks twice is the owner's child, whose
end it learns from the system as if it had started it itself, whether or not the warm parent still lives; and when the
owner dies, the process goes on as any orphan does. The warm parent itself is a program of its own, started afresh: it
inherits no lock and no socket but its own, and ends when its owner does. Linux only.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, Protocol

from isoscale.backends.seam import Launch
from isoscale.backends.system import can_lower_priority, lower_session
from isoscale.backends.warm_parent import NUMBER, PARENT, PROCESS, PROGRAM, READY

__all__ = [
    "NEWCOMER_NICE",
    "Lender",
    "UnavailableError",
    "WarmParent",
    "WarmParents",
    "become_reaper",
    "read_at_import",
]

#: of a process that prepares to join, beside others that train
NEWCOMER_NICE = 5
#: how long imports may take, and a fork afterwards
_IMPORT_S, _FORK_S = 120.0, 10.0
#: warm parents that may fail one after the other before nobody is forked any more
_MAX_FAILURES = 3
_PR_SET_CHILD_SUBREAPER = 36

#: what Python, the C library, torch, NumPy and the libraries below them look at when they are loaded
_AT_IMPORT = (
    *("PYTHON", "LD_", "MALLOC_", "GLIBC_", "OMP_", "GOMP_", "KMP_", "MKL_", "ATEN_", "ONEDNN_", "DNNL_", "OPENBLAS_"),
    *("GOTO_", "BLIS_", "NPY_", "NUMEXPR_", "FBGEMM_", "TORCH", "PYTORCH_", "TRITON_", "CUDA_", "CUBLAS_", "CUDNN_"),
    *("NVIDIA_", "HIP_", "ROCR_", "LC_", "LANG", "TZ", "TMPDIR", "TEMP", "TMP", "OPENSSL_", "SSL_"),
)


class UnavailableError(Exception):
    """There is no process: start it in another way."""


def read_at_import(environment: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    """The part of an environment that decides what a process is once it has imported torch.

    >>> sorted(read_at_import({"OMP_NUM_THREADS": "1", "ISOSCALE_EXECUTOR": "3", "PYTHONHASHSEED": "0"}))
    [('OMP_NUM_THREADS', '1'), ('PYTHONHASHSEED', '0')]
    """
    return frozenset((name, value) for name, value in environment.items() if name.startswith(_AT_IMPORT))


class WarmParents:
    """Of one owner, who runs one event loop."""

    def __init__(self, prepare: str, log: Path, lender: Lender | None = None, *, most: int = 4) -> None:
        """`prepare`: "module:function", what a warm parent does before it forks anybody. `lender`: asked first.

        `most`: how many there may be at once.
        """
        self._prepare = prepare
        self._most = most
        self._lender = lender
        self._log = log
        self._by_environment: dict[frozenset[tuple[str, str]], WarmParent] = {}
        self._failures = 0

    def __len__(self) -> int:
        return len(self._by_environment)

    def inherit(self, control: int, pid: int) -> None:
        """One that this process has been given: an open socket, and a child of its own."""
        become_reaper()
        with contextlib.suppress(OSError):
            began_with = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="surrogateescape").split("\0")
            environment = dict(variable.split("=", 1) for variable in began_with if "=" in variable)
            parent = WarmParent(socket.socket(fileno=control))
            self._by_environment[read_at_import(environment)] = parent

    def begun(self, environment: Mapping[str, str], *, newcomer: bool = False) -> WarmParent:
        """The one for this environment, which may still be importing. Raises UnavailableError."""
        key = read_at_import(environment)
        parent = self._by_environment.get(key)
        if parent is not None and not parent.is_dead:
            return parent
        if parent is not None:
            parent.close()
            del self._by_environment[key]
        if self._lender is not None:
            with contextlib.suppress(UnavailableError):
                self._by_environment[key] = self._lender.borrow(environment)
                return self._by_environment[key]
        if self._failures >= _MAX_FAILURES or len(self._by_environment) >= self._most or not become_reaper():
            raise UnavailableError
        try:
            parent = WarmParent.begin(environment, self._prepare, self._log, newcomer=newcomer)
        except OSError as error:
            raise UnavailableError from error
        self._by_environment[key] = parent
        return parent

    async def fork(self, launch: Launch, log: BinaryIO) -> int:
        """The number of a process that is about to run it. Raises UnavailableError."""
        parent = self.begun(launch.environment, newcomer=launch.newcomer)
        try:
            pid = await parent.fork(launch, log)
        except UnavailableError:
            if not parent.is_closed:  # several may have waited for it
                self._failures += 1
                parent.close()
            raise
        self._failures = 0
        return pid

    def how_ended(self, pid: int) -> int | None:
        """Of one that is nobody's child here: its exit code, or minus the signal's number; None if nobody can tell."""
        return self._lender.how_ended(pid) if self._lender is not None else None

    def close(self) -> None:
        for parent in self._by_environment.values():
            parent.close()
        self._by_environment.clear()


class Lender(Protocol):
    """Somebody who has warm parents already (`backends.warm_sharing`)."""

    def borrow(self, environment: Mapping[str, str]) -> WarmParent:
        """Raises UnavailableError."""

    def how_ended(self, pid: int) -> int | None: ...


class WarmParent:
    def __init__(self, control: socket.socket, process: subprocess.Popen[bytes] | None = None) -> None:
        """`control`: the other end of its socket, by which it lives. `process`: if it was started here."""
        self._control = control
        self._control.setblocking(False)
        self._process = process
        self._has_imported = False

    @classmethod
    def begin(cls, environment: Mapping[str, str], prepare: str, log: Path, *, newcomer: bool = False) -> WarmParent:
        """Starts one; returns before it has imported anything. Raises OSError."""
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, PROGRAM, str(theirs.fileno()), prepare]
        own = {name: value for name, value in environment.items() if not name.startswith("ISOSCALE_")}
        with theirs, open(log if log.parent.is_dir() else os.devnull, "ab") as output:
            process = subprocess.Popen(
                ["nice", "-n", str(NEWCOMER_NICE), *command] if newcomer and can_lower_priority() else command,
                env=own,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                pass_fds=(theirs.fileno(),),
            )
        if newcomer:
            lower_session(NEWCOMER_NICE, process.pid)
        return cls(control, process)

    @property
    def pid(self) -> int | None:
        """If it was started here."""
        return self._process.pid if self._process is not None else None

    @property
    def is_dead(self) -> bool:
        if self._process is not None and self._process.poll() is not None:
            return True
        try:
            return self._control.recv(1, socket.MSG_PEEK) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    @property
    def is_closed(self) -> bool:
        return self._control.fileno() < 0

    @property
    def is_ready(self) -> bool:
        """It has imported everything, so that a fork takes no time. Until then requests wait in its socket."""
        if not self._has_imported:
            with contextlib.suppress(OSError):
                self._has_imported = self._control.recv(1) == READY
        return self._has_imported

    async def fork(self, launch: Launch, log: BinaryIO) -> int:
        """The process waits for what this tells it. Raises UnavailableError; then nothing runs."""
        mine, theirs = socket.socketpair()
        mine.setblocking(False)
        directory = os.open(launch.cwd or ".", os.O_PATH)
        with mine:
            try:
                with theirs:
                    socket.send_fds(self._control, [PROCESS], [theirs.fileno(), directory, log.fileno()])
                # If the warm parent dies the connection ends; if it hangs, it does not.
                async with asyncio.timeout(_FORK_S if self.is_ready else _IMPORT_S):
                    pid = int(NUMBER.unpack(await _receive(mine, NUMBER.size))[0])
                    wanted = json.dumps(_wanted(launch)).encode()
                    await asyncio.get_running_loop().sock_sendall(mine, NUMBER.pack(len(wanted)) + wanted)
            except (OSError, EOFError, TimeoutError) as error:
                raise UnavailableError from error
            finally:
                os.close(directory)
        return pid

    def lend(self, file: int) -> None:
        """Another one like it listens on this socket from now on. Raises UnavailableError."""
        try:
            socket.send_fds(self._control, [PARENT], [file])
        except OSError as error:
            raise UnavailableError from error

    def close(self) -> None:
        """It ends; processes that it has forked do not."""
        self._control.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def become_reaper() -> bool:
    """Orphans among the descendants of this process become its children from now on. False: the system has no such."""
    if not sys.platform.startswith("linux"):
        return False
    return bool(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def _wanted(launch: Launch) -> dict[str, object]:
    """What the process is to be, a child of this one in all that it would have inherited."""
    limits = {name: getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}
    umask = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("Umask:"))
    lowered = NEWCOMER_NICE if launch.newcomer and can_lower_priority() else 0
    return {
        "entry": launch.entry,
        "arguments": list(launch.arguments),
        "shown": list(launch.command),
        "environment": dict(launch.environment),
        "umask": int(umask.split()[1], 8),
        "limits": {str(number): resource.getrlimit(number) for number in limits.values()},
        "cores": list(launch.cores) or sorted(os.sched_getaffinity(0)),
        "nice": min(19, os.getpriority(os.PRIO_PROCESS, 0) + lowered),
        "session_nice": NEWCOMER_NICE if launch.newcomer else 0,
    }


async def _receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = await asyncio.get_running_loop().sock_recv(connection, size - len(data))
        if not piece:
            raise EOFError("no process came of it")
        data += piece
    return data

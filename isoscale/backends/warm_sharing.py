"""Warm parents that outlive a run: kept by one process of a user's (`isoscale warm`), lent to that user's runs.

A run connects to a socket in a directory that only its user can enter, shows the environment that it needs and what is
installed where it runs, and hands over one end of a socket: a warm parent that is forked for it listens there, and ends
with the other end. Both sides check that the other one is the same user. Processes that such a warm parent forks are
children of the keeper, which knows how they ended. Does not judge what is run: whoever may connect may start processes.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import selectors
import socket
import stat
import struct
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from isoscale import env
from isoscale.backends.warm import UnavailableError, WarmParent, WarmParents, become_reaper
from isoscale.errors import UserError

__all__ = ["Keeper", "Lender", "installed", "sharing_directory"]

_SOCKET = "socket"
#: how long the other side may take; both are on one machine, and neither waits for anything
_ANSWER_S = 2.0
_MAX_BYTES = 2**22
_SIZE = struct.Struct("!I")
_CREDENTIALS = struct.Struct("3i")
#: ends that nobody asked about are forgotten
_MAX_REMEMBERED = 10_000


def sharing_directory() -> Path:
    """Where the keeper of this user is, if there is one."""
    base = env.runtime_directory()
    return env.warm_directory() or (base / "isoscale-warm" if base else Path(tempfile.gettempdir()) / _of_user())


def installed() -> str:
    """A hash of what a warm parent has in memory: Python, isoscale, torch, NumPy, by their files' sizes and times."""
    total = hashlib.sha256(f"{sys.executable} {sys.version}".encode())
    package = Path(__file__).resolve().parents[1]
    versions = [spec.origin for name in ("torch", "numpy") if (spec := importlib.util.find_spec(name)) and spec.origin]
    for path in [*sorted(package.rglob("*.py")), *map(Path, versions)]:
        with contextlib.suppress(OSError):
            found = path.stat()
            total.update(f"{path} {found.st_size} {found.st_mtime_ns}\n".encode())
    return total.hexdigest()


class Lender:
    """The keeper, as a run sees it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def borrow(self, environment: Mapping[str, str]) -> WarmParent:
        """Raises UnavailableError: there is no keeper, or it has something else installed, or it refuses."""
        if any(not os.path.isabs(entry) for entry in env.python_path(environment)):
            raise UnavailableError  # it means another directory there
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        request = {"what": "parent", "environment": dict(environment), "installed": installed()}
        try:
            with theirs:
                if self._ask(request, theirs.fileno()).get("lent"):
                    return WarmParent(control)
        except (OSError, ValueError) as error:
            control.close()
            raise UnavailableError from error
        control.close()
        raise UnavailableError

    def how_ended(self, pid: int) -> int | None:
        """The exit code of a process that has ended, or minus the signal's number; None if the keeper is gone."""
        with contextlib.suppress(OSError, ValueError):
            code = self._ask({"what": "ended", "pid": pid}).get("code")
            return int(code) if code is not None else None
        return None

    def _ask(self, request: dict[str, Any], file: int | None = None) -> dict[str, Any]:
        _check_directory(self._directory)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_ANSWER_S)
            connection.connect(str(self._directory / _SOCKET))
            _check_peer(connection)
            _send(connection, request, file)
            return _receive(connection)[0]


class Keeper:
    """In a process of its own, which has no other children."""

    def __init__(self, directory: Path, parents: WarmParents) -> None:
        """Raises UserError if the directory is somebody else's, or another keeper's."""
        self._parents = parents
        self._installed = installed()
        self._codes: dict[int, int] = {}
        become_reaper()
        self._directory = directory
        try:
            directory.mkdir(mode=0o700, exist_ok=True)
            _check_directory(directory)
        except OSError as error:
            raise _unusable(directory, str(error)) from None
        address = directory / _SOCKET
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as other:
            other.connect(str(address))
            raise _unusable(directory, "another process keeps warm parents there")
        address.unlink(missing_ok=True)
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(address))
        address.chmod(0o600)
        self._server.listen(64)

    def prepare(self, environment: Mapping[str, str]) -> None:
        """Somebody will ask for one with this environment."""
        with contextlib.suppress(UnavailableError):
            self._parents.begun(environment)

    @property
    def num_parents(self) -> int:
        return len(self._parents)

    def serve(self, until: float | None, now: Callable[[], float]) -> None:
        """Until `now()` is `until`, for ever without one."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._server, selectors.EVENT_READ)
            while until is None or now() < until:
                if selector.select(1.0):
                    connection, _ = self._server.accept()
                    with connection, contextlib.suppress(OSError, ValueError, KeyError, TypeError, UnavailableError):
                        self._answer(connection)
                self._reap()

    def close(self) -> None:
        (self._directory / _SOCKET).unlink(missing_ok=True)
        self._server.close()
        self._parents.close()

    def _answer(self, connection: socket.socket) -> None:
        connection.settimeout(_ANSWER_S)
        _check_peer(connection)
        request, files = _receive(connection)
        try:
            if request["what"] == "ended":
                self._reap()
                _send(connection, {"code": self._codes.pop(int(request["pid"]), None)})
            elif request["what"] == "parent" and files:
                _send(connection, {"lent": self._lend(request, files[0])})
        finally:
            for file in files:
                os.close(file)

    def _lend(self, request: dict[str, Any], file: int) -> bool:
        current = installed()
        if current != self._installed:  # a warm parent has in memory what is no longer installed
            self._parents.close()
            self._installed = current
        if request["installed"] != current:
            return False
        self._parents.begun(request["environment"]).lend(file)
        return True

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                self._codes.pop(found[0], None)
                self._codes[found[0]] = os.waitstatus_to_exitcode(found[1])
                if len(self._codes) > _MAX_REMEMBERED:
                    del self._codes[next(iter(self._codes))]


def _of_user() -> str:
    return f"isoscale-warm-{os.geteuid()}"


def _unusable(directory: Path, problem: str) -> UserError:
    return UserError(field="directory", value=directory, problem=problem, remedy=f"set {env.WARM_DIRECTORY} to another")


def _check_directory(directory: Path) -> None:
    """Raises PermissionError: somebody else could have put a socket there."""
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionError(f"{directory} is not a directory that only its user can enter")


def _check_peer(connection: socket.socket) -> None:
    """Raises PermissionError: the other end is another user's."""
    packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    if _CREDENTIALS.unpack(packed)[1] != os.geteuid():
        raise PermissionError("the other end is another user's")


def _send(connection: socket.socket, message: dict[str, Any], file: int | None = None) -> None:
    data = json.dumps(message).encode()
    head = _SIZE.pack(len(data))
    socket.send_fds(connection, [head], [file] if file is not None else [])
    connection.sendall(data)


def _receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Raises OSError and ValueError."""
    head, files, _, _ = socket.recv_fds(connection, _SIZE.size, 1)
    try:
        size = _SIZE.unpack(head)[0] if len(head) == _SIZE.size else 0
        if not 0 < size <= _MAX_BYTES:
            raise ValueError(f"a message of {size} bytes")
        data = bytearray()
        while len(data) < size:
            if not (piece := connection.recv(min(2**16, size - len(data)))):
                raise ValueError("the other end has gone")
            data += piece
        message = json.loads(data)
        if not isinstance(message, dict):
            raise ValueError("not an object")
    except BaseException:
        for file in files:
            os.close(file)
        raise
    return message, files

"""Processes of a job that start warm: forked from one that has imported torch already.

Importing torch takes longer than a short job trains. With a nursery, coordinators and executors of `testing.start` are
children of one prepared process; everything else about them is as usual, a session of their own included. Only for
the kind `cpu` with one thread, whose libraries are set up by the time of the fork.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from isoscale import env
from isoscale.backends.local import ALLOCATOR, AdoptedProcess
from isoscale.kinds import executor_environment, profile_of
from isoscale.runtime.code import launch

__all__ = ["ForkedProcess", "Nursery"]

_READY_S = 120.0
_NEWCOMER_NICE = 5
#: instead of an exit code
_UNKNOWN = 1000


class Nursery:
    """The prepared process. Used as a context manager; at its end its children end, too."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="nursery-")
        self.address = str(Path(self._directory.name) / "socket")
        variables = {"PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "1"}
        environment = executor_environment({**ALLOCATOR, **env.child_environment(variables)}, profile_of("cpu"), 1)
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from isoscale.testing.nursery import serve; serve()", self.address],
            env=environment,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        deadline = time.monotonic() + _READY_S
        while not Path(self.address).exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the nursery did not start")
            time.sleep(0.01)

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self._children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        self._directory.cleanup()

    def _children(self) -> list[int]:
        pid = self._process.pid
        with contextlib.suppress(OSError):
            return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        return []

    def start_coordinator(
        self, arguments: Sequence[str], environment: Mapping[str, str], log: Path, cwd: Path
    ) -> ForkedProcess:
        """`isoscale ARGUMENTS`, whose executors are forked here, too."""
        code_file = log.with_name(f"{log.name}.code")
        code_file.unlink(missing_ok=True)
        pid = _ask(
            self.address,
            {
                "what": "coordinator",
                "arguments": list(arguments),
                "environment": dict(environment),
                "log": str(log.resolve()),
                "cwd": str(cwd.resolve()),
                "code_file": str(code_file.resolve()),
                "nursery": self.address,
                "nice": 0,
            },
        )
        return ForkedProcess(pid, code_file)

    def end_executors(self, token_file: Path) -> None:
        """Kill those that were forked for the run with this token; coordinators that were killed left them behind."""
        with contextlib.suppress(OSError, ValueError):
            _ask(self.address, {"what": "end", "token": str(token_file.resolve())})


class ForkedProcess:
    """What `subprocess.Popen` is for children, for somebody else's child."""

    def __init__(self, pid: int, code_file: Path) -> None:
        self.pid = pid
        self._code_file = code_file
        self._handle: int | None = None
        with contextlib.suppress(ProcessLookupError):
            self._handle = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """The exit code, -9 if it did not come to say one, None while it runs."""
        if self._handle is not None:
            if not select.select([self._handle], [], [], 0)[0]:
                return None
            os.close(self._handle)
            self._handle = None
        return int(self._code_file.read_text()) if self._code_file.exists() else -signal.SIGKILL

    def wait(self, timeout: float | None = None) -> int:
        if self._handle is not None and not select.select([self._handle], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("coordinator", timeout or 0.0)
        code = self.poll()
        assert code is not None
        return code

    def kill(self) -> None:
        if self._handle is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)


class _Forked(AdoptedProcess):
    """An executor whose parent is the nursery, and whose end is told as if it were a child of the coordinator."""

    def __init__(self, pid: int, log: Path, nursery: str) -> None:
        super().__init__(pid, log)
        self._nursery = nursery

    async def wait(self) -> str:
        reason = await super().wait()
        with contextlib.suppress(OSError, ValueError):
            code = _ask(self._nursery, {"what": "ended", "pid": self.pid})
            if code != _UNKNOWN:
                return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
        return reason


def _ask(address: str, request: dict[str, Any]) -> int:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        connection.sendall(json.dumps(request).encode())
        connection.shutdown(socket.SHUT_WR)
        return int(connection.makefile().read())


def serve() -> None:
    """In the prepared process: a child for every request, its pid for an answer; or how one has ended."""
    address = sys.argv[1]
    # The last one is imported by the first call of torch.use_deterministic_algorithms, and takes seconds.
    for module in ("isoscale.cli.app", "isoscale.runtime.executor.process", "numpy.random", "torch._inductor.config"):
        importlib.import_module(module)
    # What every executor does first, and what costs little a second time. One thread: a fork has no others.
    importlib.import_module("torch").set_num_threads(1)
    importlib.import_module("isoscale.core.numerics.fingerprint").kernel_digests()
    ended: dict[int, int] = {}
    #: by pid, of which run it is an executor
    tokens: dict[int, str] = {}
    signal.signal(signal.SIGCHLD, lambda *_: _reap(ended))
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{address}.new")
        server.listen()
        os.rename(f"{address}.new", address)
        while True:
            connection, _ = server.accept()
            # Whoever asks may be killed while it does.
            with connection, contextlib.suppress(OSError, ValueError):
                request = json.loads(connection.makefile().read())
                if request["what"] == "ended":
                    _reap(ended)
                    answer = ended.get(request["pid"], _UNKNOWN)
                elif request["what"] == "end":
                    answer = _end(request["token"], tokens, ended)
                else:
                    answer = _fork(request, [server, connection], ended)
                    tokens[answer] = request["environment"].get(env.TOKEN_FILE, "")
                connection.sendall(str(answer).encode())


def _fork(request: dict[str, Any], sockets: list[socket.socket], ended: dict[int, int]) -> int:
    """Does not return in the child."""
    # A number that is used again has not ended, and must not end in between.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    pid = os.fork()
    if pid == 0:
        for one in sockets:
            one.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        _become(request)
    ended.pop(pid, None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    return pid


def _end(token: str, tokens: dict[int, str], ended: dict[int, int]) -> int:
    """Kill the executors of a run; how many there were."""
    _reap(ended)
    found = [pid for pid, one in tokens.items() if one == token and pid not in ended]
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return len(found)


def _reap(ended: dict[int, int]) -> None:
    """Note how children have ended: an exit code, or minus the number of a signal."""
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ended[found[0]] = os.waitstatus_to_exitcode(found[1])


def _become(request: dict[str, Any]) -> None:
    """In the child: what a fresh interpreter would have been told by its parent."""
    os.setsid()
    if request["nice"]:
        os.nice(request["nice"])
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    faulthandler.register(signal.SIGUSR1)
    env.replace(request["environment"])
    os.chdir(request["cwd"])
    code = 1
    try:
        if request["what"] == "coordinator":
            # Whatever a shell that started all this in the background said about Ctrl-C.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            _be_coordinator(request)
        else:
            launch.main(request["arguments"])
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        if request.get("code_file"):
            Path(request["code_file"]).write_text(str(code))
        os._exit(code)


def _be_coordinator(request: dict[str, Any]) -> None:
    from isoscale.runtime.coordinator import processes

    async def fork_process(
        command: Sequence[str], environment: Mapping[str, str], log: Path, *, newcomer: bool = False
    ) -> AdoptedProcess:
        child = {
            "what": "executor",
            "arguments": list(command[2:]),  # after Python and the launcher
            "environment": dict(environment),
            "log": str(log.resolve()),
            "cwd": os.getcwd(),
            "nice": _NEWCOMER_NICE if newcomer else 0,
        }
        return _Forked(_ask(request["nursery"], child), log, request["nursery"])

    if not hasattr(processes, "start_process"):
        raise RuntimeError("nobody starts executors by this name any more: they would not be forked here")
    setattr(processes, "start_process", fork_process)  # noqa: B010 - not a name that the module exports
    sys.argv = ["isoscale", *request["arguments"]]
    importlib.import_module("isoscale.cli.app").app()

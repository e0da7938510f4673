"""Jobs that start warm: their coordinators are forked from a process that has imported everything already.

A coordinator of `testing.start` gets a warm parent of its own, forked beside it, from which its executors come. So a
short job costs no import of torch. Everything else about it is as usual, a session of its own included.
"""

from __future__ import annotations

import asyncio
import atexit
import importlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import typer

from isoscale import env
from isoscale.backends import warm_parent
from isoscale.backends.guise import show_as
from isoscale.backends.leftovers import Lineage, end_leftovers
from isoscale.backends.local import training_environment
from isoscale.backends.seam import Launch
from isoscale.backends.warm import WarmParent, become_reaper
from isoscale.kinds import profile_of
from isoscale.runtime.launch import warm_up

__all__ = ["ForkedChild", "Nursery", "be_coordinator", "prepare"]


class Nursery:
    """Used as a context manager; at its end coordinators and executors have ended, or are not its concern."""

    def __init__(self) -> None:
        environment = training_environment({}, profile_of("cpu"), 1)
        # Whoever a killed coordinator leaves behind becomes a child of this process, which must know how it ended.
        if not become_reaper():
            raise RuntimeError("the nursery did not start")
        self._parent = WarmParent.begin(environment, f"{__name__}:prepare", Path(os.devnull))

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, *_: object) -> None:
        self._parent.close()

    def start_coordinator(
        self, arguments: Sequence[str], environment: Mapping[str, str], log: Path, cwd: Path
    ) -> ForkedChild:
        """`isoscale ARGUMENTS`, whose executors are forked, too."""
        launch = Launch(
            command=("isoscale", *arguments),
            entry=f"{__name__}:be_coordinator",
            arguments=tuple(arguments),
            environment=environment,
            cwd=cwd,
            log=log,
        )
        with log.open("ab") as file:
            return ForkedChild(asyncio.run(self._parent.fork(launch, file)))

    def end_executors(self, token_file: Path) -> None:
        """Kill those of the run with this token; coordinators that were killed left them behind."""
        mark = f"{env.TOKEN_FILE}={token_file.resolve()}".encode()
        end_leftovers(Lineage(leader=0, marks=frozenset({mark}), died=None, leads=False))


class ForkedChild:
    """A child of this process, or one that became it, as `subprocess.Popen` shows those that it starts."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None
        self._handle = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """The exit code, or minus the signal's number; None while it runs."""
        if self._code is None and select.select([self._handle], [], [], 0)[0]:
            os.close(self._handle)
            try:
                self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            except ChildProcessError:  # it became somebody else's
                self._code = -signal.SIGKILL
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        if self._code is None and not select.select([self._handle], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        code = self.poll()
        assert code is not None
        return code

    def kill(self) -> None:
        if self.poll() is None:
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)


#: the environment in which the process began that has imported everything: what it read of it then stays with its forks
_began_with: dict[str, str] = {}


def prepare() -> None:
    """In the process from which coordinators are forked."""
    _began_with.update(env.child_environment({}))
    warm_up()
    # Reading a command line imports as much again.
    commands = importlib.import_module("isoscale.cli.app").command_line(["run"])
    typer.main.get_command(commands).make_context("isoscale", ["run"])


def be_coordinator(arguments: list[str]) -> None:
    """In a forked process."""
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # Before this process has a lock, a socket or a thread: what it forks has none of them.
    pid = os.fork()
    if pid == 0:
        control.close()
        os.setsid()
        # Its coordinator tells by what the system shows of it whom it can fork (`WarmParents.inherit`).
        show_as(["isoscale", "warm parent"], _began_with)
        warm_parent.main(theirs, "gc:collect")
        os._exit(0)
    theirs.close()
    control.recv(1, socket.MSG_PEEK)  # it is ready, and shows what it is
    env.set_variable(env.WARM, f"{control.detach()},{pid}")
    sys.argv = ["isoscale", *arguments]
    code: object = 0
    try:
        importlib.import_module("isoscale.cli.app").app()
    except SystemExit as end:
        code = end.code
    _end(code)


def _end(code: object) -> NoReturn:
    """As Python ends, but for taking down what the fork has of torch: that would copy it, for a third of a second."""
    if isinstance(code, str):
        print(code, file=sys.stderr)
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.current_thread():
            thread.join()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))

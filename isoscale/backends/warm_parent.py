"""The warm parent: a process that has imported torch, and from which executors are forked in milliseconds.

    python .../warm_parent.py FD PREPARE

FD is a socket, PREPARE the "module:function" to call before the first fork. A message on the socket brings three
files: a connection to whoever wants a process, its working directory and its log. A process is forked twice, so that
its parent is not this one: it outlives the warm parent, and whoever owns the warm parent becomes its parent
(`backends.warm`). It says its number on the connection and waits there to be told what to run. A message with one
file, a socket, makes another warm parent, which listens there. The warm parent itself runs nothing, knows no job, and
ends when its socket does.

Started by its path and not by `-m`: nothing of the working directory is on the import path.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]  # the directory of this file: its names are not for scripts

import contextlib
import gc
import importlib
import json
import os
import resource
import signal
import socket
import struct
import time
from pathlib import Path
from typing import Any

__all__ = ["NUMBER", "PARENT", "PROCESS", "PROGRAM", "READY", "main"]

#: this file
PROGRAM = os.path.abspath(__file__)
#: of a process id, and of the length of what follows it
NUMBER = struct.Struct("!Q")
#: messages, and how many files each brings
PROCESS, PARENT = b"F", b"P"
_NUM_FILES = {PROCESS: 3, PARENT: 1}
#: said once; whoever has more than one thread must not fork, and says nothing
READY = b"R"


def main(control: socket.socket, prepare: str) -> None:
    """In a process that has nothing else to do. In a forked one it runs what it was told to, and does not return."""
    gc.disable()  # all that imports make stays: to look for garbage among it would take a quarter of their time
    _function(prepare)()
    gc.freeze()  # a collection in a fork would touch, and so copy, what it shares with this process
    gc.enable()
    if len(os.listdir("/proc/self/task")) > 1:
        sys.exit("the warm parent has more than one thread after its imports: it cannot fork")
    control.send(READY)
    while True:
        try:
            data, files, _, _ = socket.recv_fds(control, 1, max(_NUM_FILES.values()))
        except OSError:
            return
        if not data:
            return
        if len(files) == _NUM_FILES.get(data) and _fork_twice():
            control.close()
            if data == PROCESS:
                _become(*files)
            control = socket.socket(fileno=files.pop())
            os.setsid()
            control.send(READY)
        for file in files:
            os.close(file)


def _fork_twice() -> bool:
    """True in the new process."""
    try:
        first = os.fork()
    except OSError:
        return False  # the connection ends without a number
    if first:
        os.waitpid(first, 0)
        return False
    between = os.getpid()
    try:
        if os.fork():
            os._exit(0)
    except OSError:
        os._exit(1)
    while os.getppid() == between:  # some processes end with their parent, and look at once who that is
        time.sleep(0.0005)
    return True


def _become(connection: int, directory: int, log: int) -> None:
    """Everything is as a fresh interpreter would have it, but for the modules that are imported already."""
    data = b""
    with socket.socket(fileno=connection) as asked, contextlib.suppress(ConnectionError):
        asked.sendall(NUMBER.pack(os.getpid()))
        size = _read(asked, NUMBER.size)
        data = _read(asked, NUMBER.unpack(size)[0]) if size else b""
    if not data:
        # Whoever asked has gone, or has given up: nobody knows this process.
        os._exit(0)
    wanted: dict[str, Any] = json.loads(data)
    os.setsid()
    os.fchdir(directory)
    for number in (1, 2):
        os.dup2(log, number)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            with contextlib.suppress(OSError):  # that of the listing itself is closed already
                os.close(int(name))
    _reset_signals()
    _inherit(wanted)
    _function(wanted["entry"])(wanted["arguments"])


def _read(connection: socket.socket, size: int) -> bytes:
    """All of it, or nothing if the other end has gone."""
    data = b""
    with contextlib.suppress(OSError):
        while len(data) < size:
            if not (piece := connection.recv(min(size - len(data), 2**20))):
                return b""
            data += piece
    return data if len(data) == size else b""


def _reset_signals() -> None:
    """As at the start of Python: the owner may have been started by somebody who ignores Ctrl-C."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ}:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())


def _inherit(wanted: dict[str, Any]) -> None:
    """What a child has from its parent, had the owner started it; and nothing that two of them would share."""
    from isoscale import env
    from isoscale.backends.guise import show_as
    from isoscale.backends.system import lower_session

    os.umask(wanted["umask"])
    for number, limits in wanted["limits"].items():
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(int(number), tuple(limits))
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, wanted["cores"])
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, wanted["nice"])
    if wanted["session_nice"]:
        lower_session(wanted["session_nice"])
    env.replace(wanted["environment"])
    show_as(wanted["shown"], wanted["environment"])
    importlib.invalidate_caches()
    # Two processes draw different numbers until they are seeded. Python's own stream sees to it itself.
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()
    if "multiprocessing.process" in sys.modules:
        sys.modules["multiprocessing.process"].current_process().authkey = os.urandom(32)


def _function(name: str) -> Any:
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


if __name__ == "__main__":
    try:
        import isoscale.env
    except ModuleNotFoundError:
        # Only the working directory has it; it is found through its package now.
        sys.path.append(str(Path(PROGRAM).parents[2]))
        import isoscale.env  # noqa: F401

        sys.path.pop()
    main(socket.socket(fileno=int(sys.argv[1])), sys.argv[2])
    # To take down what torch has set up would touch, and in a fork so copy, most of it: a third of a second.
    os._exit(0)

"""Ends an executor whose Ray actor is gone, however that went: started by the actor, and nobody's child.

    python ray_guard.py < PIPE

The pipe's other end is the actor's. The first line says whom to guard: process, birth, what marks its children, and the
directory of what it was given; or null: nobody. A second line lets it go; an end without one means that the actor died,
and takes the process and its children with it, and that directory, in which the run's token may be.
Ray ends the children of an actor only sometimes (not after kill -9), and the executor is not one: it was forked by the
warm parent of its node.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]  # the directory of this file: its names are not for others

import contextlib
import json
import os
import shutil
import signal
from pathlib import Path
from typing import IO

__all__ = ["PROGRAM", "guard"]

#: this file
PROGRAM = os.path.abspath(__file__)


def guard(told: IO[str]) -> None:
    """Returns when there is nobody left to guard."""
    line = told.readline()
    if not line:
        return
    whom = json.loads(line)
    if whom is None or told.readline():
        return
    from isoscale.backends.leftovers import Lineage, end_leftovers, now_ticks
    from isoscale.backends.system import lives

    if lives(whom["pid"], whom["born"]):
        for kill in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(whom["pid"], signal.SIGKILL)
    marks = frozenset(mark.encode(errors="surrogateescape") for mark in whom["marks"])
    end_leftovers(Lineage(leader=whom["pid"], marks=marks, died=now_ticks()))
    if whom["given"]:
        shutil.rmtree(whom["given"], ignore_errors=True)


if __name__ == "__main__":
    if os.fork():
        os._exit(0)
    sys.path.append(str(Path(PROGRAM).parents[2]))
    guard(sys.stdin)

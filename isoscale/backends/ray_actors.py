"""What runs on a Ray cluster's nodes: an actor for each executor, and one that keeps warm parents for them.

An executor's actor takes the resources, starts the process through the local backend of its node, and tells how it
ended. The process is forked from a warm parent that the node's warm actor keeps (`backends.warm_sharing`); without one
it is started afresh. An actor that dies takes its process with it (`backends.ray_guard`); one whose process has ended,
or that never got one, ends by itself. Plain classes: `backends.ray` makes actors of them, nothing here is imported
before Ray runs them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from isoscale.backends.delivery import Delivery
from isoscale.backends.leftovers import marks_of
from isoscale.backends.local import LocalBackend
from isoscale.backends.local_process import LocalProcess
from isoscale.backends.ray_guard import PROGRAM
from isoscale.backends.seam import Device, Identity, Launch
from isoscale.backends.warm import UnavailableError, WarmParents
from isoscale.backends.warm_sharing import Keeper, Lender

__all__ = ["IDLE_S", "Conditions", "ExecutorActor", "WarmActor"]

#: an actor without a process, or whose process has ended and about whom nobody asks, ends after so long
IDLE_S, _LINGER_S = 120.0, 1.0
#: how long it waits for room on its node; whoever asks gives up before that
_ROOM_S = 600.0
#: how long it waits for the warm actor of its node
_MEET_S = 30.0
#: a warm actor that nobody has used for so long ends, and its memory is free
_UNUSED_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What a child inherits from its parent, of the process that asks for an executor; Ray's own workers differ."""

    umask: int
    nice: int
    limits: dict[int, tuple[int, int]]
    #: signals; Ray's workers block Ctrl-C now and then
    blocked: tuple[int, ...]

    @classmethod
    def here(cls) -> Conditions:
        names = [name for name in dir(resource) if name.startswith("RLIMIT_")]
        line = next(one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith("Umask:"))
        return cls(
            umask=int(line.split()[1], 8),
            nice=os.getpriority(os.PRIO_PROCESS, 0),
            limits={getattr(resource, name): resource.getrlimit(getattr(resource, name)) for name in names},
            blocked=tuple(sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ())))),
        )

    def take_on(self) -> None:
        """In the thread from which processes are started. What this user may not do is left as it is."""
        os.umask(self.umask)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.blocked)
        for number, limits in self.limits.items():
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(number, limits)
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, self.nice)


class ExecutorActor:
    """One executor. All methods run on the actor's event loop."""

    def __init__(self) -> None:
        self._process: LocalProcess | None = None
        self._room: asyncio.Future[None] | None = None
        self._delivery = Delivery()
        self._swept = asyncio.Event()
        # Before it is needed: it takes as long as a fork takes in all.
        self._guard = subprocess.Popen(
            [sys.executable, "-P", PROGRAM], stdin=subprocess.PIPE, start_new_session=True, text=True
        )
        self._unused = asyncio.ensure_future(self._end_if_unused())

    async def stay(self) -> None:
        """Somebody may still need it."""
        if not self._unused.cancelled():
            self._unused.cancel()
            self._unused = asyncio.ensure_future(self._end_if_unused())

    async def take_room(self, node: str, room: dict[str, float]) -> None:
        """Of an actor that was made without anything: what it takes of its node from now on. The start waits for it."""
        self._room = asyncio.ensure_future(asyncio.to_thread(_take_room, node, room))

    async def start(
        self,
        launch: Launch,
        device: Device,
        conditions: Conditions,
        *,
        cwd_is_mine: bool,
        name: str,
        warm: str = "",
        met: Sequence[Any] = (),
    ) -> Identity:
        """`cwd_is_mine`: the process works where Ray has put this actor. Raises StartError.

        `warm`: the directory in which the node's warm actor can be met; "": the process is started afresh.

        `met`: a call that is answered when the warm actor is there. On a node that has just come both begin together:
        a process that did not wait would import all that the warm parent imports, beside it.
        """
        self._unused.cancel()
        try:
            conditions.take_on()
            if self._room is not None:
                await self._room
            for call in met:
                with contextlib.suppress(Exception):  # whatever became of it: the process is started afresh
                    async with asyncio.timeout(_MEET_S):
                        await call
            if cwd_is_mine:
                launch = replace(launch, cwd=Path.cwd())
            launch = self._delivery.deliver(launch)
            if visible := _visible_devices():
                launch = replace(launch, environment={**launch.environment, **visible})
            parents = WarmParents("", Path(os.devnull), Lender(Path(warm)), most=0) if warm else None
            self._process = await LocalBackend(warm=parents).start(launch, device)
        except BaseException:
            self._delivery.close()
            self._unused = asyncio.ensure_future(self._end_if_unused())
            raise
        identity = replace(self._process.identity, name=name)
        marks = [mark.decode(errors="surrogateescape") for mark in marks_of(launch.environment)]
        given = self._delivery.place
        self._tell_guard({"pid": identity.pid, "born": identity.born, "marks": marks, "given": given})
        self._watched = asyncio.ensure_future(self._watch(self._process))
        self._identity = identity
        return identity

    async def pid(self) -> int:
        """Of this actor itself, for whoever looks for it in the process table."""
        return os.getpid()

    async def lives(self) -> Identity | None:
        """Who runs here, if anybody does."""
        from isoscale.backends.system import lives

        if self._process is None or not lives(self._process.pid, self._process.identity.born):
            return None
        return self._identity

    async def wait(self) -> tuple[str, str]:
        """How the process ended, and the last lines of its output."""
        assert self._process is not None
        return await self._process.wait(), self._process.tail()

    async def signal(self, number: int) -> None:
        if self._process is not None:
            self._process.signal(number)

    async def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    async def is_stopped(self) -> bool:
        return self._process is not None and self._process.is_stopped()

    async def swept(self) -> None:
        """Returns when all that the process has started is gone, too."""
        await self._swept.wait()

    async def _watch(self, process: LocalProcess) -> None:
        await process.wait()
        await process.sweep()
        self._delivery.close()
        self._tell_guard(None)
        self._swept.set()
        await asyncio.sleep(_LINGER_S)
        self._leave()

    async def _end_if_unused(self) -> None:
        await asyncio.sleep(IDLE_S)
        self._leave()

    def _tell_guard(self, what: Any) -> None:
        pipe = self._guard.stdin
        assert pipe is not None
        with contextlib.suppress(OSError):
            pipe.write(json.dumps(what) + "\n")
            pipe.flush()

    def _leave(self) -> None:
        """An actor can end only in a call."""
        import ray

        ray.get_runtime_context().current_actor.leave.remote()

    async def leave(self) -> None:
        import ray

        self._tell_guard(None)
        ray.actor.exit_actor()


class WarmActor:
    """Keeps a warm parent for one environment on one node, for all executors there and whoever started them."""

    def __init__(self, directory: str, prepare: str) -> None:
        """`prepare`: "module:function", what a warm parent does before it forks anybody."""
        self._directory = Path(directory)
        self._keeper = Keeper(self._directory, WarmParents(prepare, Path(os.devnull)))
        self._used = time.monotonic()
        threading.Thread(target=self._serve, daemon=True).start()

    def prepare(self, environment: dict[str, str]) -> None:
        """In a call, since Ray keeps what an actor is made with. By the socket, which one thread serves."""
        self._used = time.monotonic()
        with contextlib.suppress(UnavailableError):
            Lender(self._directory).borrow(environment).close()

    def _serve(self) -> None:
        while time.monotonic() - self._used < _UNUSED_S:
            self._keeper.serve(time.monotonic() + 5.0, time.monotonic)
            if len(_children()) > self._keeper.num_parents:
                self._used = time.monotonic()
        self._keeper.close()
        with contextlib.suppress(OSError):
            self._directory.rmdir()
        import ray

        ray.get_runtime_context().current_actor.leave.remote()

    def leave(self) -> None:
        import ray

        ray.actor.exit_actor()


def _children() -> list[str]:
    """Of this process, in whichever thread they were started or taken over."""
    found: list[str] = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            found += (task / "children").read_text().split()
    return found


def _take_room(node: str, room: dict[str, float]) -> None:
    """Returns when this actor has it. Ray takes it back when the actor dies, since it is the one who has asked."""
    from ray.util.placement_group import placement_group

    if not placement_group([room], bundle_label_selector=[{"ray.io/node-id": node}]).wait(_ROOM_S):
        raise TimeoutError(f"no room on the node in {_ROOM_S:.0f} s")


def _visible_devices() -> dict[str, str]:
    """Which GPUs Ray has given to this actor. Untested: no machine with a GPU has run it yet."""
    import ray

    given = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
    return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, given))} if given else {}

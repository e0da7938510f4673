"""One executor's process on a Ray cluster, as its coordinator sees it: through the actor that has started it."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import ray
import ray.exceptions

from isoscale.backends.local_process import tail_of
from isoscale.backends.seam import Identity

__all__ = ["RayProcess", "answer"]

#: how long an actor may take to do what takes no time
_ANSWER_S = 10.0
#: how long one that was killed may take to be gone, before its actor is ended, and after that
_DEATH_S, _SILENCE_S = 10.0, 10.0
#: how long what an executor left behind may take to end
_SWEEP_S = 30.0


async def answer(reference: Any) -> Any:
    """Of a call; raises what it raised."""
    return await asyncio.wrap_future(reference.future())


class RayProcess:
    def __init__(self, identity: Identity, actor: Any, log: Path) -> None:
        self.identity = identity
        self._actor = actor
        self._log = log
        self._last = ""
        self._stopped = False
        #: calls that have not been answered
        self._asks = False
        self._tasks: set[asyncio.Task[None]] = set()
        #: how it ended
        self._end: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._later(self._watch())

    @property
    def has_ended(self) -> bool:
        return self._end.done()

    async def wait(self) -> str:
        return await asyncio.shield(self._end)

    async def _watch(self) -> None:
        while not self._end.done():
            try:
                reason, self._last = await answer(self._actor.wait.remote())
                self._ended(str(reason))
            except ray.exceptions.ActorUnavailableError:
                await asyncio.sleep(1.0)  # the network may come back; our own heartbeat judges meanwhile
            except ray.exceptions.RayError as error:
                self._ended(f"ended with its Ray actor: {_why(error)}")

    def _ended(self, reason: str) -> None:
        if not self._end.done():
            self._end.set_result(reason)

    def is_stopped(self) -> bool:
        """As of the last time that somebody asked: the answer takes a moment."""
        if not self._asks and not self._end.done():
            self._asks = True
            self._later(self._ask_stopped())
        return self._stopped

    async def _ask_stopped(self) -> None:
        try:
            with contextlib.suppress(ray.exceptions.RayError, TimeoutError):
                async with asyncio.timeout(_ANSWER_S):
                    self._stopped = bool(await answer(self._actor.is_stopped.remote()))
        finally:
            self._asks = False

    def signal(self, number: int) -> None:
        if not self._end.done():
            self._actor.signal.remote(number)

    def kill(self) -> None:
        if not self._end.done():
            self._actor.kill.remote()
            self._later(self._make_sure())

    async def _make_sure(self) -> None:
        """An actor that does not do as it is told is ended, and takes its process with it.

        If nothing is heard of that either its node is gone, which Ray may not say for a minute: nobody waits for it.
        """
        if not (await asyncio.wait({self._end}, timeout=_DEATH_S))[0]:
            with contextlib.suppress(ray.exceptions.RayError, ValueError):
                ray.kill(self._actor, no_restart=True)
            await asyncio.wait({self._end}, timeout=_SILENCE_S)
            self._ended("ended: its Ray node does not answer")

    async def sweep(self) -> None:
        with contextlib.suppress(ray.exceptions.RayError, TimeoutError):
            async with asyncio.timeout(_SILENCE_S if self._end.result().startswith("ended") else _SWEEP_S):
                await answer(self._actor.swept.remote())
        # What it takes of its node is free at once.
        with contextlib.suppress(ray.exceptions.RayError, ValueError):
            ray.kill(self._actor, no_restart=True)

    async def end(self) -> None:
        self.kill()
        await self.wait()
        await self.sweep()

    def tail(self) -> str:
        return tail_of(self._log) or self._last

    def _later(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _why(error: BaseException) -> str:
    """In one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__

"""Executors that this coordinator cannot signal, on other machines: known by their connections only."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from isoscale.protocol import messages as m
from isoscale.runtime.control.server import ControlServer
from isoscale.runtime.coordinator.liveness import Liveness
from isoscale.runtime.coordinator.processes import FAREWELL_S

__all__ = ["Remote"]

#: how long one may be without a connection, in time that the coordinator itself runs
_AWAY_S = 3.0
#: how long one that was told it may join has to start its script
_JOINING_S = 600.0


class Remote:
    def __init__(self, server: ControlServer, liveness: Liveness) -> None:
        self._server = server
        self._liveness = liveness
        #: started under an earlier coordinator: they may come back
        self.expected: set[int] = set()
        #: were told that they may join, and when
        self._joining: dict[int, float] = {}

    def may_join(self, executor: int, now: float) -> None:
        self._joining[executor] = now

    def came(self, executor: int) -> None:
        self._joining.pop(executor, None)

    def lost(self, now: float, local: Collection[int]) -> list[tuple[int, str]]:
        """Who is gone, and why; `local` ones are watched otherwise."""
        limit = self._liveness.away_limit(_AWAY_S)
        gone = [(executor, "its connection is gone") for executor in self._server.away(now, limit, but=local)]
        late = [e for e, since in self._joining.items() if now - since > _JOINING_S]
        gone += [(executor, "it asked to join and never came") for executor in late]
        for executor, _ in gone:
            self.came(executor)
        return gone

    async def dismiss(self, executors: Collection[int]) -> None:
        """What cannot be killed is told to go, and has a moment to hear it."""
        for executor in executors:
            self._server.send(executor, m.Leave(reason="the job is over"))
        await asyncio.gather(*(self._server.closed(executor, FAREWELL_S) for executor in executors))

"""Executors on other machines, by their connections."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

import pytest

from isoscale.protocol import messages as m
from isoscale.runtime.coordinator.liveness import Liveness
from isoscale.runtime.coordinator.remote import Remote
from isoscale.types import Settings


class ControlServer:
    """Whose connections are how old is for the test to say."""

    def __init__(self) -> None:
        self.closed_for: dict[int, float] = {}
        self.sent: list[tuple[int, m.FromCoordinator]] = []

    def away(self, now: float, limit: float, *, but: Collection[int]) -> list[int]:
        return [executor for executor, seconds in self.closed_for.items() if seconds > limit and executor not in but]

    def send(self, executor: int, message: m.FromCoordinator) -> None:
        self.sent.append((executor, message))

    async def closed(self, executor: int, timeout: float) -> None:
        pass


@pytest.fixture
def server() -> ControlServer:
    return ControlServer()


@pytest.fixture
def remote(server: Any) -> Remote:
    return Remote(server, Liveness(Settings(heartbeat_s=1.0, lost_after_s=10.0)))


def test_a_connection_that_is_gone_for_long_is_an_executor_that_is_gone(server: ControlServer, remote: Remote) -> None:
    server.closed_for = {0: 1.0, 1: 5.0, 2: 5.0}
    assert remote.lost(100.0, local={2}) == [(1, "its connection is gone")]


def test_connections_that_are_gone_together_have_longer_to_come_back(server: ControlServer, remote: Remote) -> None:
    remote._liveness.listen({0: 5.0, 1: 5.0}, (0, 1), 100.0)
    server.closed_for = {0: 5.0, 1: 5.0}
    assert remote.lost(100.0, local=()) == []
    server.closed_for = {0: 11.0, 1: 11.0}
    assert remote.lost(106.0, local=()) == [(0, "its connection is gone"), (1, "its connection is gone")]


def test_one_that_asked_to_join_has_to_come(remote: Remote) -> None:
    remote.may_join(4, now=100.0)
    remote.may_join(5, now=100.0)
    remote.came(5)
    assert remote.lost(700.0, local=()) == []
    assert remote.lost(701.0, local=()) == [(4, "it asked to join and never came")]
    assert remote.lost(702.0, local=()) == [], "once"


def test_all_are_told_when_it_is_over(server: ControlServer, remote: Remote) -> None:
    asyncio.run(remote.dismiss([1, 2]))
    assert server.sent == [(1, m.Leave(reason="the job is over")), (2, m.Leave(reason="the job is over"))]

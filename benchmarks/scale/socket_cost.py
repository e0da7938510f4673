"""Processor time of a coordinator per message: the real control socket, its peers in another process.

A heartbeat goes the whole way: socket, decoder, state machine, event log now and then, and its acknowledgement. Orders
go from encoding to the socket. A part of `constants`.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from benchmarks.lib.processes import ROOT, run_module
from isoscale.clock import WallClock
from isoscale.kinds import DeviceSet
from isoscale.protocol import messages as m
from isoscale.runtime.control.server import ControlServer
from isoscale.runtime.coordinator.journal import Journal
from isoscale.runtime.membership.dispatch import may_say
from isoscale.runtime.membership.state_machine import Membership
from isoscale.runtime.membership.target import Goal
from isoscale.types import JobSpec, Settings

_TOKEN = "t" * 32
_PATIENCE_S = 60.0
_WELCOME = m.Welcome(spec=JobSpec(workers=1), settings=Settings(), kind="cpu", executor=0, term=1)


class _Nobody:
    """Watches nothing."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *arguments, **named: True


class Desk:
    """What a coordinator does with a message, as its shell does it."""

    def __init__(self, size: int, folder: Path) -> None:
        spec = JobSpec(workers=size, out=str(folder))
        self.machine = Membership(spec, Settings(), Goal(DeviceSet((("cpu", size),))), lambda mine, theirs: ())
        self.machine.begin()
        for executor in range(size):
            self.machine.on_hello(
                m.Hello(executor=executor, pid=1, kind="cpu", fingerprint="f", kernels={}, factors={})
            )
        self.machine.on_sealed(1, 0)
        self.journal = Journal(spec, _Nobody(), WallClock())
        self.count = 0

    def on_message(self, executor: int, message: m.FromExecutor) -> None:
        self.count += 1
        if not may_say(self.machine, executor, message):
            return
        if isinstance(message, m.Beat):
            self.journal.on_beat(executor, self.machine.current, message)
            self.machine.on_beat(executor, message)
        elif isinstance(message, m.Sealed):
            self.machine.on_sealed(message.generation - 6, message.step)


async def _with_peers(
    count: int, what: str, members: int, rounds: int, work: Callable[[ControlServer, Desk], Awaitable[float]]
) -> float:
    with tempfile.TemporaryDirectory() as folder:
        desk = Desk(count, Path(folder))
        server = ControlServer(_TOKEN, "127.0.0.1", None)
        server.on_executor = lambda executor: _WELCOME
        server.on_message = desk.on_message
        async with server.open() as url:
            arguments = run_module("benchmarks.scale.talkers", url, _TOKEN, count, what, members, rounds)
            peers = await asyncio.create_subprocess_exec(*arguments, cwd=ROOT)
            working = asyncio.ensure_future(work(server, desk))
            gone = asyncio.ensure_future(peers.wait())
            await asyncio.wait({working, gone}, timeout=_PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
            if not gone.done():
                peers.kill()
                await gone
            if not working.done():
                working.cancel()
                raise RuntimeError("the peers ended, or said too little in time")
            return working.result()


async def _incoming(count: int, what: str, members: int, rounds: int) -> float:
    async def work(server: ControlServer, desk: Desk) -> float:
        await _until(lambda: desk.count >= count, server)
        begun, before = time.process_time(), desk.count
        await _until(lambda: desk.count >= count * rounds, server)
        return (time.process_time() - begun) / (desk.count - before)

    return await _with_peers(count, what, members, rounds, work)


async def _outgoing(count: int, message: m.FromCoordinator, rounds: int) -> float:
    async def work(server: ControlServer, desk: Desk) -> float:
        await _until(lambda: desk.count >= count, server)
        begun = time.process_time()
        for _ in range(rounds):
            for executor in range(count):
                server.send(executor, message)
            while any(queue.qsize() for queue in server._queues.values()):
                await asyncio.sleep(0)
        return (time.process_time() - begun) / (count * rounds)

    return await _with_peers(count, "beat", 1, 1, work)


async def _until(reached: Callable[[], bool], server: ControlServer) -> None:
    """As the shell's tick does, more often."""
    while not reached():
        server.acknowledge()
        await asyncio.sleep(0.02)


def an_order(members: int) -> m.Prepare:
    return m.Prepare(
        generation=7,
        shares=(1,) * members,
        members=tuple(range(members)),
        index=members // 2,
        store="tcp://10.20.0.0:30000/store-7",
        addresses=tuple(f"tcp://10.20.{e // 2000}.{e // 8 % 250}:{30_000 + e % 8}" for e in range(members)),
    )


def socket_constants(*, smoke: bool) -> dict[str, float]:
    """Seconds of processor time, and bytes."""
    count, rounds = (8, 3) if smoke else (200, 40)
    few, many = (10, 100) if smoke else (10, 10_000)
    small, large = an_order(few), an_order(many)
    return {
        "beat_s": asyncio.run(_incoming(count, "beat", 1, rounds)),
        "sealed_small_s": asyncio.run(_incoming(count, "sealed", few, rounds)),
        "sealed_large_s": asyncio.run(_incoming(min(count, 50), "sealed", many, max(2, rounds // 4))),
        "sealed_large_bytes": len(
            m.encode(m.Sealed(generation=7, step=1000, members=tuple(range(many)), shares=(1,) * many))
        ),
        "order_small_s": asyncio.run(_outgoing(count, small, rounds)),
        "order_small_bytes": len(m.encode(small)),
        "order_large_s": asyncio.run(_outgoing(min(count, 50), large, max(1, rounds // 8))),
        "order_large_bytes": len(m.encode(large)),
    }

"""An open-loop load: requests leave when they are due, whatever became of earlier ones; latency counts from then."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.cluster.inference import Server

_REQUEST = b"GET / HTTP/1.0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Shape:
    """Requests per second over time: low, up within `ramp_s`, high, down again; and once more."""

    low: float
    high: float
    calm_s: float = 15.0
    ramp_s: float = 5.0
    peak_s: float = 20.0
    peaks: int = 2

    @property
    def seconds(self) -> float:
        return self.peaks * (self.calm_s + 2 * self.ramp_s + self.peak_s)

    def rate(self, at_s: float) -> float:
        within = at_s % (self.calm_s + 2 * self.ramp_s + self.peak_s) - self.calm_s
        if within < 0:
            return self.low
        if within < self.ramp_s:
            return self.low + (self.high - self.low) * within / self.ramp_s
        if within < self.ramp_s + self.peak_s:
            return self.high
        return self.high - (self.high - self.low) * (within - self.ramp_s - self.peak_s) / self.ramp_s

    def arrivals(self, seed: int = 0) -> list[float]:
        """A Poisson process of that rate, by thinning: the same for every run."""
        chance = random.Random(seed)
        at, found = 0.0, []
        while (at := at + chance.expovariate(self.high)) < self.seconds:
            if chance.random() * self.high < self.rate(at):
                found.append(at)
        return found


@dataclass(frozen=True, slots=True)
class Answer:
    due_s: float
    #: infinity: none came
    latency_s: float


async def drive(arrivals: Sequence[float], servers: Callable[[], Sequence[Server]]) -> list[Answer]:
    """`servers()`: those that take requests at the moment; the one with the fewest open requests gets the next."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    tasks = []
    for due in arrivals:
        await asyncio.sleep(max(0.0, begun + due - loop.time()))
        server = min(servers(), key=lambda one: one.outstanding)
        server.outstanding += 1
        tasks.append(asyncio.create_task(_ask(server, due, begun)))
    return await asyncio.gather(*tasks)


async def saturation(servers: Sequence[Server], seconds: float, clients: int = 2) -> float:
    """Requests per second that they answer if there are always some open."""
    loop = asyncio.get_running_loop()
    end, done = loop.time() + seconds, 0

    async def client(server: Server) -> None:
        nonlocal done
        while loop.time() < end:
            await _exchange(server.port)
            done += 1

    begun = loop.time()
    await asyncio.gather(*(client(server) for server in servers for _ in range(clients)))
    return done / (loop.time() - begun)


async def _ask(server: Server, due: float, begun: float) -> Answer:
    try:
        await _exchange(server.port)
        return Answer(due, asyncio.get_running_loop().time() - begun - due)
    except OSError:
        return Answer(due, float("inf"))
    finally:
        server.outstanding -= 1


async def _exchange(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(_REQUEST)
    answer = await reader.read()
    writer.close()
    if not answer.startswith(b"HTTP/1.0 200"):
        raise ConnectionError("no answer")

"""Executors as far as a coordinator's socket sees them, many in one process; a part of `socket_cost`.

Started with the server's address, its token, the number of connections, what to say (`beat` or `sealed`), how many
members a generation's first seal names, and how often. Each says it, waits until it is acknowledged, and says it again;
then it takes what comes until the server closes.
"""

from __future__ import annotations

import asyncio
import sys

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from isoscale.protocol import messages as m

#: a coordinator lets 64 in at a time (`runtime.control.server`) and turns others away, who try again
_OPENING = 32


def spoken(what: str, members: int) -> bytes:
    if what == "beat":
        beat = m.Beat(
            step=1000, place="turn", place_s=0.123, steps=4, turn_s=0.2345, exchange_s=0.01, step_s=0.25, at=1e5
        )
        return m.encode(beat)
    return m.encode(m.Sealed(generation=7, step=1000, members=tuple(range(members)), shares=(1,) * members))


async def talk(door: asyncio.Semaphore, url: str, token: str, executor: int, frame: bytes, rounds: int) -> None:
    headers = {"Authorization": f"Bearer {token}"}
    async with door:
        link = await connect(
            f"{url}/executor/{executor}",
            additional_headers=headers,
            max_size=None,
            compression=None,
            ping_interval=None,
            proxy=None,
        )
        await heard(link, m.Welcome)
    async with link:
        for _ in range(rounds):
            await link.send(frame)
            await heard(link, m.Heard)
        try:
            while True:
                await link.recv()
        except ConnectionClosed:
            return


async def heard(link: ClientConnection, sort: type) -> None:
    while not isinstance(m.decode_from_coordinator(bytes(await link.recv(decode=False))), sort):
        pass


async def main() -> None:
    url, token, count, what, members, rounds = sys.argv[1:]
    frame = spoken(what, int(members))
    door = asyncio.Semaphore(_OPENING)
    await asyncio.gather(*(talk(door, url, token, executor, frame, int(rounds)) for executor in range(int(count))))


if __name__ == "__main__":
    asyncio.run(main())

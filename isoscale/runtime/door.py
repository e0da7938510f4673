"""The coordinator's socket: who may come in, which connection is whose, and what is said on it.

Everybody shows the run's token (compared in constant time) before a byte of theirs is read as a message;
messages are bounded; one that is malformed, or comes from somebody unknown, ends its connection and nothing
else. Binds to loopback unless told otherwise, with TLS where a certificate is given. Knows no protocol.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import http
import re
import ssl
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import msgspec
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from isoscale.protocol import messages as m

__all__ = ["Door", "Security"]

#: outgoing messages of a peer that does not read
_MAX_QUEUE = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """Where the socket is, and how it proves who it is."""

    port: int = 0
    certificate: Path | None = None
    key: Path | None = None


@dataclass(slots=True)
class _Peer:
    connection: ServerConnection
    #: monotonic seconds of the last message
    heard_at: float
    #: messages that came, and how many of them it has been told of
    count: int = 0
    told: int = 0
    closed_at: float | None = None


class Door:
    """Set the callbacks before it is opened."""

    on_executor: Callable[[int], m.Welcome | None]
    on_message: Callable[[int, m.FromExecutor], None]
    on_request: Callable[[m.FromClient], m.Reply]
    on_joining: Callable[[str], m.Welcome | str]

    def __init__(self, token: str, host: str, security: Security | None) -> None:
        self._expected = f"Bearer {token}".encode()
        self._host = host
        self._security = security or Security()
        self._peers: dict[int, _Peer] = {}
        self._queues: dict[ServerConnection, asyncio.Queue[bytes]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.url = ""
        self.ca_file = self._security.certificate

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        """Serve; gives the URL."""
        context = None
        if self._security.certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self._security.certificate, self._security.key)
        async with serve(
            self._serve,
            self._host,
            self._security.port,
            process_request=self._authenticate,
            max_size=m.MAX_MESSAGE_BYTES,
            compression=None,
            ssl=context,
            ping_interval=None,
            close_timeout=1,
        ) as server:
            host, port = next(iter(server.sockets)).getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            self.url = f"{'wss' if context else 'ws'}://{shown}:{port}"
            yield self.url

    # ---- executors ----

    def send(self, executor: int, message: m.FromCoordinator) -> None:
        """Queue a message; it is lost if the executor is."""
        peer = self._peers.get(executor)
        if peer is not None and peer.closed_at is None:
            self._put(peer.connection, m.encode(message))

    def acknowledge(self) -> None:
        for executor, peer in self._peers.items():
            if peer.count > peer.told and peer.closed_at is None:
                peer.told = peer.count
                self.send(executor, m.Heard(count=peer.count))

    def silent_for(self, executor: int, now: float) -> float | None:
        """Seconds since its last message; None if it never was here."""
        peer = self._peers.get(executor)
        return None if peer is None else now - peer.heard_at

    def away(self, now: float, limit: float) -> list[int]:
        """Executors whose connection has been closed for longer than `limit`; each is named once."""
        gone = [e for e, p in self._peers.items() if p.closed_at is not None and now - p.closed_at > limit]
        for executor in gone:
            del self._peers[executor]
        return gone

    async def closed(self, executor: int, timeout: float) -> None:
        """Returns when everything the executor had sent has been handled."""
        peer = self._peers.get(executor)
        deadline = time.monotonic() + timeout
        while peer is not None and peer.closed_at is None and time.monotonic() < deadline:
            await asyncio.sleep(0.002)
        self._peers.pop(executor, None)

    def drop(self, executor: int) -> None:
        peer = self._peers.pop(executor, None)
        if peer is not None:
            self._later(peer.connection.close())

    # ---- connections ----

    def _authenticate(self, connection: ServerConnection, request: Request) -> Response | None:
        given = request.headers.get_all("Authorization")
        if len(given) == 1 and hmac.compare_digest(given[0].encode(), self._expected):
            return None
        return connection.respond(http.HTTPStatus.UNAUTHORIZED, "a token is required\n")

    async def _serve(self, connection: ServerConnection) -> None:
        target = urlsplit(connection.request.path if connection.request else "")
        match = re.fullmatch(r"/executor/([0-9]{1,9})", target.path)
        queue: asyncio.Queue[bytes] = asyncio.Queue(_MAX_QUEUE)
        self._queues[connection] = queue
        sender = asyncio.create_task(_send_all(connection, queue))
        try:
            if match:
                await self._serve_executor(connection, int(match[1]))
            elif target.path == "/control":
                await self._serve_client(connection)
            elif target.path == "/join":
                await self._serve_joining(connection, parse_qs(target.query).get("kind", ["cpu"])[0])
        except (ConnectionClosed, msgspec.DecodeError, msgspec.ValidationError):
            pass
        finally:
            sender.cancel()
            del self._queues[connection]
            await connection.close()

    async def _serve_executor(self, connection: ServerConnection, executor: int) -> None:
        welcome = self.on_executor(executor)
        if welcome is None:
            return  # nobody knows it
        before = self._peers.get(executor)
        if before is not None:
            self._later(before.connection.close())  # it has come again
        peer = self._peers[executor] = _Peer(connection, time.monotonic())
        self._put(connection, m.encode(welcome))
        try:
            async for frame in connection:
                message = m.decode_from_executor(frame if isinstance(frame, bytes) else frame.encode())
                peer.heard_at = time.monotonic()
                peer.count += not isinstance(message, m.Rejoin)
                if self._peers.get(executor) is peer:
                    self.on_message(executor, message)
        finally:
            peer.closed_at = time.monotonic()

    async def _serve_client(self, connection: ServerConnection) -> None:
        async for frame in connection:
            request = m.decode_from_client(frame if isinstance(frame, bytes) else frame.encode())
            self._put(connection, m.encode(self.on_request(request)))

    async def _serve_joining(self, connection: ServerConnection, kind: str) -> None:
        answer = self.on_joining(kind)
        if isinstance(answer, str):
            await connection.close(1008, answer[:120])
        else:
            await connection.send(m.encode(answer))

    def _put(self, connection: ServerConnection, frame: bytes) -> None:
        queue = self._queues.get(connection)
        if queue is not None:
            try:
                queue.put_nowait(frame)
            except asyncio.QueueFull:
                self._later(connection.close())

    def _later(self, work: object) -> None:
        task = asyncio.ensure_future(work)  # type: ignore[call-overload]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _send_all(connection: ServerConnection, queue: asyncio.Queue[bytes]) -> None:
    with contextlib.suppress(ConnectionClosed):
        while True:
            await connection.send(await queue.get())

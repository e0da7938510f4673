"""The coordinator's socket: who may come in, which connection is whose, and what is said on it.

Everybody shows the run's token (compared in constant time) before a byte of theirs is read as a message; few may
be about to at a time, and not for long. Messages are bounded; one that is malformed, or comes from somebody unknown
or in another's name, ends its connection and nothing else. Binds to loopback unless told otherwise, with TLS where
a certificate is given. Knows no protocol.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import http
import logging
import re
import ssl
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import msgspec
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from isoscale.errors import UserError
from isoscale.protocol import messages as m
from isoscale.runtime.control.executor_link import trusting
from isoscale.runtime.control.listener import Gate, listening_socket

__all__ = ["ControlServer", "Security", "check_security"]

#: outgoing messages of a peer that does not read
_MAX_QUEUE = 10_000
#: seconds for the handshakes of TLS and WebSocket, and how many may be in them at a time
_OPEN_TIMEOUT_S = 5.0
_MAX_OPENING = 64
_LOOK_S = 0.002

# A stranger's garbage is nothing that the person at the terminal could do anything about.
_log = logging.getLogger(__name__)
_log.addHandler(logging.NullHandler())
_log.propagate = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """Where the socket is, and how it proves who it is."""

    port: int = 0
    certificate: Path | None = None
    key: Path | None = None


@dataclass(slots=True)
class _Peer:
    connection: ServerConnection
    #: when the last message came
    heard_at: float
    #: messages that came, and how many of them it has been told of
    count: int = 0
    told: int = 0
    closed_at: float | None = None


class ControlServer:
    """Set the callbacks before it is opened."""

    on_executor: Callable[[int], m.Welcome | None]
    on_message: Callable[[int, m.FromExecutor], None]
    on_request: Callable[[m.FromClient], m.Reply]
    on_joining: Callable[[str], m.Welcome | str]

    def __init__(
        self, token: str, host: str, security: Security | None, now: Callable[[], float] = time.monotonic
    ) -> None:
        """`now`: the seconds by which it counts how long somebody has been silent or away."""
        self._now = now
        self._expected = f"Bearer {token}".encode()
        self._host = host
        self._security = security or Security()
        self._peers: dict[int, _Peer] = {}
        self._queues: dict[ServerConnection, asyncio.Queue[bytes]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._gate: Gate | None = None
        self.url = ""
        #: for executors that are started here; absolute, because scripts may change their directory
        self.ca_file = self._security.certificate.resolve() if self._security.certificate is not None else None

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        """Serve; gives the URL. Raises UserError if the address or the certificate cannot be used."""
        context = _tls(self._host, self._security)
        self._gate = listening_socket(self._host, self._security.port, _MAX_OPENING)
        async with serve(
            self._serve,
            sock=self._gate,
            process_request=self._authenticate,
            max_size=m.MAX_MESSAGE_BYTES,
            compression=None,
            ssl=context,
            ping_interval=None,
            open_timeout=_OPEN_TIMEOUT_S,
            close_timeout=1,
            logger=_log,
        ):
            host, port = self._gate.getsockname()[:2]
            if context is not None:
                host = self._host  # the name that the certificate is for
            shown = f"[{host}]" if ":" in host else host
            self.url = f"{'wss' if context else 'ws'}://{shown}:{port}"
            yield self.url

    # ---- executors ----

    def send(self, executor: int, message: m.FromCoordinator) -> None:
        """Queue a message; it is lost if the executor is."""
        peer = self._peers.get(executor)
        if peer is not None and peer.closed_at is None:
            self._put(peer.connection, m.encode(message))

    def heard(self) -> dict[int, tuple[object, int]]:
        """What came from each executor so far, for `acknowledge` later."""
        return {executor: (peer, peer.count) for executor, peer in self._peers.items()}

    def acknowledge(self, heard: Mapping[int, tuple[object, int]] | None = None) -> None:
        """Executors need not keep what they have told; only what was `heard` then, if that is given."""
        heard = self.heard() if heard is None else heard
        for executor, peer in self._peers.items():
            known, count = heard.get(executor, (None, 0))
            if known is peer and count > peer.told and peer.closed_at is None:
                peer.told = count
                self.send(executor, m.Heard(count=count))

    def silent_for(self, executor: int, now: float) -> float | None:
        """Seconds since its last message; None if it never was here."""
        peer = self._peers.get(executor)
        return None if peer is None else now - peer.heard_at

    def away(self, now: float, limit: float, *, but: Collection[int] = ()) -> list[int]:
        """Executors whose connection has been closed for longer than `limit`, `but` these; each is named once."""
        closed = {e: p.closed_at for e, p in self._peers.items() if p.closed_at is not None and e not in but}
        gone = [executor for executor, since in closed.items() if now - since > limit]
        for executor in gone:
            del self._peers[executor]
        return gone

    async def closed(self, executor: int, timeout: float) -> None:
        """Returns when everything the executor had sent has been handled; `timeout` is in time that this process runs.

        Counted in looks: after a time in which it was stopped, what was said meanwhile is read first.
        """
        peer, looks = self._peers.get(executor), int(timeout / _LOOK_S)
        while peer is not None and peer.closed_at is None and looks > 0:
            looks -= 1
            await asyncio.sleep(_LOOK_S)
        self._peers.pop(executor, None)

    def drop(self, executor: int) -> None:
        peer = self._peers.pop(executor, None)
        if peer is not None:
            self._later(peer.connection.close())

    # ---- connections ----

    def _authenticate(self, connection: ServerConnection, request: Request) -> Response | None:
        given = request.headers.get_all("Authorization")
        if len(given) == 1 and hmac.compare_digest(given[0].encode(errors="surrogateescape"), self._expected):
            if self._gate is not None:
                self._gate.admit(connection.transport.get_extra_info("socket").fileno())
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
        except ConnectionClosed:
            pass
        except (_Malformed, msgspec.DecodeError, RecursionError):
            await connection.close(1008, "malformed")
        finally:
            sender.cancel()
            del self._queues[connection]
            await connection.close()

    async def _serve_executor(self, connection: ServerConnection, executor: int) -> None:
        welcome = self.on_executor(executor)
        if welcome is None:
            # One that was taken for dead, or of another run: there is nothing for it to do here any more.
            await connection.close(1008, m.UNKNOWN_EXECUTOR)
            return
        before = self._peers.get(executor)
        if before is not None:
            self._later(before.connection.close())  # it has come again
        peer = self._peers[executor] = _Peer(connection, self._now())
        self._put(connection, m.encode(welcome))
        try:
            async for frame in connection:
                message = m.decode_from_executor(frame if isinstance(frame, bytes) else frame.encode())
                if _author(message) not in (None, executor):
                    raise _Malformed
                peer.heard_at = self._now()
                peer.count += not isinstance(message, m.Rejoin)
                if self._peers.get(executor) is peer:
                    self.on_message(executor, message)
        finally:
            peer.closed_at = self._now()

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


class _Malformed(Exception):  # noqa: N818 - ends a connection, no more
    """A message that this peer may not send."""


def check_security(host: str, security: Security) -> None:
    """Raises UserError if a door could not be opened there."""
    listening_socket(host, security.port, _MAX_OPENING).close()
    _tls(host, security)


def _tls(host: str, security: Security) -> ssl.SSLContext | None:
    if security.certificate is None:
        if security.key is not None:
            raise UserError(
                field="--key", value=security.key, problem="a key without a certificate", remedy="give --certificate"
            )
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(security.certificate, security.key)
    except OSError as error:  # ssl.SSLError is one
        raise UserError(
            field="--certificate",
            value=security.certificate,
            problem=f"cannot be used with its key ({error.strerror or error})",
            remedy="give --certificate and --key as PEM files",
        ) from None
    try:
        _shake_hands(context, trusting(security.certificate), host)
    except ssl.SSLCertVerificationError as error:
        raise UserError(
            field="--certificate",
            value=security.certificate,
            problem=f"the job's own executors could not trust it ({error.verify_message})",
            remedy=f"give one that is valid now and names {host} (subjectAltName)",
        ) from None
    return context


def _shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> None:
    """The handshake of somebody who connects, in memory. Raises ssl.SSLError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(4):
        for end in ends:
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()


def _author(message: m.FromExecutor) -> int | None:
    """Who the message says it is from, where it does."""
    match message:
        case m.Hello() | m.Finished() | m.Failed():
            return message.executor
        case m.Rejoin():
            return message.hello.executor
    return None


async def _send_all(connection: ServerConnection, queue: asyncio.Queue[bytes]) -> None:
    with contextlib.suppress(ConnectionClosed):
        while True:
            await connection.send(await queue.get())

"""An executor's connection to its coordinator, which outlives coordinators.

Messages are queued and sent by a thread; nobody waits for one. When the connection is lost the executor goes
on, and a thread looks for a coordinator: at the address it knows, or at the one that a newer coordinator has
written into the run's directory. What was not acknowledged is sent again. Knows nothing of what messages mean.
"""

from __future__ import annotations

import contextlib
import socket as sockets
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.sync.client import ClientConnection
from websockets.sync.client import connect as connect_websocket

from isoscale.errors import UserError
from isoscale.protocol import messages as m
from isoscale.protocol.files import read_small_json

__all__ = ["ADDRESS_FILE", "Link", "address_here", "find_coordinator", "open_socket", "trusting"]

#: where a coordinator writes its address, in the run's control directory
ADDRESS_FILE = "coordinator.json"

_RETRY_S = 0.2
_FAREWELL_S = 5.0
#: facts of a job that trains on without a coordinator for hours
_MAX_WAITING = 100_000


def open_socket(url: str, token: str, ca_file: Path | None) -> ClientConnection:
    """A connection that has shown the run's token.

    Raises OSError or WebSocketException; UserError if the coordinator's certificate is not to be trusted.
    """
    trust = trusting(ca_file) if url.startswith("wss://") else None
    try:
        connection = _connect(url, token, trust)
    except ssl.SSLCertVerificationError as error:
        raise UserError(
            field="--ca",
            value=ca_file or "none",
            problem=f"does not vouch for the certificate of {url} ({error.verify_message})",
            remedy="give the one that isoscale run was given, or that of its issuer",
        ) from None
    # It is closed by whoever keeps it; websockets warns of connections that were never entered.
    return connection.__enter__()


def trusting(ca_file: Path | None) -> ssl.SSLContext:
    """Trusts the certificates in the file and what they vouch for; without one those that the system trusts."""
    try:
        trust = ssl.create_default_context(cafile=ca_file)
    except OSError as error:  # ssl.SSLError is one
        raise UserError(
            field="--ca",
            value=ca_file,
            problem=f"holds no certificates ({error.strerror or error})",
            remedy="give a PEM file",
        ) from None
    # The job's own certificate is enough, whoever has signed it.
    trust.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return trust


def _connect(url: str, token: str, trust: ssl.SSLContext | None) -> ClientConnection:
    return connect_websocket(
        url,
        additional_headers={"Authorization": f"Bearer {token}"},
        max_size=m.MAX_MESSAGE_BYTES,
        compression=None,
        proxy=None,
        ssl=trust,
        open_timeout=5,
        close_timeout=1,
        # A ping draws from Python's global stream, which is a logical worker's while its turn runs.
        ping_interval=None,
    )


def address_here(host: str, socket: ClientConnection) -> str:
    """Where this executor's data plane binds: the job's address, or, if that is another machine's, its own.

    Its own is the one from which it reaches the coordinator.
    """
    try:
        family, kind, protocol, _, address = sockets.getaddrinfo(host, 0, type=sockets.SOCK_STREAM)[0]
        with sockets.socket(family, kind, protocol) as probe:
            probe.bind(address)
        return str(address[0])
    except OSError:
        return str(socket.local_address[0])


class Link:
    def __init__(
        self,
        socket: ClientConnection,
        *,
        path: str,
        token: str,
        ca_file: Path | None,
        find: Callable[[], tuple[str, int] | None],
        on_message: Callable[[m.FromCoordinator], None],
        introduce: Callable[[], m.FromExecutor | None],
        on_refused: Callable[[str], None],
    ) -> None:
        """`path` is this executor's place at any coordinator, `find` gives address and term of the newest one;
        `introduce` says to a new one who this is.

        `on_refused`: the coordinator has no such executor (any more), and says so.
        """
        self._path, self._token, self._ca_file, self._find_newest = path, token, ca_file, find
        self._on_message, self._introduce, self._on_refused = on_message, introduce, on_refused
        self._lock = threading.Condition()
        #: not acknowledged yet, each with the time since which it waits; the first `_sent` of them have been sent
        #: on this connection
        self._waiting: deque[tuple[bytes, float]] = deque()
        self._sent = 0
        self._heard = 0
        self._socket: ClientConnection | None = socket
        self._url = ""
        self._term = 0
        self._lost_at: float | None = None
        self._closing = False
        threading.Thread(target=self._send_all, name="to coordinator", daemon=True).start()
        threading.Thread(target=self._stay_connected, name="from coordinator", daemon=True).start()

    def use_address(self, url: str, term: int) -> None:
        """Known from the first welcome."""
        self._url, self._term = url, term

    def send(self, message: m.FromExecutor) -> None:
        with self._lock:
            self._waiting.append((m.encode(message), time.monotonic()))
            self._lock.notify_all()

    def send_fact(self, message: m.FromExecutor) -> None:
        """What the job does not depend on is left out when too much waits for a coordinator that does not listen."""
        if len(self._waiting) < _MAX_WAITING:
            self.send(message)

    def send_now(self, message: m.FromExecutor) -> None:
        """What is of no use later is sent only while there is somebody to hear it."""
        if self._lost_at is None:
            self.send_fact(message)

    def lost_for(self) -> float:
        """Seconds without a coordinator."""
        lost_at = self._lost_at
        return 0.0 if lost_at is None else time.monotonic() - lost_at

    def unheard_since(self) -> float:
        """What was said before this moment, by the monotonic clock, has reached a coordinator."""
        with self._lock:
            return self._waiting[0][1] if self._waiting else time.monotonic()

    def close(self) -> None:
        """Everything sent so far reaches the coordinator, if there is one."""
        with self._lock:
            self._closing = True
            self._lock.wait_for(lambda: self._sent >= len(self._waiting) or self._lost_at is not None, _FAREWELL_S)
            socket = self._socket
        if socket is not None:
            with contextlib.suppress(OSError, WebSocketException):
                socket.close()

    # ---- threads ----

    def _send_all(self) -> None:
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._socket is not None and self._sent < len(self._waiting))
                socket, frame = self._socket, self._waiting[self._sent][0]
                self._sent += 1
            assert socket is not None
            try:
                socket.send(frame)
            except (OSError, WebSocketException):
                self._disconnected(socket)
            with self._lock:
                self._lock.notify_all()

    def _stay_connected(self) -> None:
        while True:
            socket = self._socket
            if socket is not None:
                self._receive_all(socket)
                self._disconnected(socket)
            if self._closing:
                return
            time.sleep(_RETRY_S)
            self._reconnect()

    def _receive_all(self, socket: ClientConnection) -> None:
        with contextlib.suppress(OSError, WebSocketException, msgspec.DecodeError), self._noticing_refusal():
            for frame in socket:
                message = m.decode_from_coordinator(frame if isinstance(frame, bytes) else frame.encode())
                if isinstance(message, m.Heard):
                    self._forget(message.count)
                elif isinstance(message, m.Welcome):
                    self._term = max(self._term, message.term)
                    self._on_message(message)
                else:
                    self._on_message(message)

    @contextlib.contextmanager
    def _noticing_refusal(self) -> Iterator[None]:
        try:
            yield
        except ConnectionClosed as closed:
            if closed.rcvd is not None and closed.rcvd.reason == m.UNKNOWN_EXECUTOR:
                self._on_refused(closed.rcvd.reason)

    def _forget(self, count: int) -> None:
        with self._lock:
            while self._heard < count and self._waiting:
                self._waiting.popleft()
                self._heard += 1
                self._sent -= 1

    def _disconnected(self, socket: ClientConnection) -> None:
        with self._lock:
            if self._socket is socket:
                self._socket, self._sent, self._heard = None, 0, 0
                self._lost_at = time.monotonic()
                self._lock.notify_all()

    def _reconnect(self) -> None:
        url, term = self._find()
        if not url or term < self._term:
            return  # an old coordinator has nothing to say any more
        if self._ca_file is not None and not url.startswith("wss://"):
            return  # nor has one that cannot prove who it is
        try:
            socket = open_socket(f"{url}{self._path}", self._token, self._ca_file)
            introduction = self._introduce()
            if introduction is not None:
                socket.send(m.encode(introduction))
        except (OSError, WebSocketException, UserError):
            return
        with self._lock:
            self._url, self._term = url, term
            self._socket, self._lost_at = socket, None
            self._lock.notify_all()

    def _find(self) -> tuple[str, int]:
        return self._find_newest() or (self._url, self._term)


def find_coordinator(control: Path) -> tuple[str, int] | None:
    """Address and term of the newest coordinator, as it has written them down; None if there is none."""
    try:
        address = read_small_json(control / ADDRESS_FILE)
        return str(address["url"]), int(address["term"])
    except (OSError, ValueError, KeyError, TypeError):
        return None

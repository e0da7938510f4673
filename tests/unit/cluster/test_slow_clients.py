"""Clients that take their time, or say too much, over a real socket: they are let go, and delay nobody else."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time
from asyncio import base_events
from collections.abc import Iterator

import pytest
import uvicorn

from isoscale.cluster import server
from tests.unit.cluster.conftest import World

PATIENCE_S = 30.0


@pytest.fixture
def address(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    monkeypatch.setattr(server, "_HEADERS_S", 0.2)
    listener = socket.create_server(("127.0.0.1", 0))
    running = uvicorn.Server(server.configured(world.app, server.Listening()))
    monkeypatch.setattr(running, "capture_signals", contextlib.nullcontext)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    yield listener.getsockname()
    running.should_exit = True
    thread.join(PATIENCE_S)


def is_answered(address: tuple[str, int], world: World) -> bool:
    connection = http.client.HTTPConnection(*address, timeout=PATIENCE_S)
    with contextlib.closing(connection):
        connection.request("GET", "/api", headers={"Authorization": f"Bearer {world.tokens['admin']}"})
        return connection.getresponse().status == 200


def is_let_go(client: socket.socket, trickle: bytes = b"") -> bool:
    """The other side closes the connection, though it is sent a byte now and then."""
    client.settimeout(0.1)
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            if trickle:
                client.sendall(trickle)
            if client.recv(65_536) == b"":
                return True
        except TimeoutError:
            continue
        except OSError:
            return True
    return False


@pytest.mark.parametrize(
    ("begin", "trickle"),
    [(b"", b""), (b"GET /api HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ", b"x"), (b"GET", b"")],
    ids=["says nothing", "headers byte by byte", "half a request"],
)
def test_whoever_does_not_come_to_the_point_is_let_go(
    address: tuple[str, int], world: World, begin: bytes, trickle: bytes
) -> None:
    with socket.create_connection(address) as client:
        client.sendall(begin)
        assert is_answered(address, world)
        assert is_let_go(client, trickle)
    assert is_answered(address, world)


@pytest.mark.parametrize(
    "head",
    [b"X-Long: " + b"y" * 100_000, b"\r\n".join(b"X-%d: y" % number for number in range(50_000))],
    ids=["one", "many"],
)
def test_a_flood_of_headers_is_refused(address: tuple[str, int], world: World, head: bytes) -> None:
    with socket.create_connection(address) as client:
        with contextlib.suppress(OSError):  # it may be closed while we still send
            client.sendall(b"GET /api HTTP/1.1\r\nHost: 127.0.0.1\r\n" + head + b"\r\n\r\n")
        client.settimeout(PATIENCE_S)
        with contextlib.suppress(ConnectionError):
            assert client.recv(65_536)[:12] in (b"", b"HTTP/1.1 400", b"HTTP/1.1 431")
        assert is_let_go(client)
    assert is_answered(address, world)


def test_answers_are_not_held_back_until_the_client_has_acknowledged_their_first_piece() -> None:
    """asyncio sets TCP_NODELAY on connections whose socket names its protocol, which they have from the listener."""
    listener = server.bound(server.Listening())
    with listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.proto == socket.IPPROTO_TCP
            base_events._set_nodelay(accepted)  # type: ignore[attr-defined]
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

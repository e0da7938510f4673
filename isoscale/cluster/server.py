"""The service behind uvicorn: the socket, the address file, signals, the log. Nothing is decided here."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import logging.handlers
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from starlette.types import ASGIApp

from isoscale.cluster.api.app import make_app
from isoscale.cluster.api.guards import allowed_hosts
from isoscale.cluster.api.routes import make_routes
from isoscale.cluster.service import Configuration, Service
from isoscale.errors import UserError

__all__ = ["BEGIN_AGAIN", "Listening", "Server", "address_of", "bound", "check", "configured", "serve"]

_log = logging.getLogger(__name__)

#: instead of an exit code: begin again, with the devices that there are now
BEGIN_AGAIN = -1
_LOG_BYTES, _LOG_FILES = 10 * 2**20, 3
#: requests at once, and headers of one; more wait or are refused
_MAX_CONNECTIONS, _MAX_HEADER_BYTES = 500, 32 * 1024
#: a connection without a request is closed after once to twice this
_HEADERS_S = 10.0
#: between two turns of a server that is not asked for anything
_TICK_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    host: str = "127.0.0.1"
    port: int = 0
    certificate: Path | None = None
    key: Path | None = None
    #: names under which others reach it, beside the address itself
    hosts: tuple[str, ...] = ()

    @property
    def is_local(self) -> bool:
        if self.host == "localhost":
            return True
        with contextlib.suppress(ValueError):
            return ipaddress.ip_address(self.host).is_loopback
        return False


def serve(configuration: Configuration, listening: Listening, on_ready: Callable[[str, Service], None]) -> int:
    """Until SIGINT or SIGTERM; jobs go on. Raises UserError. 1 if the service had to give up, or BEGIN_AGAIN."""
    check(listening)
    service = Service(configuration)
    try:
        _log_to(configuration.state / "service.log")
        listener = bound(listening)
        service.open()
        url = address_of(listener, listening)
        app = make_app(
            make_routes(service),
            service.authenticate,
            allowed_hosts(listening.host, listening.hosts),
            secure=listening.certificate is not None,
        )
        config = configured(app, listening)

        def ready() -> None:
            """Whoever waits for the address finds what was printed, too."""
            on_ready(url, service)
            service.announce(url)

        server = Server(config, ready, service.begin_closing)
        service.on_end = server.end
        _log.info("serving %s, policy %s", url, configuration.policy)
        asyncio.run(server.serve(sockets=[listener]))
        if service.begins_again:
            return BEGIN_AGAIN
        return 1 if not service.is_well() else 0
    finally:
        service.close()


def address_of(listener: socket.socket, listening: Listening) -> str:
    host, port = listener.getsockname()[:2]
    scheme = "https" if listening.certificate else "http"
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def configured(app: ASGIApp, listening: Listening) -> Any:
    """How uvicorn serves any app of ours."""
    import uvicorn

    return uvicorn.Config(
        app,
        http=patient_protocol(),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=_MAX_CONNECTIONS,
        h11_max_incomplete_event_size=_MAX_HEADER_BYTES,
        timeout_keep_alive=10,
        timeout_graceful_shutdown=2,
        ssl_certfile=listening.certificate,
        ssl_keyfile=listening.key,
    )


def check(listening: Listening) -> None:
    """Raises UserError."""
    if (listening.certificate is None) != (listening.key is None):
        raise UserError(
            field="--certificate",
            value=listening.certificate or ...,
            problem="it goes with --key",
            remedy="give both, or none",
        )
    for name, path in (("--certificate", listening.certificate), ("--key", listening.key)):
        if path is not None and not path.is_file():
            raise UserError(field=name, value=path, problem="no such file", remedy="give a PEM file")


def bound(listening: Listening) -> socket.socket:
    family = socket.AF_INET6 if ":" in listening.host else socket.AF_INET
    # With its protocol named: asyncio sends small pieces at once (TCP_NODELAY) on such sockets only; an answer of
    # two pieces would wait 40 ms for the client to acknowledge the first.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((listening.host, listening.port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        is_port = listening.port and error.errno in (errno.EADDRINUSE, errno.EACCES)
        raise UserError(
            field="--port" if is_port else "--listen",
            value=listening.port if is_port else listening.host,
            problem=f"cannot be bound ({error.strerror})",
            remedy="give another one, or --port 0 for any" if is_port else "give an address of this machine",
        ) from None
    return listener


def _log_to(path: Path) -> None:
    handler = logging.handlers.RotatingFileHandler(path, maxBytes=_LOG_BYTES, backupCount=_LOG_FILES)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger("isoscale")
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    logging.getLogger("uvicorn.error").addHandler(handler)


def patient_protocol() -> type[asyncio.Protocol]:
    """uvicorn's HTTP, that closes connections on which no request comes: it would wait for headers for ever."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Patient(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.was_idle = False
            self.loop.call_later(_HEADERS_S, self.look)

        def look(self) -> None:
            idle = self.cycle is None or self.cycle.response_complete
            if self.transport.is_closing():
                return
            if idle and self.was_idle:
                self.transport.close()
                return
            self.was_idle = idle
            self.loop.call_later(_HEADERS_S, self.look)

    return Patient


class Server:
    """uvicorn's server, that says when it is ready and can be ended from any thread."""

    def __init__(self, config: Any, on_ready: Callable[[], None], on_end: Callable[[], None]) -> None:
        import uvicorn

        class Uvicorn(uvicorn.Server):
            @contextlib.contextmanager
            def capture_signals(self) -> Iterator[None]:
                """Both mean to end in good order; uvicorn's own would raise them again afterwards."""
                before = {one: signal.signal(one, self.handle_exit) for one in (signal.SIGINT, signal.SIGTERM)}
                try:
                    yield
                finally:
                    for number, handler in before.items():
                        signal.signal(number, handler)

            async def main_loop(self) -> None:
                """A turn a second, for the date of answers, and one when it shall end: uvicorn's own looks for that ten
                times a second, which is most of what a service takes that has nothing to do."""
                self.woken, self.loop = asyncio.Event(), asyncio.get_running_loop()
                while not await self.on_tick(0):
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self.woken.wait(), _TICK_S)

            def wake(self) -> None:
                """From any thread, or a signal's handler; before the loop begins nobody needs to be woken."""
                with contextlib.suppress(AttributeError, RuntimeError):
                    self.loop.call_soon_threadsafe(self.woken.set)

            def handle_exit(self, sig: int, frame: FrameType | None) -> None:
                super().handle_exit(sig, frame)
                self.wake()

            async def startup(self, sockets: list[socket.socket] | None = None) -> None:
                await super().startup(sockets)
                on_ready()

            async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
                """A call that waits for devices would keep its thread, and so the process."""
                on_end()
                await super().shutdown(sockets)

        self._server = Uvicorn(config)

    async def serve(self, sockets: list[socket.socket]) -> None:
        await self._server.serve(sockets=sockets)

    def end(self) -> None:
        self._server.should_exit = True
        self._server.wake()

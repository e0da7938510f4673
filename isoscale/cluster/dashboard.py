"""The job page of one run, without a service: its own small set of routes behind the same guards. Reads only."""

from __future__ import annotations

import asyncio
import hmac
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio
import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from isoscale.cluster.api import guards
from isoscale.cluster.api.about import Info
from isoscale.cluster.api.app import make_app
from isoscale.cluster.api.events import EventQuery
from isoscale.cluster.api.jobs import look_routes
from isoscale.cluster.api.pages import page_routes
from isoscale.cluster.api.records import record_routes
from isoscale.cluster.api.route import SMALL_BODY, Call, Done, Route, Secret
from isoscale.cluster.api.sessions import LoginBody, Session
from isoscale.cluster.auth import Caller, hash_of
from isoscale.cluster.links import Links, address
from isoscale.cluster.one_run import RUN, RunDesk
from isoscale.cluster.server import Listening, Server, address_of, bound, check, configured
from isoscale.errors import UserError
from isoscale.protocol.files import read_small

__all__ = ["Door", "run_routes", "show_run"]

_SESSION_S = 12 * 3600.0
_MOST_SESSIONS = 64
#: how soon a page learns that the run wrote something
_LOOK_S = 0.5
_ALIVE_S = 15.0
_READER = Caller(token=0, name="reader", role="viewer", tenant="")


class Door:
    """Who gets in: by a link, or by the run's own token, which its owner can read. Sessions end with the process."""

    def __init__(self, token: str, now: Callable[[], float] = time.time) -> None:
        self._token, self._now = token, now
        self._sessions: dict[str, float] = {}
        self.links = Links()

    def link(self) -> str:
        return self.links.make(_READER, self._now())

    def begin(self, body: LoginBody) -> str:
        """A session's secret. Raises UserError."""
        if body.code:
            good, field = self.links.take(body.code, self._now()) is not None, "code"
        else:
            given, field = body.token.encode("utf-8", "surrogateescape"), "token"
            good = bool(self._token) and hmac.compare_digest(given, self._token.encode())
        if not good:
            remedy = "start isoscale dashboard again for a new link, or give the token of DIR/control/token"
            raise UserError(field=field, value="...", problem="not valid, or used before", remedy=remedy)
        secret = secrets.token_urlsafe(32)
        self._sessions[hash_of(secret)] = self._now() + _SESSION_S
        while len(self._sessions) > _MOST_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        return secret

    def end(self, secret: str) -> None:
        self._sessions.pop(hash_of(secret), None)

    def authenticate(self, secret: str) -> Caller | None:
        return _READER if self._sessions.get(hash_of(secret), 0.0) > self._now() else None


def show_run(
    directory: Path,
    listening: Listening,
    on_ready: Callable[[str], None],
    *,
    ca: Path | None = None,
    version: str = "",
) -> None:
    """Until SIGINT or SIGTERM. Raises UserError."""
    check(listening)
    desk = RunDesk(directory, ca)
    door = Door(_token(directory))
    listener = bound(listening)
    url = address_of(listener, listening)
    app = make_app(
        run_routes(desk, door, version),
        door.authenticate,
        guards.allowed_hosts(listening.host, listening.hosts),
        secure=listening.certificate is not None,
    )
    server = Server(configured(app, listening), lambda: on_ready(address(url, door.link())), lambda: None)
    try:
        asyncio.run(server.serve(sockets=[listener]))
    finally:
        desk.close()


def run_routes(desk: RunDesk, door: Door, version: str = "") -> tuple[Route, ...]:
    h = _Handlers(desk, door, version)
    return (
        Route(method="GET", path="/healthz", role=None, summary="Whether it answers", handler=h.health, answer=Done),
        Route(method="GET", path="/api", role="viewer", summary="What this is", handler=h.info, answer=Info),
        Route(
            method="GET", path="/session", role=None, summary="Who asks", handler=h.session, answer=Session, raw=True
        ),
        Route(
            method="POST",
            path="/login",
            role=None,
            summary="A session for the code of a link, or the run's token",
            handler=h.login,
            body=LoginBody,
            answer=Done,
            max_body=SMALL_BODY,
        ),
        Route(
            method="POST",
            path="/logout",
            role="viewer",
            summary="End the session",
            handler=h.logout,
            answer=Done,
            raw=True,
        ),
        Route(
            method="GET",
            path="/events",
            role="viewer",
            summary="That the run wrote something, as it does",
            handler=h.stream,
            query=EventQuery,
            media="text/event-stream",
            raw=True,
        ),
        *look_routes(desk),
        *record_routes(desk),
        *page_routes(alone=True),
    )


class _Handlers:
    def __init__(self, desk: RunDesk, door: Door, version: str) -> None:
        self._desk, self._door, self._version = desk, door, version
        self._log = desk.directory(_READER, RUN) / "events.jsonl"

    def health(self, call: Call) -> Done:
        return Done()

    def info(self, call: Call) -> Info:
        return self._info()

    def _info(self) -> Info:
        return Info(
            version=self._version,
            policy="",
            policies={},
            term=os.getpid(),
            event=self._size(),
            now_s=time.time(),
            you=_READER.name,
            role=_READER.role,
            tenant="",
        )

    async def session(self, call: Call, request: Request) -> Any:
        caller = self._door.authenticate(guards.cookie(request.headers))
        found = Session(signed_in=caller is not None, info=None if caller is None else self._info())
        return Response(msgspec.json.encode(found), media_type="application/json")

    def login(self, call: Call) -> Secret:
        return Secret(cookie=self._door.begin(call.body), answer=Done())

    async def logout(self, call: Call, request: Request) -> Any:
        self._door.end(guards.cookie(request.headers))
        response = Response(msgspec.json.encode(Done()), media_type="application/json")
        response.delete_cookie(guards.COOKIE, path="/")
        return response

    async def stream(self, call: Call, request: Request) -> Any:
        secret = guards.cookie(request.headers)
        return StreamingResponse(self._rows(secret), media_type="text/event-stream")

    async def _rows(self, secret: str) -> AsyncIterator[bytes]:
        """`id:` is the size of the log: a page that comes back asks for all it shows, so nothing can be missed."""
        size, quiet_s = -1, 0.0
        yield b"retry: 2000\n\n"
        while self._door.authenticate(secret) is not None:
            now = await anyio.to_thread.run_sync(self._size)
            if now != size:
                size, quiet_s = now, 0.0
                row = {"id": size, "event": "run", "job": RUN}
                yield f"id: {size}\nevent: run\ndata: ".encode() + msgspec.json.encode(row) + b"\n\n"
            elif quiet_s >= _ALIVE_S:
                quiet_s = 0.0
                yield b": alive\n\n"
            await asyncio.sleep(_LOOK_S)
            quiet_s += _LOOK_S

    def _size(self) -> int:
        try:
            return self._log.stat().st_size
        except OSError:
            return 0


def _token(directory: Path) -> str:
    try:
        return read_small(directory / "control" / "token", 4096).decode("ascii", "replace").strip()
    except OSError:
        return ""

"""The ASGI application, made of the table of routes: guards, decoding, one thread per call, errors as JSON.

Handlers are plain functions; they run in threads, so a slow disk delays nobody else's answer.
"""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import logging
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

import anyio
import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from isoscale.cluster.api import guards
from isoscale.cluster.api.route import SMALL_BODY, Call, Route, Secret
from isoscale.cluster.auth import Caller, ConflictError, ForbiddenError, NotFoundError, TooManyError
from isoscale.errors import IsoscaleError, UserError

__all__ = ["Refusal", "make_app"]

_log = logging.getLogger(__name__)

#: how long a client may take to send what it has to say
_BODY_S = 30.0
#: large bodies that are in memory at once; others wait
_MAX_LARGE = 4
_MAX_HEADERS, _MAX_HEADER_BYTES = 100, 32 * 1024
#: of a session's cookie
_COOKIE_S = 12 * 3600
_STATUS: tuple[tuple[type[IsoscaleError], int], ...] = (
    (ForbiddenError, 403),
    (NotFoundError, 404),
    (ConflictError, 409),
    (TooManyError, 429),
    (UserError, 400),
)


class Refusal(Exception):  # noqa: N818 - an answer, not an error of ours
    def __init__(self, status: int, text: str, **fields: object) -> None:
        super().__init__(text)
        self.status = status
        self.fields = fields


def make_app(
    routes: Sequence[Route],
    authenticate: Callable[[str], Caller | None],
    hosts: frozenset[str],
    *,
    secure: bool = False,
) -> ASGIApp:
    """`authenticate` knows a token's secret; `secure`: it is served over TLS."""
    paths: dict[str, list[Route]] = {}
    for route in routes:
        paths.setdefault(route.path, []).append(route)
    # One endpoint for each path and every method: so a method that no route has is refused here, guards first.
    endpoints = [
        StarletteRoute(path, _Endpoint({route.method: route for route in found}, authenticate, secure=secure))
        for path, found in paths.items()
    ]
    app = Starlette(routes=endpoints, exception_handlers={HTTPException: _not_there})
    return _Shell(app, hosts)


class _Shell:
    """Around everything, unknown paths included: the Host, and the headers of every answer."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str]) -> None:
        self._app, self._hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await receive()
                await send({"type": "websocket.close", "code": 1008})
                return
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name for name, _ in message["headers"]}
                extra = [(name.encode(), value.encode()) for name, value in guards.HEADERS]
                message["headers"] = [*message["headers"], *(pair for pair in extra if pair[0] not in present)]
            await send(message)

        if (
            len(scope["headers"]) > _MAX_HEADERS
            or sum(len(n) + len(v) for n, v in scope["headers"]) > _MAX_HEADER_BYTES
        ):
            # What came in one piece is not bounded by who reads it.
            answer = _error(431, f"at most {_MAX_HEADERS} headers of {_MAX_HEADER_BYTES:,} bytes together")
            await answer(scope, receive, send_with_headers)
            return
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1 or not guards.is_allowed_host(hosts[0].decode("latin-1"), self._hosts):
            answer = _error(421, "this service does not answer to that Host", remedy="use the address in STATE/address")
            await answer(scope, receive, send_with_headers)
            return
        await self._app(scope, receive, send_with_headers)


class _Endpoint:
    """All methods of one path."""

    def __init__(self, routes: dict[str, Route], authenticate: Callable[[str], Caller | None], *, secure: bool) -> None:
        self.routes, self._authenticate, self._secure = routes, authenticate, secure
        self._large = asyncio.Semaphore(_MAX_LARGE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            response = await self._answer(request)
        except Refusal as refusal:
            response = _error(refusal.status, str(refusal), **refusal.fields)
        except IsoscaleError as error:
            response = _of_error(error)
        except ClientDisconnect:
            return
        except (sqlite3.OperationalError, OSError) as error:
            _log.exception("%s %s", request.method, request.url.path)
            full = isinstance(error, sqlite3.OperationalError) or error.errno in (errno.ENOSPC, errno.EDQUOT)
            text = "the service cannot write it down" if full else "the service failed to answer"
            response = _error(507 if full else 500, f"{text}: {error}", remedy="make room on its disk, and ask again")
        except Exception:
            _log.exception("%s %s", request.method, request.url.path)
            response = _error(500, "the service failed to answer; its log says why")
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        route = self.routes.get(request.method)
        if route is None:
            # Without a token nobody learns which methods there are.
            await self._let_in(request, "viewer")
            raise Refusal(405, f"{request.method} is not for this path", allowed=sorted(self.routes))
        caller = await self._let_in(request, route.role)
        query = _converted(dict(request.query_params), route.query, strict=False) if route.query else None
        if route.max_body <= SMALL_BODY:
            return await self._handled(request, route, caller, query)
        async with self._large:
            return await self._handled(request, route, caller, query)

    async def _handled(self, request: Request, route: Route, caller: Caller, query: Any) -> Response:
        body = await _body(request, route)
        call = Call(caller=caller, path=request.path_params, query=query, body=body)
        if route.raw:
            answer: Response = await route.handler(call, request)
            return answer
        result = await anyio.to_thread.run_sync(route.handler, call)
        return _encoded(result, route, secure=self._secure)

    async def _let_in(self, request: Request, role: Any) -> Caller:
        headers = request.headers
        if role is None:
            if not guards.is_same_origin(request.method, headers, request.url.scheme) and "origin" in headers:
                raise Refusal(403, "a page of another origin must not ask this")
            return Caller(token=0, name="", role="viewer", tenant="-")
        secret, by_cookie = guards.bearer(headers), False
        if not secret and "authorization" not in headers:
            secret, by_cookie = guards.cookie(headers), True
        caller = await anyio.to_thread.run_sync(self._authenticate, secret)
        if caller is None:
            raise Refusal(401, "no valid token", remedy="give --token-file with the token of STATE/token, or your own")
        if by_cookie and not guards.is_same_origin(request.method, headers, request.url.scheme):
            raise Refusal(403, "a page of another origin must not ask this")
        if not caller.may(role):
            raise Refusal(403, f"needs the role {role}; this token has {caller.role}", remedy="use another token")
        return caller


async def _body(request: Request, route: Route) -> Any:
    """At most as many bytes as the route takes, within a time; decoded where the route says what it is."""
    declared = request.headers.get("content-length", "0")
    if not declared.isdecimal() or int(declared[:19]) > route.max_body:
        raise Refusal(413, f"at most {route.max_body:,} bytes here")
    data = bytearray()
    try:
        async with asyncio.timeout(_BODY_S):
            async for piece in request.stream():
                data += piece
                if len(data) > route.max_body:
                    raise Refusal(413, f"at most {route.max_body:,} bytes here")
    except TimeoutError:
        raise Refusal(408, f"the request took longer than {_BODY_S:.0f} s to come") from None
    if route.body is None:
        return bytes(data)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        # A form of somebody else's page can send everything but this without asking first.
        raise Refusal(415, "the body must be application/json")
    try:
        found = msgspec.json.decode(bytes(data) or b"{}")
    except (msgspec.DecodeError, RecursionError) as error:
        raise Refusal(400, f"the body is no JSON: {error}") from None
    return _converted(found, route.body, strict=True)


def _converted(found: Any, wanted: type[Any], *, strict: bool) -> Any:
    if not isinstance(found, dict):
        raise Refusal(400, "the body must be an object")
    names = [one.name for one in dataclasses.fields(wanted)]
    for name in found:
        if name not in names:
            raise Refusal(400, f"{name[:60]!r}: no such field; there are {', '.join(names)}", field=name[:60])
    try:
        return msgspec.convert(found, wanted, strict=strict)
    except msgspec.ValidationError as error:
        raise Refusal(400, str(error)) from None


def _encoded(result: Any, route: Route, *, secure: bool) -> Response:
    cookie = None
    if isinstance(result, Secret):
        cookie, result = result.cookie, result.answer
    content = result if isinstance(result, bytes | str) else msgspec.json.encode(result)
    response = Response(content, status_code=route.status, media_type=route.media)
    if cookie is not None:
        age = _COOKIE_S if cookie else 0
        response.set_cookie(
            guards.COOKIE, cookie, max_age=age, httponly=True, samesite="strict", secure=secure, path="/"
        )
    return response


def _of_error(error: IsoscaleError) -> Response:
    status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
    fields: dict[str, object] = {}
    if isinstance(error, UserError):
        fields = {"field": error.field, "problem": error.problem, "remedy": error.remedy}
    return _error(status, str(error), **fields)


def _error(status: int, text: str, **fields: object) -> Response:
    body = msgspec.json.encode({"error": {"text": text, **fields}})
    headers = {"www-authenticate": "Bearer"} if status == 401 else None
    return Response(body, status_code=status, media_type="application/json", headers=headers)


async def _not_there(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    return _error(status, "no such path")

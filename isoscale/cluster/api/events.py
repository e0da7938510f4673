"""`GET /events`: the event table as server-sent events. `id:` is the row, so `Last-Event-ID` goes on exactly there.

A reader that is slower than events come reads rows later; nothing is kept for it, and nothing is left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import anyio
import msgspec
from starlette.requests import Request
from starlette.responses import StreamingResponse

from isoscale.cluster.api.route import Call, Route
from isoscale.cluster.auth import TooManyError
from isoscale.cluster.service import Service
from isoscale.cluster.values import Event

__all__ = ["event_routes"]

#: a line at least so often: so a client that is gone is noticed
_ALIVE_S = 15.0
_PAGE = 500
_MAX_STREAMS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class EventQuery:
    #: events after this one; -1: from now on
    after: int = -1


class _Streams:
    num_open = 0


def event_routes(service: Service) -> tuple[Route, ...]:
    async def stream(call: Call, request: Request) -> StreamingResponse:
        return await _stream(service, call, request)

    return (
        Route(
            method="GET",
            path="/events",
            role="viewer",
            summary="Events as they happen; Last-Event-ID goes on from one",
            handler=stream,
            query=EventQuery,
            answer=Event,
            media="text/event-stream",
            raw=True,
        ),
    )


async def _stream(service: Service, call: Call, request: Request) -> StreamingResponse:
    if _Streams.num_open >= _MAX_STREAMS:
        raise TooManyError(f"{_MAX_STREAMS} streams of events are open, the most that are served; close other pages")
    after = min(call.query.after, 2**53)
    last = request.headers.get("last-event-id", "")
    if last.isdecimal() and len(last) < 19:
        after = int(last)
    if after < 0:
        after = await anyio.to_thread.run_sync(service.store.last_event)
    return StreamingResponse(_rows(service, call, after), media_type="text/event-stream")


async def _rows(service: Service, call: Call, after: int) -> AsyncIterator[bytes]:
    _Streams.num_open += 1
    woken = service.bell.subscribe()
    try:
        yield f"retry: 2000\nid: {after}\n\n".encode()
        while not service.is_closing:
            woken.clear()
            rows, looked = await anyio.to_thread.run_sync(_read, service, call.caller.only_tenant, after)
            for row in rows:
                after = row.id
                yield f"id: {row.id}\nevent: {row.event}\ndata: ".encode() + msgspec.json.encode(row) + b"\n\n"
            if len(rows) == _PAGE:
                continue
            after = max(after, looked)
            # A token that is revoked or expired meanwhile stops to be good here, too.
            if await anyio.to_thread.run_sync(service.is_token_good, call.caller.token) is False:
                return
            try:
                await asyncio.wait_for(woken.wait(), _ALIVE_S)
            except TimeoutError:
                yield b": alive\n\n"
    finally:
        _Streams.num_open -= 1
        service.bell.unsubscribe(woken)


def _read(service: Service, tenant: str | None, after: int) -> tuple[list[Event], int]:
    """Events, and up to which one all were looked at: what others did is not read again at every ring."""
    last = service.store.last_event()
    return service.store.events(after=after, tenant=tenant, limit=_PAGE), last

"""Calls an ASGI app as a client would, down to every header: no library between a test and what it sends."""

from __future__ import annotations

import asyncio
import atexit
import json
import threading
from dataclasses import dataclass
from typing import Any

_runner = asyncio.Runner()
atexit.register(_runner.close)


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        return str(self.json()["error"]["text"])


def call(
    app: Any,
    method: str,
    path: str,
    *,
    token: str = "",
    headers: dict[str, str] | None = None,
    body: Any = None,
    host: str | None = "127.0.0.1",
    limit: int = 10_000_000,
) -> Answer:
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    sent = {**({"host": host} if host is not None else {}), **({"authorization": f"Bearer {token}"} if token else {})}
    if body is not None:
        sent |= {"content-type": "application/json", "content-length": str(len(data))}
    sent |= headers or {}
    route, _, query = path.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": route,
        "raw_path": route.encode(),
        "query_string": query.encode(),
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in sent.items()],
        "server": ("127.0.0.1", 80),
        "client": ("127.0.0.1", 1),
        "root_path": "",
    }
    messages: list[dict[str, Any]] = []
    requests = [{"type": "http.request", "body": data, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if requests:
            return requests.pop()
        await asyncio.sleep(3600)
        raise AssertionError

    async def send(message: dict[str, Any]) -> None:
        messages.append(message)
        if sum(len(one.get("body", b"")) for one in messages) >= limit:
            raise asyncio.CancelledError

    async def run() -> None:
        try:
            async with asyncio.timeout(20):
                await app(scope, receive, send)
        except asyncio.CancelledError:
            pass

    # One loop for the thousands of calls of the main thread: a new one each would start threads of its own each time.
    (_runner.run if threading.current_thread() is threading.main_thread() else asyncio.run)(run())
    start = next(one for one in messages if one["type"] == "http.response.start")
    found = {name.decode(): value.decode("latin-1") for name, value in start["headers"]}
    return Answer(start["status"], found, b"".join(one.get("body", b"") for one in messages))

"""How a browser gets in: a session for a token or for the code of a link, and its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import anyio
import msgspec
from starlette.requests import Request
from starlette.responses import Response

from isoscale.cluster.api import guards
from isoscale.cluster.api.about import Info, info_for
from isoscale.cluster.api.route import SMALL_BODY, Call, Done, Route, Secret
from isoscale.cluster.auth import new_session
from isoscale.cluster.links import LINK_S
from isoscale.cluster.service import Service
from isoscale.errors import UserError

__all__ = ["session_routes"]

_SESSION_S = 12 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Of whoever asks, by cookie or token."""

    signed_in: bool
    info: Info | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginBody:
    """One of the two."""

    token: str = ""
    #: of a link that signs in once
    code: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkMade:
    #: goes behind `/sign-in#`; told once, works once
    code: str
    seconds: float


def session_routes(service: Service) -> tuple[Route, ...]:
    h = _Handlers(service)
    return (
        Route(
            method="GET",
            path="/session",
            role=None,
            summary="Who asks, and the service itself if that is somebody",
            handler=h.session,
            answer=Session,
            raw=True,
        ),
        Route(
            method="POST",
            path="/login",
            role=None,
            summary="A session's cookie for a token, or for the code of a link",
            handler=h.login,
            body=LoginBody,
            answer=Done,
            max_body=SMALL_BODY,
        ),
        Route(method="POST", path="/logout", role="viewer", summary="End the session", handler=h.logout, answer=Done),
        Route(
            method="POST",
            path="/api/links",
            role="viewer",
            summary="The code of a link that signs a browser in, once, as the caller",
            handler=h.link,
            answer=LinkMade,
            status=201,
        ),
    )


class _Handlers:
    def __init__(self, service: Service) -> None:
        self._service, self._store = service, service.store

    async def session(self, call: Call, request: Request) -> Any:
        secret = guards.bearer(request.headers) or guards.cookie(request.headers)
        found = await anyio.to_thread.run_sync(self._of, secret)
        return Response(msgspec.json.encode(found), media_type="application/json")

    def _of(self, secret: str) -> Session:
        caller = self._service.authenticate(secret)
        if caller is None:
            return Session(signed_in=False)
        return Session(signed_in=True, info=info_for(self._service, caller))

    def login(self, call: Call) -> Secret:
        """The cookie is a token of its own, that ends with the one it was made for at the latest."""
        body: LoginBody = call.body
        now = self._service.now()
        if body.code:
            found = self._service.links.take(body.code, now)
            # The token may have been revoked since the link was made.
            if found is None or not self._service.is_token_good(found.token):
                remedy = "use your token, or make another link with isoscale dashboard"
                raise UserError(field="code", value="...", problem="used before, or too old", remedy=remedy)
        else:
            found = self._service.authenticate(body.token)
            if found is None:
                raise UserError(field="token", value="...", problem="not a valid token", remedy="see STATE/token")
        return Secret(cookie=new_session(self._store, found, _SESSION_S, now), answer=Done())

    def logout(self, call: Call) -> Secret:
        with self._store.write(now=self._service.now(), by=call.caller.name) as tx:
            if tx.end_session(call.caller.token):
                tx.event("token_revoked", token=call.caller.token)
        return Secret(cookie="", answer=Done())

    def link(self, call: Call) -> LinkMade:
        return LinkMade(code=self._service.links.make(call.caller, self._service.now()), seconds=LINK_S)

"""Routes by which people and programs get in: the service itself, sessions of browsers, links, tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import anyio
import msgspec
from starlette.requests import Request
from starlette.responses import Response

from isoscale import limits
from isoscale.cluster.api import guards
from isoscale.cluster.api.route import SMALL_BODY, Call, Done, Route, Secret
from isoscale.cluster.auth import Caller, NotFoundError, new_session, new_token
from isoscale.cluster.links import LINK_S
from isoscale.cluster.service import Service
from isoscale.cluster.values import Role, TokenShown
from isoscale.errors import UserError

__all__ = ["Info", "session_routes"]

_SESSION_S = 12 * 3600.0
#: of tokens: what the database can count to, and more
_NUMBER = limits.Range(0, 2**53)


@dataclass(frozen=True, slots=True, kw_only=True)
class Info:
    version: str
    policy: str
    policies: dict[str, str]
    term: int
    #: of the newest event: what `/events` goes on from
    event: int
    now_s: float
    you: str
    role: Role
    tenant: str


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


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBody:
    name: str
    role: Role
    tenant: str = ""
    expires_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenMade:
    id: int
    #: told once
    token: str


def session_routes(service: Service) -> tuple[Route, ...]:
    h = _Handlers(service)
    small = SMALL_BODY
    return (
        Route(method="GET", path="/api", role="viewer", summary="The service itself", handler=h.info, answer=Info),
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
            max_body=small,
        ),
        Route(method="POST", path="/logout", role="viewer", summary="End the session", handler=h.logout, answer=Done),
        Route(
            method="POST",
            path="/api/links",
            role="viewer",
            summary="The code of a link that signs a browser in, once, as the caller",
            handler=h.make_link,
            answer=LinkMade,
            status=201,
        ),
        Route(
            method="GET",
            path="/api/tokens",
            role="admin",
            summary="Tokens, without secrets",
            handler=h.tokens,
            answer=list[TokenShown],
        ),
        Route(
            method="POST",
            path="/api/tokens",
            role="admin",
            summary="Make a token; its secret is told once",
            handler=h.make_token,
            body=TokenBody,
            answer=TokenMade,
            status=201,
            max_body=small,
        ),
        Route(
            method="DELETE",
            path="/api/tokens/{token}",
            role="admin",
            summary="Revoke a token",
            handler=h.revoke_token,
            answer=Done,
            errors=(404,),
        ),
    )


class _Handlers:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._store = service.store

    def info(self, call: Call) -> Info:
        return self._info(call.caller)

    def _info(self, caller: Caller) -> Info:
        service = self._service
        return Info(
            version=service.version,
            policy=service.picture().policy,
            policies=dict(service.policies()),
            term=self._store.term,
            event=self._store.last_event(),
            now_s=service.now(),
            you=caller.name,
            role=caller.role,
            tenant=caller.tenant,
        )

    # ---- sessions ----

    async def session(self, call: Call, request: Request) -> Any:
        secret = guards.bearer(request.headers) or guards.cookie(request.headers)
        found = await anyio.to_thread.run_sync(self._session, secret)
        return Response(msgspec.json.encode(found), media_type="application/json")

    def _session(self, secret: str) -> Session:
        caller = self._service.authenticate(secret)
        return Session(signed_in=False) if caller is None else Session(signed_in=True, info=self._info(caller))

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

    def make_link(self, call: Call) -> LinkMade:
        return LinkMade(code=self._service.links.make(call.caller, self._service.now()), seconds=LINK_S)

    # ---- tokens ----

    def tokens(self, call: Call) -> list[TokenShown]:
        return self._store.tokens()

    def make_token(self, call: Call) -> TokenMade:
        body: TokenBody = call.body
        made, secret = new_token(
            self._store,
            name=body.name,
            role=body.role,
            tenant=body.tenant,
            expires_s=body.expires_s,
            now=self._service.now(),
            by=call.caller.name,
        )
        return TokenMade(id=made, token=secret)

    def revoke_token(self, call: Call) -> Done:
        text = call.path["token"]
        number = limits.whole(text, "token", _NUMBER) if limits.is_whole(text) else -1
        with self._store.write(now=self._service.now(), by=call.caller.name) as tx:
            if number < 0 or not tx.revoke_token(number):
                raise NotFoundError(f"token={text[:40]}: no such token, or revoked before; see GET /api/tokens")
            tx.event("token_revoked", token=number)
        return Done()

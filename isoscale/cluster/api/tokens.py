"""Tokens: who has one, a new one, the end of one."""

from __future__ import annotations

from dataclasses import dataclass

from isoscale import limits
from isoscale.cluster.api.route import ROW_NUMBER, SMALL_BODY, Call, Done, Route
from isoscale.cluster.auth import NotFoundError, new_token
from isoscale.cluster.service import Service
from isoscale.cluster.values import Role, TokenShown

__all__ = ["token_routes"]


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


def token_routes(service: Service) -> tuple[Route, ...]:
    h = _Handlers(service)
    return (
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
            handler=h.make,
            body=TokenBody,
            answer=TokenMade,
            status=201,
            max_body=SMALL_BODY,
        ),
        Route(
            method="DELETE",
            path="/api/tokens/{token}",
            role="admin",
            summary="Revoke a token",
            handler=h.revoke,
            answer=Done,
            errors=(404,),
        ),
    )


class _Handlers:
    def __init__(self, service: Service) -> None:
        self._service, self._store = service, service.store

    def tokens(self, call: Call) -> list[TokenShown]:
        return self._store.tokens()

    def make(self, call: Call) -> TokenMade:
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

    def revoke(self, call: Call) -> Done:
        text = call.path["token"]
        number = limits.whole(text, "token", ROW_NUMBER) if limits.is_whole(text) else -1
        with self._store.write(now=self._service.now(), by=call.caller.name) as tx:
            if number < 0 or not tx.revoke_token(number):
                raise NotFoundError(f"token={text[:40]}: no such token, or revoked before; see GET /api/tokens")
            tx.event("token_revoked", token=number)
        return Done()

"""A route as a value: method, path, who may, what goes in and comes out. The app is made of these and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from isoscale import limits
from isoscale.cluster.auth import Caller
from isoscale.cluster.values import Role

__all__ = ["NO_BODY", "ROWS", "ROW_NUMBER", "SMALL_BODY", "Call", "Done", "Route", "Secret"]

Method = Literal["GET", "POST", "PUT", "DELETE"]
NO_BODY, SMALL_BODY = 0, 256 * 1024
#: in one answer
ROWS = limits.Range(1, 1_000)
#: of jobs, events and tokens: what the database can count to, and more
ROW_NUMBER = limits.Range(0, 2**53)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request that was let in."""

    caller: Caller
    path: Mapping[str, str]
    #: of the types that the route declares
    query: Any = None
    body: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    method: Method
    path: str
    #: None: for everybody, without a token
    role: Role | None
    summary: str
    handler: Callable[..., Any]
    #: dataclasses; None: none is read
    body: type[Any] | None = None
    query: type[Any] | None = None
    answer: Any = None
    status: int = 200
    max_body: int = NO_BODY
    #: of the answer, where it is not JSON
    media: str = "application/json"
    #: the handler gets the raw body, as it comes, or answers as it goes
    raw: bool = False
    errors: tuple[int, ...] = field(default=())

    @property
    def is_safe(self) -> bool:
        return self.method == "GET"


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """An answer that also sets the session's cookie; "" takes it away."""

    cookie: str
    answer: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    ok: bool = True

"""What every request passes before a handler sees it: Host, size, token, role, same origin. Pure decisions.

- **Host** must be one that the service answers to: a page of somebody else's that rebinds its name to this address
  sends its own name (DNS rebinding).
- **Unsafe methods with a cookie** must come from a page of this service, by `Sec-Fetch-Site` or `Origin`; a cookie goes
  along by itself, a bearer token does not. Safe is what is on the list, everything else is not.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

__all__ = ["COOKIE", "HEADERS", "SAFE", "allowed_hosts", "bearer", "cookie", "is_allowed_host", "is_same_origin"]

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
COOKIE = "isoscale_session"

#: of every answer, errors included
HEADERS: tuple[tuple[str, str], ...] = (
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cache-control", "no-store"),
)


def allowed_hosts(listen: str, names: Iterable[str] = ()) -> frozenset[str]:
    """Names without ports: the address itself, this machine's own names for loopback, and what the operator adds."""
    own = {"127.0.0.1", "localhost", "::1"} if _is_local(listen) or listen in ("0.0.0.0", "::") else set[str]()
    return frozenset({*own, listen.lower(), *(name.lower() for name in names)} - {"0.0.0.0", "::"})


def is_allowed_host(header: str | None, allowed: frozenset[str]) -> bool:
    """
    >>> is_allowed_host("localhost:8080", frozenset({"localhost"})), is_allowed_host("evil.example", frozenset())
    (True, False)
    """
    if not header or len(header) > 255:
        return False
    try:
        parts = urlsplit(f"//{header}")
        host, _ = parts.hostname, parts.port
    except ValueError:
        return False
    # Anything but HOST[:PORT] is not a host, whatever a parser makes of it.
    return host is not None and host in allowed and not any(letter in header for letter in "/@?#\\ ")


def is_same_origin(method: str, headers: Mapping[str, str], scheme: str) -> bool:
    """Whether a request that proves itself by a cookie may change something."""
    if method in SAFE:
        return True
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = headers.get("origin")
    return origin is not None and origin.lower() == f"{scheme}://{headers.get('host', '')}".lower()


def bearer(headers: Mapping[str, str]) -> str:
    kind, _, secret = headers.get("authorization", "").partition(" ")
    return secret.strip() if kind.lower() == "bearer" else ""


def cookie(headers: Mapping[str, str]) -> str:
    for part in headers.get("cookie", "").split(";"):
        name, _, value = part.strip().partition("=")
        if name == COOKIE:
            return value
    return ""


def _is_local(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"

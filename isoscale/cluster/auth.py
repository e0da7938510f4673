"""Who may do what: tokens, roles, tenants. Secrets are 256 random bits; the database has their SHA-256 only.

    viewer    sees jobs of its tenant, devices, events
    user      and submits jobs for its tenant, and pauses, resumes, cancels, scales them
    operator  and does so for every tenant, and lends and reclaims devices
    admin     and makes and revokes tokens

A token with tenant "" is for every tenant. Plain SHA-256 suffices: nobody guesses 256 random bits.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from pathlib import Path

from isoscale.cluster.store import Store
from isoscale.cluster.values import MAX_TEXT, Role, TokenShown, check_name
from isoscale.errors import IsoscaleError, UserError
from isoscale.protocol.files import read_small, write_text_atomic

__all__ = [
    "ROLES",
    "Caller",
    "ConflictError",
    "ForbiddenError",
    "NotFoundError",
    "TooManyError",
    "authenticate",
    "first_token",
    "hash_of",
    "is_good",
    "new_session",
    "new_token",
]

ROLES: tuple[Role, ...] = ("viewer", "user", "operator", "admin")
_PREFIX = "isc_"
_SESSION = "-session"
_MAX_CHARS = 200


class ForbiddenError(IsoscaleError):
    """Raised when a token's role or tenant does not allow what was asked."""

    exit_code = 2


class NotFoundError(IsoscaleError):
    """Raised when there is no such thing, or none that the caller may know of."""

    exit_code = 2


class ConflictError(IsoscaleError):
    """Raised when what was asked does not fit what is there now."""

    exit_code = 2


class TooManyError(IsoscaleError):
    """Raised when a limit is reached."""

    exit_code = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who asks."""

    token: int
    name: str
    role: Role
    #: "" for every tenant
    tenant: str

    def may(self, role: Role) -> bool:
        return ROLES.index(self.role) >= ROLES.index(role)

    def sees(self, tenant: str) -> bool:
        return not self.tenant or self.tenant == tenant or self.may("operator")

    @property
    def only_tenant(self) -> str | None:
        """The one tenant whose jobs it sees; None: all."""
        return None if not self.tenant or self.may("operator") else self.tenant

    def submits_for(self, tenant: str) -> str:
        """The tenant of a job that it submits. Raises ForbiddenError."""
        if not tenant:
            return self.tenant or "default"
        if self.tenant and tenant != self.tenant and not self.may("operator"):
            raise ForbiddenError(f"tenant={tenant}: this token is for tenant {self.tenant}; leave --tenant out")
        return tenant


def hash_of(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def new_token(
    store: Store,
    *,
    name: str,
    role: Role,
    tenant: str,
    expires_s: float | None,
    now: float,
    by: str = "",
    session_of: int = 0,
) -> tuple[int, str]:
    """Its id and its secret, which is told once and stored nowhere. Raises UserError."""
    check_name("name", name)
    check_name("tenant", tenant, empty=True)
    if role not in ROLES:
        raise UserError(field="role", value=role, problem="no such role", remedy=f"give one of {', '.join(ROLES)}")
    if expires_s is not None and not expires_s > now:
        raise UserError(field="expires_s", value=expires_s, problem="is past", remedy="give a later moment, or none")
    secret = _PREFIX + secrets.token_urlsafe(32)
    with store.write(now=now, by=by) as tx:
        token = tx.add_token(name, hash_of(secret), role, tenant, expires_s, session_of)
        tx.event("token_made", token=token, name=name, role=role, for_tenant=tenant, expires_s=expires_s)
    return token, secret


def new_session(store: Store, of: Caller, seconds: float, now: float) -> str:
    """A token's secret of the same role and tenant, for so long at most, and not longer than the one it stands for."""
    found = store.token_with_id(of.token)
    expires = now + seconds if found is None or found.expires_s is None else min(now + seconds, found.expires_s)
    name = f"{of.name.removesuffix(_SESSION)[: MAX_TEXT - len(_SESSION)]}{_SESSION}"
    _, secret = new_token(
        store, name=name, role=of.role, tenant=of.tenant, expires_s=expires, now=now, by=of.name, session_of=of.token
    )
    return secret


def authenticate(store: Store, secret: str, now: float) -> Caller | None:
    """None for a secret that nobody has, or that is revoked or expired."""
    if not secret or len(secret) > _MAX_CHARS:
        return None
    # Looked up by its hash: the time that takes says nothing of the secret.
    found = store.token(hash_of(secret))
    if found is None or not is_good(found, now):
        return None
    return Caller(token=found.id, name=found.name, role=found.role, tenant=found.tenant)


def is_good(token: TokenShown, now: float) -> bool:
    """Neither revoked nor expired."""
    return token.revoked_s is None and (token.expires_s is None or token.expires_s > now)


def first_token(store: Store, path: Path, now: float) -> None:
    """The administrator's own, in a file of mode 0600: made when there is none, or it does not work any more."""
    try:
        if authenticate(store, read_small(path, 4096).decode("ascii", "replace").strip(), now) is not None:
            path.chmod(0o600)
            return
    except OSError:
        pass
    _, secret = new_token(store, name="admin", role="admin", tenant="", expires_s=None, now=now)
    write_text_atomic(path, f"{secret}\n", mode=0o600)

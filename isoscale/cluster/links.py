"""Links that sign a browser in once: a random code in the part of an address that no browser sends to a server.

The page takes it from there and posts it, so it is in no log and no Referer. It works once and for some minutes; what
is kept of it is a hash, in memory only: a restart ends all of them.
"""

from __future__ import annotations

import secrets
import threading

from isoscale.cluster.auth import Caller, hash_of

__all__ = ["LINK_S", "Links", "address"]

LINK_S = 600.0
_MAX_OPEN = 256


class Links:
    """For any thread."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[Caller, float]] = {}
        self._lock = threading.Lock()

    def make(self, caller: Caller, now: float) -> str:
        """The code of a link that signs in as `caller`. Of too many the oldest stop to work."""
        code = secrets.token_urlsafe(32)
        with self._lock:
            self._open = {key: one for key, one in self._open.items() if one[1] > now}
            while len(self._open) >= _MAX_OPEN:
                del self._open[next(iter(self._open))]
            self._open[hash_of(code)] = (caller, now + LINK_S)
        return code

    def take(self, code: str, now: float) -> Caller | None:
        """Whom it signs in; never twice."""
        with self._lock:
            found = self._open.pop(hash_of(code), None)
        return found[0] if found is not None and found[1] > now else None


def address(url: str, code: str) -> str:
    return f"{url}/sign-in#{code}"

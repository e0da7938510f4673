"""Tells the operator's own addresses what becomes of jobs: one POST per event, in order, at least once.

Addresses come from whoever starts the service, never from a client: the service must not be made to call whatever a
client names. An address that does not answer is tried again, less and less often; nothing waits for it, and what it
missed is in the event table. The place up to which all was delivered is in STATE/webhooks.json.
"""

from __future__ import annotations

import contextlib
import http.client
import logging
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from isoscale.cluster.store import Store
from isoscale.cluster.values import Event
from isoscale.errors import UserError
from isoscale.protocol.files import read_small_json, write_json_atomic

__all__ = ["Webhooks", "check_address"]

_log = logging.getLogger(__name__)

_ANSWER_S = 10.0
_SOONEST_S, _LATEST_S = 1.0, 300.0
_PAGE = 100


def check_address(url: str) -> str:
    """Raises UserError."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UserError(field="--webhook", value=url, problem="not an address", remedy="give https://HOST/PATH")
    return url


class Webhooks:
    """A thread for each address: one that does not answer delays no other."""

    def __init__(self, store: Store, path: Path, urls: Sequence[str]) -> None:
        self._store, self._path = store, path
        self._lock = threading.Lock()
        self._places = self._load(urls)
        self._is_closing = threading.Event()
        self._woken = {url: threading.Event() for url in urls}
        self._threads = [threading.Thread(target=self._work, args=(url,), name="webhook", daemon=True) for url in urls]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def ring(self, event: int = 0) -> None:
        """Something happened."""
        for woken in self._woken.values():
            woken.set()

    def close(self) -> None:
        self._is_closing.set()
        self.ring()
        for thread in self._threads:
            thread.join(2)

    def _work(self, url: str) -> None:
        while not self._is_closing.is_set():
            self._woken[url].clear()
            events = self._store.events(after=self._places[url], limit=_PAGE)
            for event in events:
                if event.event.startswith("job_") and not self._deliver(url, event):
                    return
                self._places[url] = event.id
            if events:
                self._save()
            else:
                self._woken[url].wait()

    def _deliver(self, url: str, event: Event) -> bool:
        """False if the service ends first."""
        pause_s = _SOONEST_S
        while not self._is_closing.is_set():
            problem = post(url, msgspec.json.encode(event))
            if not problem:
                return True
            _log.warning("webhook %s: %s; again in %.0f s", url, problem, pause_s)
            self._is_closing.wait(pause_s)
            pause_s = min(_LATEST_S, 2 * pause_s)
        return False

    def _load(self, urls: Sequence[str]) -> dict[str, int]:
        """An address that is new hears of what happens from now on."""
        found: dict[str, int] = {}
        with contextlib.suppress(OSError, ValueError, TypeError):
            found = {str(url): int(place) for url, place in read_small_json(self._path).items()}
        last = self._store.last_event()
        return {url: min(found.get(url, last), last) for url in urls}

    def _save(self) -> None:
        with self._lock, contextlib.suppress(OSError):
            write_json_atomic(self._path, self._places, mode=0o600)


def post(url: str, data: bytes, open_: Callable[..., http.client.HTTPResponse] | None = None) -> str:
    """ "" if it was taken, else why not. An answer that says that the request itself is wrong (4xx) counts as taken."""
    request = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json"}, method="POST")
    try:
        with (open_ or _opener.open)(request, timeout=_ANSWER_S):
            return ""
    except urllib.error.HTTPError as error:
        return f"answers {error.code}" if error.code >= 500 or error.code == 429 else ""
    except (OSError, http.client.HTTPException, ValueError) as error:
        return str(error) or type(error).__name__


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """What was meant for one address goes to no other."""

    def redirect_request(self, *args: object) -> None:
        return None


_opener = urllib.request.build_opener(_NoRedirect)

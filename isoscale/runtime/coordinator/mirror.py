"""What must survive the coordinator's machine, brought to the run's storage beside everything else.

One thread does it, in order, so that a checkpoint never counts before the events that belong to it are there. Training
does not wait for it; a storage that is away costs a warning, and is caught up with later. Finds out when another
coordinator has taken the job over.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from isoscale.runtime.checkpoint.stored import StoredCheckpoints
from isoscale.runtime.code.fetching import keep_code
from isoscale.runtime.code.store import code_directory
from isoscale.runtime.control.server import ControlServer
from isoscale.runtime.storage import names
from isoscale.runtime.storage.client import Storage
from isoscale.runtime.storage.counting import View
from isoscale.runtime.storage.ledger import is_superseded
from isoscale.runtime.storage.pieces import GrowingFile
from isoscale.runtime.storage.records import Address, written
from isoscale.runtime.storage.restoring import fetch_result

__all__ = ["Mirror"]

_EVERY_S = 1.0
#: how long the last words may take
_LAST_S = 60.0
Value = TypeVar("Value")


class SupersededError(Exception):
    """Raised when another coordinator has the job now."""


class Mirror:
    def __init__(self, storage: Storage, url: str, out: Path, term: int, view: View, keep: int) -> None:
        """`view`: what the term goes on with, all of which `out` has. `keep`: how many checkpoints.

        Raises OSError.
        """
        self.url = url
        self.term = term
        self.checkpoints = StoredCheckpoints(storage, term, view, keep)
        self._storage = storage
        self._out = out
        self._pool = ThreadPoolExecutor(1, "storage")
        before = sum(piece.size for piece in view.events)
        prefix = names.of_term(term, "events")
        self._events = GrowingFile(storage, out / "events.jsonl", prefix, ".jsonl", start=before)
        #: where this coordinator is, once it is known
        self._address = b""
        self._kept: dict[str, bytes] = {}
        keep_code(storage, code_directory(out))

    async def call(self, work: Callable[[], Value]) -> Value:
        """In the thread that talks to the storage, after all that was asked of it before."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def announce(self, url: str, warn: Callable[[str], None], on_superseded: Callable[[], None]) -> None:
        """Where executors of other machines find this coordinator."""
        self._address = written(Address(url=url, term=self.term))
        try:
            await self.call(self.keep_all)
        except OSError as error:
            warn(self._is_away(error))
        except SupersededError:
            on_superseded()

    def _is_away(self, error: OSError) -> str:
        return f"{self.url} cannot be written ({error.strerror or error}); it is tried again"

    async def follow(
        self, server: ControlServer, warn: Callable[[str], None], on_superseded: Callable[[], None]
    ) -> None:
        """Until it is cancelled. Executors keep what they have told until it is in the storage, and tell it again to
        another coordinator if it never comes there."""
        told = False
        while True:
            await asyncio.sleep(_EVERY_S)
            heard = server.heard()
            try:
                await self.call(self.keep_all)
                server.acknowledge(heard)
                told = False
            except SupersededError:
                on_superseded()
                return
            except OSError as error:
                if not told:
                    warn(self._is_away(error))
                told = True

    def keep_all(self) -> None:
        """Raises SupersededError, and OSError."""
        if is_superseded(self._storage, self.term):
            raise SupersededError
        if self._address:  # first: executors that are alone wait for it
            self._keep(names.ADDRESS, self._address)
        self.keep_events()
        control = self._out / "control"
        for name, path in (
            (names.JOB, control),
            (names.EXECUTORS, control),
            (names.IMPORTS, code_directory(self._out)),
            (names.SUMMARY, self._out),
        ):
            with contextlib.suppress(FileNotFoundError):
                self._keep(name, (path / name).read_bytes())

    def _keep(self, name: str, data: bytes) -> None:
        if self._kept.get(name) != data:
            self._storage.write(names.of_term(self.term, name), data)
            self._kept[name] = data

    def keep_events(self) -> None:
        self._events.keep()

    async def is_superseded(self) -> bool:
        """Another coordinator has the job. False where the storage cannot tell."""
        try:
            return await self.call(lambda: is_superseded(self._storage, self.term))
        except OSError:
            return False

    async def fetch_result(self) -> str:
        """Put the job's result into its directory; why that cannot be, or ""."""
        try:
            await self.call(lambda: fetch_result(self._storage, self._out / "final.pt"))
        except OSError as error:
            return f"final.pt is in {self.url} only: {error.strerror or error}"
        return ""

    async def close(self, *, ended: bool) -> str:
        """The last words; why they could not be said, or "". `ended`: nobody is to look for this coordinator."""
        try:
            async with asyncio.timeout(_LAST_S):
                await self.call(self.keep_all)
                if ended:
                    await self.call(lambda: self._storage.remove(names.of_term(self.term, names.ADDRESS)))
        except SupersededError:
            return ""
        except (OSError, TimeoutError) as error:
            return f"{self.url} lacks the end of the run ({error}): isoscale resume brings it there"
        finally:
            self._pool.shutdown(wait=False, cancel_futures=True)
        return ""

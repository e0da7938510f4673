"""A running job that is known by the URL of its storage, on a machine that has no directory of it."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from isoscale.backends.seam import Device
from isoscale.errors import UserError
from isoscale.protocol.events import read_events
from isoscale.protocol.messages import Grant
from isoscale.protocol.status import JobStatus
from isoscale.runtime.control.ended import over_error, status_of
from isoscale.runtime.control.job_handle import JobHandle, RequestRefusedError
from isoscale.runtime.storage import names
from isoscale.runtime.storage.client import open_storage
from isoscale.runtime.storage.ledger import find_address, look, newest_terms
from isoscale.runtime.storage.pieces import joined

__all__ = ["StoredJobHandle", "stored_status_after"]

#: how long a coordinator's last words may take to be in the storage
_LAST_WORDS_S, _POLL_S = 20.0, 0.5


class StoredJobHandle(JobHandle):
    field = "URL"

    def __init__(self, url: str, *, ca_file: Path | None = None, answer_s: float = 30.0) -> None:
        """Raises UserError if no run is in this storage, none runs, or its coordinator does not answer."""
        self._url = url
        self._storage = open_storage(url, self.field)
        self._begin(ca_file, answer_s)

    @property
    def place(self) -> str:
        return self._url

    def _grant(self, number: int, devices: Sequence[Device | str], batch: int | None, told: Grant) -> dict[str, Any]:
        """A grant is a file of the run's directory."""
        raise RequestRefusedError(f"{self.place}: no service runs this job")

    def _find(self) -> tuple[str, str]:
        try:
            address = find_address(self._storage)
            if address is not None:
                return address.url, self._storage.read(names.TOKEN, 4096).decode(errors="replace").strip()
            has_begun = bool(newest_terms(self._storage).based)
        except OSError as error:
            raise _unreadable(self._url, error) from None
        if (status := stored_status_after(self._url)) is not None:
            raise over_error(self.field, self._url, status)
        problem, remedy = "no coordinator runs this job", f"start one: isoscale resume {self._url}"
        if not has_begun:
            problem, remedy = "there is no run", "give the --storage of isoscale run"
        raise UserError(field=self.field, value=self._url, problem=problem, remedy=remedy)

    def _absent(self, *, asked: bool) -> UserError:
        """The address may be of a coordinator that was killed, or of one that this machine cannot reach."""
        problem = "its coordinator does not answer"
        if asked:
            problem = "the job ended, or its coordinator is gone or out of reach"
        remedy = f"see whether this machine reaches it; if it is gone, start another one: isoscale resume {self._url}"
        return UserError(field=self.field, value=self._url, problem=problem, remedy=remedy)

    def _events_left_behind(self) -> Iterator[dict[str, Any]]:
        """A coordinator takes its address away when its last words are there."""
        deadline = time.monotonic() + _LAST_WORDS_S
        while find_address(self._storage) is not None and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        with tempfile.TemporaryDirectory(prefix="isoscale-") as directory:
            path = Path(directory) / "events.jsonl"
            joined(self._storage, look(self._storage, lambda _: None).events, path)
            yield from read_events(path)


def stored_status_after(url: str) -> JobStatus | None:
    """As `ended.status_after`. Raises UserError if the storage cannot be read."""
    storage = open_storage(url, StoredJobHandle.field)
    try:
        if find_address(storage) is not None:
            return None
        summary = json.loads(storage.read(names.of_term(newest_terms(storage).based, names.SUMMARY)))
        # Where the coordinator had it is on a machine that may be gone.
        return status_of({**summary, "result": ""}, f"{url} (isoscale resume {url} brings it here)")
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    except OSError as error:
        raise _unreadable(url, error) from None


def _unreadable(url: str, error: OSError) -> UserError:
    problem = f"the run cannot be read ({error.strerror or error})"
    return UserError(field=StoredJobHandle.field, value=url, problem=problem, remedy="check address and credentials")

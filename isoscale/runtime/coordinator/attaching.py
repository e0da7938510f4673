"""How a coordinator comes by its term in a run's storage: for a new run, or by taking one over.

A directory has a lock; a storage has none. Whoever wants to take over first asks the coordinator that stands there: if
that answers, the job is its. If it does not, the next term is claimed, which one of all who try gets.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

from websockets.exceptions import WebSocketException

from isoscale.errors import UserError
from isoscale.runtime.control.executor_link import open_socket
from isoscale.runtime.coordinator.mirror import Mirror
from isoscale.runtime.storage import names
from isoscale.runtime.storage.client import Storage, check_conditional, open_storage
from isoscale.runtime.storage.counting import View, terms_in
from isoscale.runtime.storage.ledger import begin_run, claim_term, find_address, look, newest_terms
from isoscale.runtime.storage.pieces import joined
from isoscale.runtime.storage.records import written
from isoscale.runtime.storage.restoring import put_result

__all__ = ["Attachment", "attach", "undone_on_error"]

_ANSWER_S = 3.0
#: from a claim to the address of its holder
_WORD_S, _POLL_S = 5.0, 0.2


class Attachment:
    """A run's storage before there is a coordinator."""

    def __init__(self, storage: Storage, url: str) -> None:
        self._storage = storage
        self._url = url
        self._view = View()

    def begin(self, known: int, token: str) -> int:
        """The first term of a new run: for `Control`. Raises UserError and OSError."""
        begin_run(self._storage, self._url, token)
        return claim_term(self._storage, self._url)

    def take_over(self, known: int, token: str) -> int:
        """The next term of a run of which this directory knows up to `known`. Raises UserError and OSError.

        A directory that a service has made knows of none, until its first coordinator has begun.
        """
        terms = newest_terms(self._storage)
        if known == terms.claimed == 0:
            return self.begin(known, token)
        if terms.based > known:
            problem = f"the run has gone on elsewhere: term {terms.based}, and {known} is the last that is known here"
            raise UserError(field="DIR", value=self._url, problem=problem, remedy=f"isoscale resume {self._url}")
        if known > terms.claimed:
            problem = f"knows nothing of term {known}, in which the run is"
            raise UserError(field="storage", value=self._url, problem=problem, remedy="is it the storage of this run?")
        self._wait_for_word()
        address = find_address(self._storage)
        if address is not None and _answers(address.url, token):
            problem = f"another coordinator runs this job, at {address.url} (term {address.term})"
            raise UserError(field="storage", value=self._url, problem=problem, remedy="stop it there, or wait for it")
        return claim_term(self._storage, self._url)

    def _wait_for_word(self) -> None:
        """Whoever has just claimed a term, and has neither ended nor said where it is, may be about to say so."""
        deadline = time.monotonic() + _WORD_S
        while time.monotonic() < deadline:
            keys = self._storage.list(names.TERMS)
            term = terms_in(keys).claimed
            if term < 1 or any(names.of_term(term, name) in keys for name in (names.ADDRESS, names.SUMMARY)):
                return
            time.sleep(_POLL_S)

    def forget_results(self, until: int) -> None:
        """With the term in hand: the job goes on beyond ends that it came to before this step. Raises UserError."""
        with self._explained():
            for key in self._storage.list("results/"):
                if (step := names.step_of_result(key)) is not None and step < until:
                    self._storage.remove(key)

    def settle(self, out: Path, term: int, warn: Callable[[str], None]) -> None:
        """With the term in hand: the directory has all that counts, and this term's word counts from here on.

        Before anybody reads the directory. Raises UserError.
        """
        with self._explained():
            self._view = look(self._storage, warn)
            put_result(self._storage, out)
            events = out / "events.jsonl"
            if not events.exists() or events.stat().st_size < sum(piece.size for piece in self._view.events):
                joined(self._storage, self._view.events, events)
            self._storage.write(names.base(term), written(self._view.as_base(term)))

    def mirror(self, out: Path, term: int, keep: int) -> Mirror:
        """After `settle`, when the directory holds the job's code. Raises UserError."""
        with self._explained():
            return Mirror(self._storage, self._url, out, term, self._view, keep)

    def undo(self) -> None:
        """Nothing came of a new run: whoever tries again finds the place empty."""
        with contextlib.suppress(OSError):
            for key in (*self._storage.list(names.TERMS), names.TOKEN, names.RUN):
                self._storage.remove(key)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            problem = f"cannot be used ({error.strerror or error})"
            remedy = "check address and credentials, then try again"
            raise UserError(field="storage", value=self._url, problem=problem, remedy=remedy) from None


def attach(url: str) -> Attachment | None:
    """None for a run whose directory is all that it has. Raises UserError."""
    if not url:
        return None
    storage = open_storage(url)
    check_conditional(storage, url)
    return Attachment(storage, url)


@contextlib.contextmanager
def undone_on_error(attachment: Attachment | None) -> Iterator[None]:
    """Of a new run, which has come to nothing."""
    try:
        yield
    except BaseException:
        if attachment is not None:
            attachment.undo()
        raise


def _answers(url: str, token: str) -> bool:
    """Whether a coordinator of this very run is there. One behind TLS is believed to be."""
    parts = urlsplit(url)
    try:
        socket.create_connection((parts.hostname or "", parts.port or 0), timeout=_ANSWER_S).close()
        if parts.scheme == "wss":
            return True
        with contextlib.closing(open_socket(f"{url}/control", token, None)):
            return True
    except (OSError, WebSocketException):
        return False

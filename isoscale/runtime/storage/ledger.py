"""What a run's storage tells of its terms, its end and its coordinator, and how a term is claimed.

Does as `storage.counting` says. Reads and writes small objects only.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import socket
from collections.abc import Callable

from isoscale.errors import UserError
from isoscale.runtime.storage import names
from isoscale.runtime.storage.client import Storage
from isoscale.runtime.storage.counting import Terms, View, entries_of, next_term, pieces_of, terms_in, view
from isoscale.runtime.storage.records import Address, Base, Claim, Damaged, Entry, Result, read, written

__all__ = [
    "begin_run",
    "claim_term",
    "find_address",
    "is_superseded",
    "look",
    "newest_result",
    "newest_terms",
]


def newest_terms(storage: Storage) -> Terms:
    """Raises OSError."""
    return terms_in(storage.list(names.TERMS))


def look(storage: Storage, warn: Callable[[str], None]) -> View:
    """What counts now. Raises OSError."""
    sizes = storage.list(names.TERMS)
    term = terms_in(sizes).based
    while term > 0:
        try:
            base = read(storage.read(names.base(term)), Base)
        except (Damaged, FileNotFoundError) as reason:
            if names.base(term) in sizes:
                warn(f"{names.base(term)} is skipped: {reason}")
            term -= 1
            continue
        own: list[Entry] = []
        for key in entries_of(sizes, term):
            try:
                own.append(read(storage.read(key), Entry))
            except (Damaged, FileNotFoundError) as reason:
                warn(f"checkpoint {key} is skipped: {reason}")
        return view(base, own, pieces_of(sizes, term))
    return View()


def begin_run(storage: Storage, url: str, token: str) -> None:
    """Nobody else has used this place before, and nobody will. Raises UserError, and OSError.

    Whoever died in it begins again: the place is known by the token.
    """
    mark = hashlib.sha256(token.encode()).hexdigest()[:32]
    record = Claim(term=0, nonce=mark, host=socket.gethostname(), pid=os.getpid())
    is_ours = storage.create(names.RUN, written(record)) or _is_marked(storage, mark)
    if storage.list(names.TERMS) or not is_ours:
        remedy = f"give another one, or go on with that run: isoscale resume {url}"
        raise UserError(field="--storage", value=url, problem="holds a run already", remedy=remedy)
    storage.write(names.TOKEN, token.encode())


def _is_marked(storage: Storage, mark: str) -> bool:
    try:
        return read(storage.read(names.RUN), Claim).nonce == mark
    except Damaged:
        return False


def claim_term(storage: Storage, url: str) -> int:
    """A term that is this process's alone. Raises UserError if another one was faster, and OSError."""
    term = next_term(newest_terms(storage))
    record = Claim(term=term, nonce=secrets.token_hex(16), host=socket.gethostname(), pid=os.getpid())
    if not storage.create(names.claim(term), written(record)):
        problem = f"another coordinator has just taken the job over (term {term})"
        raise UserError(field="storage", value=url, problem=problem, remedy="see whether it runs, then try again")
    return term


def is_superseded(storage: Storage, term: int) -> bool:
    """Whether somebody has taken the job over from the holder of this term. Raises OSError."""
    try:
        storage.size(names.claim(term + 1))
        return True
    except FileNotFoundError:
        return False


def find_address(storage: Storage) -> Address | None:
    """Where the coordinator of the newest term is; None if it has not said so, or has ended. Raises OSError.

    Not of an older term: its coordinator was killed and took nothing away, or has nothing to say any more.
    """
    key = names.of_term(newest_terms(storage).based, names.ADDRESS)
    with contextlib.suppress(Damaged, FileNotFoundError):
        return read(storage.read(key), Address)
    return None


def newest_result(storage: Storage) -> Result | None:
    """Raises OSError."""
    steps = [step for key in storage.list("results/") if (step := names.step_of_result(key)) is not None]
    for step in sorted(steps, reverse=True):
        try:
            return read(storage.read(names.result(step)), Result)
        except (Damaged, FileNotFoundError):
            continue
    return None

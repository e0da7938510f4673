"""Which of the objects in a run's storage count: which term, which checkpoints, which events. Pure.

A term is claimed by creating its claim, of which a storage lets one succeed. Its holder writes down first what it goes
on with (`Base`), and then nothing outside its term. What counts is the base of the newest term that has one, and what
stands in that term. So whatever a replaced coordinator still writes, in its own older term, counts for nobody, and a
coordinator that claimed a term and died before it wrote a base is as if it had never been.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from isoscale.runtime.storage import names
from isoscale.runtime.storage.records import Base, Entry, Piece

__all__ = ["Terms", "View", "entries_of", "next_term", "pieces_of", "spare", "terms_in", "view"]


@dataclass(frozen=True, slots=True)
class Terms:
    """What a listing tells of terms. 0: there is none."""

    #: the newest that somebody has claimed
    claimed: int = 0
    #: the newest that has said what it goes on with
    based: int = 0


@dataclass(frozen=True, slots=True)
class View:
    """What counts."""

    #: 0: nothing does
    term: int = 0
    #: newest first
    entries: tuple[Entry, ...] = ()
    #: in order
    events: tuple[Piece, ...] = ()

    def as_base(self, term: int) -> Base:
        """Of a term that goes on with all of it."""
        return Base(term=term, entries=self.entries, events=self.events)


def terms_in(keys: Iterable[str]) -> Terms:
    found = [one for key in keys if (one := names.term_of(key)) is not None]
    return Terms(
        max((term for term, name in found if name == "claim.json"), default=0),
        max((term for term, name in found if name == "base.json"), default=0),
    )


def next_term(terms: Terms) -> int:
    """To be claimed by whoever comes. Without gaps: a coordinator looks for one name to know that it is replaced."""
    return max(terms.claimed, terms.based) + 1


def entries_of(keys: Iterable[str], term: int) -> list[str]:
    """Objects that speak of checkpoints in a term."""
    found = {key: one for key in keys if (one := names.term_of(key)) is not None and one[0] == term}
    return sorted(key for key, (_, name) in found.items() if names.step_of_entry(name) is not None)


def pieces_of(sizes: Mapping[str, int], term: int) -> tuple[Piece, ...]:
    """Events of a term, as long as they are now, up to the first that is missing."""
    pieces: list[Piece] = []
    while (key := names.piece(names.of_term(term, "events"), len(pieces), ".jsonl")) in sizes:
        pieces.append(Piece(object=key, size=sizes[key]))
    return tuple(pieces)


def view(base: Base, own: Iterable[Entry], events: tuple[Piece, ...]) -> View:
    """`own` and `events` are what the term of the base has written itself."""
    by_step = {one.step: one for one in (*base.entries, *own)}
    entries = tuple(by_step[step] for step in sorted(by_step, reverse=True))
    return View(base.term, entries, (*base.events, *events))


def spare(entries: Iterable[Entry], keep: int, published: int) -> list[Entry]:
    """Those that may go: all but the newest `keep`, and never the one that was just published."""
    newest = sorted(entries, key=lambda one: one.step, reverse=True)
    return [one for one in newest[keep:] if one.step != published]

"""Jobs as a table: filtered, sorted and cut to a page by the database, so ten thousand jobs cost what a page does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from isoscale.cluster import rows
from isoscale.cluster.store import Store
from isoscale.cluster.values import NEXT, JobRecord
from isoscale.errors import UserError

__all__ = ["SORTS", "Page", "TableQuery", "jobs_page"]

#: by the names that clients use; `?1` is the present moment
SORTS = {
    "number": "number",
    "name": "name COLLATE NOCASE",
    "tenant": "tenant",
    "owner": "owner",
    "state": "state",
    "priority": "priority",
    "submitted": "submitted_s",
    "started": "started_s",
    "ended": "ended_s",
    "seconds": "COALESCE(ended_s, ?1) - started_s",
    "waited": "COALESCE(started_s, ended_s, ?1) - submitted_s",
    "step": "step",
    "failures": "failures",
}
_ENDED = "('finished', 'failed', 'cancelled')"
_TEXT = ("id", "name", "owner", "tenant", "script")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableQuery:
    offset: int = 0
    limit: int = 100
    #: one of `SORTS`, or position: the order of the queue, of jobs that are not over
    sort: str = "number"
    descending: bool = True
    #: states by commas; live: not over; ended: over; "" for all
    state: str = ""
    tenant: str = ""
    #: part of a job's id, name, owner, tenant or script
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    total: int
    records: list[JobRecord]


def jobs_page(
    store: Store, query: TableQuery, now: float, *, tenant: str | None, positions: dict[str, int] | None = None
) -> Page:
    """`tenant`: the only one that the asker sees, None: all. `positions`: places in the queue. Raises UserError."""
    where, values = _where(query, tenant)
    if query.sort == "position":
        where = f"{where} AND state NOT IN {_ENDED}"
        found = [(row[0], row[1]) for row in store.rows(f"SELECT number, id FROM jobs WHERE {where}", now, *values)]
        places = positions or {}
        last = len(places) + 1
        found.sort(key=lambda one: (places.get(one[1], last), one[0]), reverse=query.descending)
        numbers = [number for number, _ in found[query.offset : query.offset + query.limit]]
        return Page(total=len(found), records=_records(store, numbers))
    if query.sort not in SORTS:
        known = ", ".join((*SORTS, "position"))
        raise UserError(field="sort", value=query.sort, problem="no such column", remedy=f"give one of {known}")
    order = f"{SORTS[query.sort]} {'DESC' if query.descending else 'ASC'} NULLS LAST"
    # Numbers first: to sort whole rows would carry every submission along.
    sql = f"SELECT number FROM jobs WHERE {where} ORDER BY {order}, number DESC LIMIT ? OFFSET ?"
    numbers = [row[0] for row in store.rows(sql, now, *values, query.limit, query.offset)]
    total = int(store.rows(f"SELECT COUNT(*) FROM jobs WHERE {where}", now, *values)[0][0])
    return Page(total=total, records=_records(store, numbers))


def _where(query: TableQuery, tenant: str | None) -> tuple[str, list[Any]]:
    """Conditions, and the values of their marks; mark 1 is the present moment, and is named so that all have it."""
    conditions, values = ["?1 IS NOT NULL"], list[Any]()
    for one in (tenant, query.tenant or None):
        if one is not None:
            conditions.append("tenant = ?")
            values.append(one)
    if query.state == "live":
        conditions.append(f"state NOT IN {_ENDED}")
    elif query.state == "ended":
        conditions.append(f"state IN {_ENDED}")
    elif query.state:
        states = query.state.split(",")
        for state in states:
            if state not in NEXT:
                known = ", ".join((*NEXT, "live", "ended"))
                raise UserError(field="state", value=state, problem="no such state", remedy=f"give some of {known}")
        conditions.append(f"state IN ({', '.join('?' * len(states))})")
        values += states
    if query.text:
        conditions.append("(" + " OR ".join(f"{name} LIKE ? ESCAPE '\\'" for name in _TEXT) + ")")
        values += [f"%{_escaped(query.text)}%"] * len(_TEXT)
    return " AND ".join(conditions), values


def _records(store: Store, numbers: Sequence[int]) -> list[JobRecord]:
    marks = ", ".join("?" * len(numbers))
    found = store.rows(f"SELECT {rows.JOB} FROM jobs WHERE number IN ({marks})", *numbers)
    records = {record.number: record for record in map(rows.job, found)}
    return [records[number] for number in numbers if number in records]


def _escaped(text: str) -> str:
    return "".join(f"\\{letter}" if letter in "%_\\" else letter for letter in text)

"""What may be changed in the database, a statement or two at a time; the event that tells of it is the caller's."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec

from isoscale.cluster import rows
from isoscale.cluster.values import JobRecord, Reclaim, State, Wanted, check_transition

__all__ = ["Transaction"]


class Transaction:
    """What may be changed. Each method is a statement or two; the event that tells of it is the caller's to add."""

    def __init__(self, connection: sqlite3.Connection, now: float, by: str, term: int, boot: str) -> None:
        self._connection = connection
        self.now = now
        self._by = by
        self._term = term
        self._boot = boot
        #: id of the last event of this transaction; 0 if there is none yet
        self.last_event = 0

    def event(self, event: str, job: JobRecord | None = None, **fields: Any) -> int:
        values = (self.now, event, job.id if job else "", job.tenant if job else "", self._by, _json(fields))
        query = "INSERT INTO events (t, event, job, tenant, by, fields) VALUES (?, ?, ?, ?, ?, ?)"
        self.last_event = self._connection.execute(query, values).lastrowid or 0
        return self.last_event

    # ---- jobs ----

    def insert(self, job: JobRecord, owner_token: int) -> None:
        fields = rows.columns(job)
        fields |= {"owner_token": owner_token, "idempotency_key": job.submission.key or None}
        names = ", ".join(fields)
        marks = ", ".join("?" * len(fields))
        self._connection.execute(f"INSERT INTO jobs ({names}) VALUES ({marks})", tuple(fields.values()))

    def by_key(self, owner_token: int, key: str) -> JobRecord | None:
        query = f"SELECT {rows.JOB} FROM jobs WHERE owner_token = ? AND idempotency_key = ?"
        row = self._connection.execute(query, (owner_token, key)).fetchone()
        return rows.job(row) if row else None

    def job(self, job: str) -> JobRecord | None:
        row = self._connection.execute(f"SELECT {rows.JOB} FROM jobs WHERE id = ?", (job,)).fetchone()
        return rows.job(row) if row else None

    def num_waiting(self, tenant: str) -> int:
        query = f"SELECT COUNT(*) FROM jobs WHERE tenant = ? AND {rows.LIVE}"
        return int(self._connection.execute(query, (tenant,)).fetchone()[0])

    def set_state(self, job: str, state: State, **fields: Any) -> JobRecord:
        """And other columns with it. Raises ValueError for a transition that there is not."""
        found = self.job(job)
        if found is None:
            raise KeyError(job)
        check_transition(job, found.state, state)
        return self.update(job, state=state, **fields)

    def want(self, job: str, wanted: Wanted) -> JobRecord:
        return self.update(job, wanted=wanted)

    def update(self, job: str, **fields: Any) -> JobRecord:
        assert fields.keys() <= rows.CHANGEABLE, fields
        names = ", ".join(f"{name} = ?" for name in fields)
        self._connection.execute(f"UPDATE jobs SET {names} WHERE id = ?", (*fields.values(), job))
        found = self.job(job)
        assert found is not None
        return found

    # ---- attempts ----

    def intend(self, job: str, number: int) -> None:
        """A coordinator is about to be started. Raises sqlite3.IntegrityError if one is on record as alive."""
        query = "INSERT INTO attempts (job, number, term, boot, begun_s) VALUES (?, ?, ?, ?, ?)"
        self._connection.execute(query, (job, number, self._term, self._boot, self.now))

    def started(self, job: str, number: int, pid: int, born: int) -> None:
        query = "UPDATE attempts SET pid = ?, born = ? WHERE job = ? AND number = ?"
        self._connection.execute(query, (pid, born, job, number))

    def open_attempt(self, job: str) -> int | None:
        query = "SELECT number FROM attempts WHERE job = ? AND ended_s IS NULL"
        row = self._connection.execute(query, (job,)).fetchone()
        return int(row[0]) if row else None

    def ended(self, job: str, number: int, outcome: str) -> None:
        query = "UPDATE attempts SET ended_s = ?, outcome = ? WHERE job = ? AND number = ? AND ended_s IS NULL"
        self._connection.execute(query, (self.now, outcome, job, number))

    # ---- tokens, nodes, what was learned ----

    def add_token(
        self, name: str, hashed: str, role: str, tenant: str, expires_s: float | None, session_of: int = 0
    ) -> int:
        """`session_of`: a token; a session of a session belongs to the same one."""
        query = (
            "INSERT INTO tokens (name, hash, role, tenant, created_s, expires_s, parent) VALUES (?, ?, ?, ?, ?, ?, "
            "COALESCE((SELECT CASE WHEN parent THEN parent ELSE id END FROM tokens WHERE id = ?), 0))"
        )
        values = (name, hashed, role, tenant, self.now, expires_s, session_of)
        return self._connection.execute(query, values).lastrowid or 0

    def revoke_token(self, token: int) -> bool:
        """And the sessions that were begun with it."""
        query = "UPDATE tokens SET revoked_s = ? WHERE (id = ? OR parent = ?) AND revoked_s IS NULL"
        return self._connection.execute(query, (self.now, token, token)).rowcount > 0

    def end_session(self, token: int) -> bool:
        """False if it is no session."""
        query = "UPDATE tokens SET revoked_s = ? WHERE id = ? AND parent != 0 AND revoked_s IS NULL"
        return self._connection.execute(query, (self.now, token)).rowcount > 0

    def set_away(self, node: str, devices: Sequence[str]) -> None:
        self._connection.execute("INSERT OR REPLACE INTO nodes VALUES (?, ?)", (node, json.dumps(list(devices))))

    def reclaim(self, reclaim: str) -> Reclaim | None:
        row = self._connection.execute("SELECT * FROM reclaims WHERE id = ?", (reclaim,)).fetchone()
        return rows.reclaim(row) if row else None

    def add_reclaim(self, one: Reclaim) -> None:
        values = (one.id, one.node, one.count, one.within_s, one.by, one.boot, one.asked_s)
        query = "INSERT INTO reclaims (id, node, count, within_s, by, boot, asked_s) VALUES (?, ?, ?, ?, ?, ?, ?)"
        self._connection.execute(query, values)

    def end_reclaim(self, reclaim: str, devices: Sequence[str], seconds: float, abandoned_s: float, late: bool) -> None:
        query = (
            "UPDATE reclaims SET devices = ?, seconds = ?, abandoned_s = ?, late = ? WHERE id = ? AND seconds IS NULL"
        )
        self._connection.execute(query, (json.dumps(list(devices)), seconds, abandoned_s, late, reclaim))

    def learn(self, job: str, devices: str, step_s: float, steps: int) -> None:
        self._connection.execute("INSERT OR REPLACE INTO speeds VALUES (?, ?, ?, ?)", (job, devices, step_s, steps))

    def forecast(self, job: str, what: str, estimate_s: float) -> None:
        """The first estimate of a moment counts: the latest would always be right."""
        query = "INSERT OR IGNORE INTO forecasts (job, what, made_s, estimate_s) VALUES (?, ?, ?, ?)"
        self._connection.execute(query, (job, what, self.now, estimate_s))

    def came_true(self, job: str, what: str) -> None:
        query = "UPDATE forecasts SET actual_s = ? WHERE job = ? AND what = ? AND actual_s IS NULL"
        self._connection.execute(query, (self.now, job, what))


def _json(fields: dict[str, Any]) -> str:
    return json.dumps(msgspec.to_builtins(fields), allow_nan=False, separators=(",", ":"))

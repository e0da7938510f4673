"""The service's memory: one SQLite file, one writer, and an event row in the transaction of every change.

    with store.write(by="alice") as tx:
        tx.set_state(job, "running")
        tx.event("job_started", job, devices=["cpu-0"])

A transaction begins IMMEDIATE, checks that this service's term is the newest, does no I/O of its own and is committed
(synchronously: it survives a loss of power) before anybody is told. One that changes something and tells no event is a
mistake, and is rolled back. Readers have connections of their own and never wait for the writer (WAL); threads come
and go, so connections are lent to them and not theirs.

Does not know processes, policies or time: moments are arguments.
"""

from __future__ import annotations

import collections
import contextlib
import json
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from isoscale.cluster import faults, rows
from isoscale.cluster.schema import STEPS, VERSION
from isoscale.cluster.transaction import Transaction
from isoscale.cluster.values import Attempt, Event, JobRecord, Reclaim, TokenShown
from isoscale.errors import IsoscaleError, UserError

__all__ = ["Store", "SupersededError", "Transaction"]

_BUSY_MS = 10_000
#: connections that are kept for the next readers
_IDLE_READERS = 8
#: what says nothing about the file's content: it is full, held by somebody else, not ours to write, on a broken disk
_UNUSABLE = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_READONLY,
    }
)
#: events that belong to no tenant and that all may see
_PUBLIC = "'service_started', 'devices_lent', 'devices_away'"


class SupersededError(IsoscaleError):
    """Raised when another service has taken the state over: this one must not write any more, and ends."""


class Store:
    """Any thread may read and write; writes happen one after the other."""

    def __init__(self, path: Path, *, boot: str, now: float) -> None:
        """Opens or makes the file, raises its term. Raises UserError for one that is damaged or newer than this."""
        self._path = path
        self._lock = threading.RLock()
        self._idle: collections.deque[sqlite3.Connection] = collections.deque()
        self._is_closed = False
        #: called after every commit, from the thread that wrote, with the newest event's id
        self.on_commit: Callable[[int], None] = lambda event: None
        self.boot = boot
        try:
            self._connection = self._open()
            try:
                #: boot id of the service before this one; "" if there was none
                self.boot_before, self.term = self._begin_term(boot, now)
            except BaseException:
                self._connection.close()
                raise
        except sqlite3.DatabaseError as error:
            raise _refused(path, error) from None

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._connection.close()
            while self._idle:
                self._idle.popleft().close()

    # ---- writing ----

    @contextlib.contextmanager
    def write(self, *, now: float, by: str = "") -> Iterator[Transaction]:
        """Commits when the block ends, rolls back if it raises. Raises SupersededError."""
        with self._lock:
            connection = self._connection
            connection.execute("BEGIN IMMEDIATE")
            try:
                faults.reached("begin")
                if int(_meta(connection, "term")) != self.term:
                    raise SupersededError("another service has taken this state over")
                before = connection.total_changes
                transaction = Transaction(connection, now, by, self.term, self.boot)
                yield transaction
                if connection.total_changes != before and not transaction.last_event:
                    raise AssertionError("a change without an event")
                faults.reached("commit")
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
            faults.reached("committed")
        if transaction.last_event:
            self.on_commit(transaction.last_event)

    # ---- reading ----

    def job(self, job: str) -> JobRecord | None:
        found = self._read(f"SELECT {rows.JOB} FROM jobs WHERE id = ?", job)
        return rows.job(found[0]) if found else None

    def live_jobs(self) -> list[JobRecord]:
        """That are not over, in order of submission."""
        return [rows.job(row) for row in self._read(f"SELECT {rows.JOB} FROM jobs WHERE {rows.LIVE} ORDER BY number")]

    def holding_over(self) -> list[str]:
        """Ids of jobs that are over and that held devices when they ended."""
        return [row[0] for row in self._read(f"SELECT id FROM jobs WHERE NOT ({rows.LIVE}) AND standing != ''")]

    def jobs(self, *, tenant: str | None = None, limit: int = 100, before: int | None = None) -> list[JobRecord]:
        """The newest first; of one tenant, or of all."""
        conditions, values = ["1"], list[Any]()
        if tenant is not None:
            conditions.append("tenant = ?")
            values.append(tenant)
        if before is not None:
            conditions.append("number < ?")
            values.append(before)
        query = f"SELECT {rows.JOB} FROM jobs WHERE {' AND '.join(conditions)} ORDER BY number DESC LIMIT ?"
        return [rows.job(row) for row in self._read(query, *values, limit)]

    def rows(self, query: str, *values: Any) -> list[sqlite3.Row]:
        """For those who put questions of their own: read only, and with marks for whatever a client said."""
        return self._read(query, *values)

    def last_number(self) -> int:
        return int(self._read("SELECT COALESCE(MAX(number), 0) FROM jobs")[0][0])

    def counts(self, tenant: str | None = None) -> dict[str, int]:
        """Jobs by state; of one tenant, or of all."""
        query = "SELECT state, COUNT(*) FROM jobs WHERE ?1 IS NULL OR tenant = ?1 GROUP BY state"
        return {row[0]: row[1] for row in self._read(query, tenant)}

    def open_attempt(self, job: str) -> Attempt | None:
        found = self._read("SELECT * FROM attempts WHERE job = ? AND ended_s IS NULL", job)
        return rows.attempt(found[0]) if found else None

    def attempts(self, job: str) -> list[Attempt]:
        return [rows.attempt(row) for row in self._read("SELECT * FROM attempts WHERE job = ? ORDER BY number", job)]

    def events(
        self,
        *,
        after: int = 0,
        job: str | None = None,
        tenant: str | None = None,
        limit: int = 1000,
        newest: bool = False,
    ) -> list[Event]:
        """In order; with `newest` the last ones. A tenant sees its own, and what concerns everybody."""
        conditions, values = ["id > ?"], list[Any]([after])
        if job is not None:
            conditions.append("job = ?")
            values.append(job)
        if tenant is not None:
            conditions.append(f"(tenant = ? OR (tenant = '' AND event IN ({_PUBLIC})))")
            values.append(tenant)
        order = "DESC" if newest else "ASC"
        query = f"SELECT * FROM events WHERE {' AND '.join(conditions)} ORDER BY id {order} LIMIT ?"
        found = [rows.event(row) for row in self._read(query, *values, limit)]
        return found[::-1] if newest else found

    def last_event(self) -> int:
        return int(self._read("SELECT COALESCE(MAX(id), 0) FROM events")[0][0])

    def token(self, hashed: str) -> TokenShown | None:
        found = self._read("SELECT * FROM tokens WHERE hash = ?", hashed)
        return rows.token(found[0]) if found else None

    def token_with_id(self, token: int) -> TokenShown | None:
        found = self._read("SELECT * FROM tokens WHERE id = ?", token)
        return rows.token(found[0]) if found else None

    def tokens(self) -> list[TokenShown]:
        return [rows.token(row) for row in self._read("SELECT * FROM tokens ORDER BY id")]

    def away(self) -> dict[str, list[str]]:
        """Devices of each node that are not the service's at present."""
        return {row[0]: json.loads(row[1]) for row in self._read("SELECT name, away FROM nodes")}

    def reclaim(self, reclaim: str) -> Reclaim | None:
        found = self._read("SELECT * FROM reclaims WHERE id = ?", reclaim)
        return rows.reclaim(found[0]) if found else None

    def open_reclaims(self) -> list[Reclaim]:
        """Devices that somebody wants back and has not got, in the order in which they were asked for."""
        found = self._read("SELECT * FROM reclaims WHERE seconds IS NULL ORDER BY number")
        return [rows.reclaim(row) for row in found]

    def speeds(self, job: str) -> dict[str, tuple[float, int]]:
        """Seconds of a step, and how many were measured, by device set."""
        return {
            row[0]: (row[1], row[2])
            for row in self._read("SELECT devices, step_s, steps FROM speeds WHERE job = ?", job)
        }

    def speeds_of(self, script: str, workers: int) -> dict[str, tuple[float, int]]:
        """Of the last job with the same script and as many logical workers: a beginning."""
        query = (
            "SELECT id FROM jobs WHERE script = ? AND json_extract(submission, '$.workers') = ? "
            "AND id IN (SELECT job FROM speeds) ORDER BY number DESC LIMIT 1"
        )
        found = self._read(query, script, workers)
        return self.speeds(found[0][0]) if found else {}

    def forecast_errors(self, what: str, limit: int = 200) -> list[tuple[float, float, float]]:
        """(made, estimated, actual) of forecasts whose moment has come, the newest first."""
        query = (
            "SELECT made_s, estimate_s, actual_s FROM forecasts WHERE what = ? AND actual_s IS NOT NULL "
            "ORDER BY actual_s DESC LIMIT ?"
        )
        return [(row[0], row[1], row[2]) for row in self._read(query, what, limit)]

    def open_forecasts(self, what: str) -> dict[str, float]:
        """Estimates that were written down, by job."""
        query = "SELECT job, estimate_s FROM forecasts WHERE what = ? AND actual_s IS NULL"
        return {row[0]: row[1] for row in self._read(query, what)}

    def _read(self, query: str, *values: Any) -> list[sqlite3.Row]:
        reader = self._reader()
        try:
            return reader.execute(query, values).fetchall()
        finally:
            self._idle.append(reader)
            while len(self._idle) > (0 if self._is_closed else _IDLE_READERS):
                with contextlib.suppress(IndexError):  # another thread was faster
                    self._idle.popleft().close()

    def _reader(self) -> sqlite3.Connection:
        """Nobody else's until it is idle again: the one that was used last."""
        with contextlib.suppress(IndexError):
            return self._idle.pop()
        reader = sqlite3.connect(f"{self._path.absolute().as_uri()}?mode=ro", uri=True, check_same_thread=False)
        reader.row_factory = sqlite3.Row
        reader.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
        return reader

    # ---- opening ----

    def _open(self) -> sqlite3.Connection:
        with contextlib.suppress(OSError):  # SQLite says what is wrong
            self._path.touch(mode=0o600)
            self._path.chmod(0o600)  # before anything is in it: files beside it get the same mode
        connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        try:
            connection.row_factory = sqlite3.Row
            connection.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
            found = connection.execute("PRAGMA quick_check").fetchone()[0]
            if found != "ok":
                raise _damaged(self._path, found)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA foreign_keys = ON")
            self._migrate(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _migrate(self, connection: sqlite3.Connection) -> None:
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        if version > VERSION:
            raise UserError(
                field="--state",
                value=self._path,
                problem=f"written by a newer isoscale (schema {version}, this one knows {VERSION})",
                remedy="upgrade isoscale, or give another directory",
            )
        for number in range(version, VERSION):
            connection.execute("BEGIN IMMEDIATE")
            for statement in STEPS[number]:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {number + 1}")
            connection.execute("COMMIT")

    def _begin_term(self, boot: str, now: float) -> tuple[str, int]:
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        term, before = int(_meta(connection, "term") or 0) + 1, _meta(connection, "boot")
        for key, value in (("term", str(term)), ("boot", boot)):
            connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))
        Transaction(connection, now, "", term, boot).event(
            "service_started", term=term, rebooted=before not in ("", boot)
        )
        connection.execute("COMMIT")
        return before, term


def _meta(connection: sqlite3.Connection, key: str) -> str:
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return str(row[0]) if row else ""


def _refused(path: Path, error: sqlite3.DatabaseError) -> UserError:
    if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF not in _UNUSABLE:
        return _damaged(path, str(error))
    return UserError(
        field="--state",
        value=path,
        problem=f"the database cannot be used now ({error})",
        remedy="see that its disk has room and may be written, and that nobody else has it open",
    )


def _damaged(path: Path, problem: str) -> UserError:
    return UserError(
        field="--state",
        value=path,
        problem=f"the database is damaged ({problem.splitlines()[0] if problem else 'unreadable'})",
        remedy="restore a backup, or make a new one from the jobs' own directories: isoscale serve --rebuild",
    )

"""The tables of `cluster.sqlite`, and how an older file becomes a present one. Every step is one transaction."""

from __future__ import annotations

__all__ = ["STEPS", "VERSION"]

#: STEPS[n] brings a file of version n to n + 1; `PRAGMA user_version` says which one a file has
STEPS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
        """CREATE TABLE jobs (
            number INTEGER PRIMARY KEY,
            id TEXT NOT NULL UNIQUE,
            name TEXT NOT NULL,
            tenant TEXT NOT NULL,
            owner TEXT NOT NULL,
            owner_token INTEGER NOT NULL,
            idempotency_key TEXT,
            submission TEXT NOT NULL,
            script TEXT NOT NULL,
            state TEXT NOT NULL,
            wanted TEXT NOT NULL,
            priority INTEGER NOT NULL,
            cap INTEGER NOT NULL DEFAULT 0,
            submitted_s REAL NOT NULL,
            started_s REAL,
            ended_s REAL,
            step INTEGER NOT NULL DEFAULT 0,
            total INTEGER NOT NULL DEFAULT 0,
            failures INTEGER NOT NULL DEFAULT 0,
            digest TEXT NOT NULL DEFAULT '',
            error TEXT NOT NULL DEFAULT '',
            exit_code INTEGER,
            standing TEXT NOT NULL DEFAULT ''
        )""",
        "CREATE UNIQUE INDEX jobs_by_key ON jobs (owner_token, idempotency_key) WHERE idempotency_key IS NOT NULL",
        # Live jobs are few, ended ones many: what is asked at every turn must not read the latter.
        "CREATE INDEX jobs_live ON jobs (number) WHERE state NOT IN ('finished', 'failed', 'cancelled')",
        "CREATE INDEX jobs_by_tenant ON jobs (tenant, number)",
        """CREATE TABLE attempts (
            job TEXT NOT NULL REFERENCES jobs (id),
            number INTEGER NOT NULL,
            term INTEGER NOT NULL,
            boot TEXT NOT NULL,
            begun_s REAL NOT NULL,
            pid INTEGER NOT NULL DEFAULT 0,
            born INTEGER NOT NULL DEFAULT 0,
            ended_s REAL,
            outcome TEXT NOT NULL DEFAULT '',
            PRIMARY KEY (job, number)
        ) WITHOUT ROWID""",
        # A job has one open attempt at most: the database itself refuses a second coordinator.
        "CREATE UNIQUE INDEX attempts_open ON attempts (job) WHERE ended_s IS NULL",
        """CREATE TABLE events (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            t REAL NOT NULL,
            event TEXT NOT NULL,
            job TEXT NOT NULL,
            tenant TEXT NOT NULL,
            by TEXT NOT NULL,
            fields TEXT NOT NULL
        )""",
        "CREATE INDEX events_by_job ON events (job, id)",
        """CREATE TABLE tokens (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            name TEXT NOT NULL,
            hash TEXT NOT NULL UNIQUE,
            role TEXT NOT NULL,
            tenant TEXT NOT NULL,
            created_s REAL NOT NULL,
            expires_s REAL,
            revoked_s REAL
        )""",
        "CREATE TABLE nodes (name TEXT PRIMARY KEY, away TEXT NOT NULL) WITHOUT ROWID",
        """CREATE TABLE speeds (
            job TEXT NOT NULL REFERENCES jobs (id),
            devices TEXT NOT NULL,
            step_s REAL NOT NULL,
            steps INTEGER NOT NULL,
            PRIMARY KEY (job, devices)
        ) WITHOUT ROWID""",
        """CREATE TABLE forecasts (
            job TEXT NOT NULL REFERENCES jobs (id),
            what TEXT NOT NULL,
            made_s REAL NOT NULL,
            estimate_s REAL NOT NULL,
            actual_s REAL,
            PRIMARY KEY (job, what)
        ) WITHOUT ROWID""",
    ),
    (
        # The token that a session was begun with, and with which it ends; 0 for a token that is nobody's session.
        "ALTER TABLE tokens ADD COLUMN parent INTEGER NOT NULL DEFAULT 0",
        # What is known of a script is looked up at every submission.
        "CREATE INDEX jobs_by_script ON jobs (script, number)",
    ),
    (
        # `asked_s`: by the clock that counts from the start of the system `boot`, which nobody sets.
        """CREATE TABLE reclaims (
            number INTEGER PRIMARY KEY,
            id TEXT NOT NULL UNIQUE,
            node TEXT NOT NULL,
            count INTEGER NOT NULL,
            within_s REAL,
            by TEXT NOT NULL,
            boot TEXT NOT NULL,
            asked_s REAL NOT NULL,
            devices TEXT NOT NULL DEFAULT '[]',
            seconds REAL,
            abandoned_s REAL NOT NULL DEFAULT 0,
            late INTEGER NOT NULL DEFAULT 0
        )""",
        "ALTER TABLE jobs ADD COLUMN samples INTEGER",
        "CREATE INDEX reclaims_open ON reclaims (number) WHERE seconds IS NULL",
    ),
)

VERSION = len(STEPS)

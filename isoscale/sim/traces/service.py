"""A cluster service's history, STATE/cluster.sqlite, as a trace: its jobs with the speeds that the service has learned.

Read while a service writes (SQLite's WAL), and never written to. `open_state` and `rows_of` are for whoever reads more.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from isoscale.errors import UserError
from isoscale.sim.traces.record import OnBad, TraceJob

__all__ = ["DATABASE", "is_state", "open_state", "read_service", "rows_of"]

DATABASE = "cluster.sqlite"
_STATUS = {"finished": "passed", "failed": "failed", "cancelled": "killed"}


def is_state(path: Path) -> bool:
    return (path / DATABASE).is_file()


def open_state(path: Path) -> sqlite3.Connection:
    """To read from. Raises UserError."""
    try:
        connection = sqlite3.connect(f"{(path / DATABASE).absolute().as_uri()}?mode=ro", uri=True)
        connection.row_factory = sqlite3.Row
        connection.execute("SELECT number, submission FROM jobs LIMIT 1").fetchall()
    except sqlite3.Error as error:
        problem, remedy = f"its {DATABASE} cannot be read ({error})", "give the STATE of isoscale serve"
        raise UserError(field="--trace", value=path, problem=problem, remedy=remedy) from None
    return connection


def rows_of(connection: sqlite3.Connection, query: str) -> Iterator[dict[str, Any]]:
    """As dictionaries."""
    for row in connection.execute(query):
        yield dict(row)


def read_service(path: Path, on_bad: OnBad | None = None) -> Iterator[TraceJob]:
    """Jobs of which something is known: how many steps they had, or how long they ran. Of others nothing can be
    replayed; they are left out."""
    with closing(open_state(path)) as connection:
        speeds: dict[str, dict[str, float]] = {}
        for row in rows_of(connection, "SELECT job, devices, step_s FROM speeds"):
            speeds.setdefault(row["job"], {})[row["devices"]] = row["step_s"]
        jobs = list(rows_of(connection, "SELECT * FROM jobs ORDER BY number"))
        there = _devices(connection)
    zero = min((row["submitted_s"] for row in jobs), default=0.0)
    lowest = min((row["priority"] for row in jobs), default=0)
    for row in jobs:
        try:
            job = _job(row, speeds.get(row["id"], {}), zero, lowest, there)
        except (ValueError, TypeError, KeyError) as error:
            broken = UserError(
                field=f"{path} {row['id']}", value="", problem=f"cannot be used ({error})", remedy="leave it out"
            )
            if on_bad is None:
                raise broken from None
            on_bad(broken)
            continue
        if job is not None:
            yield job


def _job(row: Mapping[str, Any], speeds: Mapping[str, float], zero: float, lowest: int, there: int) -> TraceJob | None:
    asked = json.loads(row["submission"])
    workers = int(asked["workers"])
    steps = max(row["step"], row["total"]) if row["state"] != "finished" else row["step"]
    ran_s = None
    if row["started_s"] is not None and row["ended_s"] is not None:
        ran_s = max(0.0, row["ended_s"] - row["started_s"])
    if not steps and not ran_s:
        return None
    kinds = tuple(asked.get("kinds") or ())
    least, most = int(asked.get("min_devices") or 1), int(asked.get("max_devices") or workers)
    return TraceJob(
        name=row["id"],
        submit_s=row["submitted_s"] - zero,
        # As the service has it: a rigid policy would wait for ever for more than there are.
        devices=max(least, min(most, there or most)),
        duration_s=ran_s or None,
        steps=float(steps) if steps else None,
        workers=workers,
        min_devices=least,
        max_devices=most,
        application=row["script"],
        kind=kinds[0] if kinds else "",
        kinds=kinds,
        turn_s=_turns(speeds, workers) if steps else {},
        tenant=row["tenant"],
        # Only their order counts, and a trace has none below 0.
        priority=row["priority"] - lowest,
        status=_STATUS.get(row["state"], ""),
    )


def _devices(connection: sqlite3.Connection) -> int:
    """Of the kind that the service had most of when it was last started; 0 if it did not say."""
    query = "SELECT fields FROM events WHERE event = 'cluster' ORDER BY id DESC LIMIT 1"
    counts: dict[str, int] = {}
    for row in rows_of(connection, query):
        for _, kind, count in json.loads(row["fields"])["nodes"]:
            counts[kind] = counts.get(kind, 0) + int(count)
    return max(counts.values(), default=0)


def _turns(speeds: Mapping[str, float], workers: int) -> dict[str, float]:
    """Seconds of a turn by kind, from steps on the fewest devices: there least of a step is communication."""
    found: dict[str, tuple[int, float]] = {}
    for text, step_s in speeds.items():
        devices = [(str(kind), int(count)) for kind, count in json.loads(text)]
        total = sum(count for _, count in devices)
        if len(devices) == 1 and total > 0 and math.isfinite(step_s) and step_s > 0:
            kind = devices[0][0]
            if kind not in found or total < found[kind][0]:
                found[kind] = (total, step_s / math.ceil(workers / total))
    return {kind: turn_s for kind, (_, turn_s) in found.items()}

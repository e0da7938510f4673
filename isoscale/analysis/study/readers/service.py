"""A cluster service's STATE: every job with its tries, devices over time, and the service's own forecasts.

Jobs, states and times are the rows of its database; devices over time are told by its events, as the service itself
tells them. Nothing is computed in another way than the service does, so the figures are the same.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from isoscale.analysis.failures import CLASSES, classify
from isoscale.analysis.study.builder import TraceBuilder
from isoscale.analysis.study.own_log import OwnLog, Resize
from isoscale.analysis.study.readers.times import EPOCH
from isoscale.analysis.study.reading import Reading
from isoscale.analysis.study.trace import Capacity, Trace
from isoscale.sim.traces.service import is_state, open_state, rows_of

__all__ = ["read_service", "recognises"]

_STATUS = {"finished": "passed", "failed": "failed", "cancelled": "killed"}
#: events after which a job holds nothing
_EMPTY = ("job_paused", "job_queued", "job_finished", "job_failed", "job_cancelled")
_GRANTS = ("job_started", "job_resumed", "job_resized")
_LACKS = {
    "places": "devices of a machine by attempt (the events have names of devices)",
    "utilisation": "samples of devices (a service takes none)",
    "host": "samples of hosts (a service takes none)",
    "redone": "steps done again (the runs' own logs have them: give STATE/jobs)",
}


@dataclass(slots=True)
class _Held:
    """Of one job, as events tell it."""

    devices: int = 0
    since_s: float = 0.0
    stays: list[tuple[float, float, int]] = field(default_factory=list)
    resizes: list[tuple[float, int, int, str]] = field(default_factory=list)
    first: int = 0

    def change(self, t: float, devices: int, reason: str) -> None:
        if devices == self.devices:
            return
        if self.devices and t > self.since_s:
            self.stays.append((self.since_s, t, self.devices))
        if self.first:
            self.resizes.append((t, self.devices, devices, reason))
        self.first = self.first or devices
        self.devices, self.since_s = devices, t


def recognises(path: Path) -> bool:
    return path.is_dir() and is_state(path)


def read_service(path: Path, reading: Reading) -> Trace:
    with closing(open_state(path)) as connection:
        jobs = list(rows_of(connection, "SELECT * FROM jobs ORDER BY number"))
        attempts = list(rows_of(connection, "SELECT * FROM attempts ORDER BY job, number"))
        events = _Events(
            list(rows_of(connection, "SELECT t, event, job, fields FROM events ORDER BY id")), reading, path
        )
        forecasts = list(rows_of(connection, "SELECT * FROM forecasts WHERE actual_s IS NOT NULL"))
    builder, resizes, wanted = TraceBuilder(), list[Resize](), list[float]()
    by_job: dict[str, list[dict[str, Any]]] = {}
    for row in attempts:
        by_job.setdefault(row["job"], []).append(row)
    for row in jobs:
        if not reading.wants(row["submitted_s"]):
            continue
        held = events.held.get(row["id"], _Held())
        number = _add(builder, row, held, by_job.get(row["id"], []), events.last_s)
        resizes += [Resize(number, t, before, after, None, reason) for t, before, after, reason in held.resizes]
        wanted.append(_asked(row))
    builder.machine_devices |= events.machines
    return builder.build(
        name=path.resolve().name,
        format="isoscale-service",
        account=reading.account(),
        capacity=events.capacity(),
        quotas=events.quotas,
        zero=EPOCH,
        own=OwnLog(
            source="service",
            resizes=tuple(resizes),
            forecasts=_forecasts(forecasts),
            wanted=np.array(wanted),
            busy_s=np.full(len(wanted), math.nan),
            retries=sum(max(0, len(tries) - 1) for tries in by_job.values()),
            end_s=events.last_s,
        ),
        lacks=_LACKS,
    )


def _add(
    builder: TraceBuilder, row: Mapping[str, Any], held: _Held, attempts: list[dict[str, Any]], last_s: float
) -> int:
    status = _STATUS.get(row["state"], "unfinished")
    if status == "failed" and row["started_s"] is None:
        status = "rejected"
    number = builder.add_job(
        row["id"],
        submit_s=row["submitted_s"],
        start_s=_moment(row["started_s"]),
        end_s=_moment(row["ended_s"]),
        devices=_asked(row),
        machines=1 if held.first else 0,
        status=status,
        user=row["owner"],
        tenant=row["tenant"],
        kind=Path(row["script"]).name,
    )
    for index, one in enumerate(attempts):
        failed = one["outcome"] in ("died", "failed")
        builder.add_attempt(
            number,
            start_s=one["begun_s"],
            end_s=_moment(one["ended_s"]),
            devices=float(held.first),
            failed=failed,
            error=classify(row["error"], CLASSES).name if failed else "",
            holds=False,
            number=index,
        )
    stays = [*held.stays, *([(held.since_s, last_s, held.devices)] if held.devices and last_s > held.since_s else [])]
    for begin, end, devices in stays:
        builder.add_holding(number, begin, end, float(devices))
    return number


class _Events:
    """What the log of events tells of devices."""

    def __init__(self, rows: list[dict[str, Any]], reading: Reading, path: Path) -> None:
        self.held: dict[str, _Held] = {}
        self.machines: dict[str, int] = {}
        self.quotas: dict[str, float] = {}
        self.last_s = max((row["t"] for row in rows), default=0.0)
        self._capacity: list[tuple[float, float]] = []
        self._away: set[str] = set()
        for number, row in enumerate(rows, 1):
            try:
                self._take(row["event"], row["t"], row["job"], json.loads(row["fields"]))
            except (ValueError, TypeError, KeyError) as error:
                reading.bad(path, number, row["event"], "", f"cannot be used ({error})")

    def _take(self, event: str, t: float, job: str, fields: Mapping[str, Any]) -> None:
        if event in _GRANTS:
            self.held.setdefault(job, _Held()).change(t, int(fields["to"]), str(fields.get("reason", "")))
        elif event in _EMPTY and job:
            self.held.setdefault(job, _Held()).change(t, 0, str(fields.get("reason", "")))
        elif event == "cluster":
            self.machines = {str(name): int(devices) for name, _, devices in fields["nodes"]}
            self.quotas = {str(tenant): float(count) for tenant, count in fields["quotas"].items()}
            self._tell(t)
        elif event == "devices_away":
            self._away |= set(fields["devices"])
            self._tell(t)
        elif event == "devices_lent":
            self._away -= set(fields["devices"])
            self._tell(t)

    def _tell(self, t: float) -> None:
        away = sum(device.partition("/")[0] in self.machines for device in self._away)
        self._capacity.append((t, float(max(0, sum(self.machines.values()) - away))))

    def capacity(self) -> Capacity | None:
        if not self._capacity:
            return None
        since, devices = np.array(self._capacity).T
        return Capacity(since_s=since, devices=devices, source="the service's devices")


def _asked(row: Mapping[str, Any]) -> float:
    asked = json.loads(row["submission"])
    return float(asked.get("max_devices") or asked["workers"])


def _moment(value: float | None) -> float:
    return math.nan if value is None else value


def _forecasts(rows: list[dict[str, Any]]) -> dict[str, tuple[tuple[float, float], ...]]:
    found: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        made = row["made_s"]
        found.setdefault(row["what"], []).append((row["estimate_s"] - made, row["actual_s"] - made))
    return {what: tuple(pairs) for what, pairs in found.items()}

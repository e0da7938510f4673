"""`isoscale simulate`'s event log: the same figures as the simulator's, from what it wrote down."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from isoscale.analysis.study.builder import TraceBuilder
from isoscale.analysis.study.own_log import OwnLog, Resize
from isoscale.analysis.study.readers.events import LOG, events_of, is_log, is_simulated
from isoscale.analysis.study.reading import Reading
from isoscale.analysis.study.trace import Capacity, Trace

__all__ = ["read_simulated", "recognises"]

_LACKS = {
    "user": "user (a simulated job has a tenant only)",
    "utilisation": "samples of devices (a simulated device has none; see busy_utilisation)",
    "host": "samples of hosts (a simulated machine has none)",
    "quota": "devices of each tenant (simulate --quotas)",
    "capacity": "the event `cluster`, first line of the log (written since this version)",
    "places": "devices of a machine (the log has their number)",
    "kind": "model (the log has none)",
    "forecast": "forecasts (a service's STATE)",
    "redone": "work that was lost (the log has pauses only)",
}
_CHANGES = {"device_failed": -1, "device_repaired": 1, "device_lent": 1, "device_reclaimed": -1}


@dataclass(slots=True)
class _Draft:
    name: str
    submit_s: float
    wanted: int
    tenant: str
    start_s: float = math.nan
    end_s: float = math.nan
    status: str = "unfinished"
    machines: int = 0
    devices: int = 0
    since_s: float = 0.0
    busy_s: float = math.nan
    #: of the attempt under way; NaN before its first device
    attempt_s: float = math.nan
    attempts: list[tuple[float, float, int, bool, str]] = field(default_factory=list)
    held: list[tuple[float, float, int]] = field(default_factory=list)


def recognises(path: Path) -> bool:
    return is_log(path) and is_simulated(path)


def read_simulated(path: Path, reading: Reading) -> Trace:
    log = path / LOG if path.is_dir() else path
    reader = _Reader(log, reading)
    for line, event in events_of(log, reading):
        reader.take(line, event)
    return reader.trace(path.name if path.is_dir() else log.parent.name)


class _Reader:
    def __init__(self, path: Path, reading: Reading) -> None:
        self._path, self._reading = path, reading
        self._jobs: dict[str, _Draft] = {}
        self._resizes: list[Resize] = []
        self._numbers: dict[str, int] = {}
        #: (time, devices) at every change
        self._capacity: list[tuple[float, int]] = []
        self._quotas: dict[str, float] = {}
        self._machines: dict[str, int] = {}
        self._retries = 0
        self._last_s = 0.0
        self._line = 0

    def take(self, line: int, event: Mapping[str, Any]) -> None:
        name, t = event["event"], float(event["t"])
        self._line, self._last_s = line, max(self._last_s, t)
        if name == "cluster":
            self._cluster(t, event)
        elif name in _CHANGES:
            if self._capacity:
                changed = _CHANGES[name] * self._whole(event, "devices", 0)
                self._capacity.append((t, self._capacity[-1][1] + changed))
        elif name == "job_submitted":
            self._submitted(t, event)
        elif isinstance(event.get("job"), str):
            draft = self._jobs.get(event["job"])
            if draft is None:
                self._reading.bad(self._path, line, "job", event["job"], "was never submitted")
            else:
                self._of_job(name, t, event, draft)

    def _submitted(self, t: float, event: Mapping[str, Any]) -> None:
        job = event.get("job")
        if not isinstance(job, str) or job in self._jobs:
            problem = "was submitted before" if isinstance(job, str) else "is not a name"
            self._reading.bad(self._path, self._line, "job", job, problem)
            return
        self._numbers[job] = len(self._numbers)
        tenant = event.get("tenant")
        self._jobs[job] = _Draft(job, t, self._whole(event, "devices", 0), tenant if isinstance(tenant, str) else "")

    def _of_job(self, name: str, t: float, event: Mapping[str, Any], draft: _Draft) -> None:
        if name in ("job_started", "job_resized"):
            self._placed(t, event, draft)
        elif name == "job_finished":
            self._ended(t, event, draft, "passed", failed=False)
            draft.end_s = t
        elif name == "job_failed":
            retried = event.get("retried") is True
            error = event.get("error")
            text = error if isinstance(error, str) else ""
            if not math.isnan(draft.attempt_s):
                draft.attempts.append((draft.attempt_s, t, draft.wanted, True, text))
                draft.attempt_s = math.nan
            self._retries += retried
            if not retried:
                self._ended(t, event, draft, "failed", failed=True)
                draft.end_s = t
        elif name == "job_rejected":
            draft.status = "rejected"
        elif name == "job_left":
            self._ended(t, event, draft, "unfinished", failed=False)

    def _placed(self, t: float, event: Mapping[str, Any], draft: _Draft) -> None:
        before, after = draft.devices, self._whole(event, "to", 0)
        self._hold(t, after, draft)
        first = math.isnan(draft.start_s)
        if after and first:
            draft.start_s = t
            nodes = event.get("nodes")
            draft.machines = len(nodes) if isinstance(nodes, list) else 0
        elif not first:
            pause = event.get("pause_s")
            pause_s = float(pause) if isinstance(pause, int | float) and not isinstance(pause, bool) else None
            reason = event.get("reason")
            words = reason if isinstance(reason, str) else ""
            self._resizes.append(Resize(self._numbers[draft.name], t, before, after, pause_s, words))
        if after and math.isnan(draft.attempt_s):
            draft.attempt_s = t

    def _ended(self, t: float, event: Mapping[str, Any], draft: _Draft, status: str, *, failed: bool) -> None:
        self._hold(t, 0, draft)
        if not math.isnan(draft.attempt_s) and not failed:
            end_s = t if status == "passed" else math.nan
            draft.attempts.append((draft.attempt_s, end_s, draft.wanted, False, ""))
            draft.attempt_s = math.nan
        draft.status = status
        busy = event.get("busy_device_s")
        if isinstance(busy, int | float) and not isinstance(busy, bool):
            draft.busy_s = float(busy)

    def _hold(self, t: float, devices: int, draft: _Draft) -> None:
        if draft.devices and t > draft.since_s:
            draft.held.append((draft.since_s, t, draft.devices))
        draft.devices, draft.since_s = devices, t

    def _cluster(self, t: float, event: Mapping[str, Any]) -> None:
        nodes = event.get("nodes")
        try:
            sizes = [(str(name), int(devices)) for name, _, devices in nodes or ()]
        except (TypeError, ValueError):
            self._reading.bad(self._path, self._line, "nodes", "", "is not a list of name, kind and devices")
            return
        for number, (name, devices) in enumerate(sizes):
            self._machines[name if name not in self._machines else f"{name}#{number}"] = devices
        self._capacity = [(t, sum(devices for _, devices in sizes))]
        quotas = event.get("quotas")
        if isinstance(quotas, dict):
            self._quotas = {str(k): float(v) for k, v in quotas.items() if isinstance(v, int | float)}

    def _whole(self, event: Mapping[str, Any], field: str, otherwise: int) -> int:
        value = event.get(field)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
            self._reading.bad(self._path, self._line, field, value, "is not a number of devices")
            return otherwise
        return value

    def trace(self, name: str) -> Trace:
        builder = TraceBuilder()
        for draft in self._jobs.values():
            number = builder.add_job(
                draft.name,
                submit_s=draft.submit_s,
                start_s=draft.start_s,
                end_s=draft.end_s,
                devices=draft.wanted,
                machines=draft.machines,
                status=draft.status,
                tenant=draft.tenant,
            )
            for index, (begin, end, devices, failed, error) in enumerate(draft.attempts):
                builder.add_attempt(
                    number,
                    start_s=begin,
                    end_s=end,
                    devices=devices,
                    failed=failed,
                    error=error,
                    holds=False,
                    number=index,
                )
            for begin, end, devices in draft.held:
                builder.add_holding(number, begin, end, devices)
        builder.machine_devices |= self._machines
        drafts = self._jobs.values()
        capacity = None
        if self._capacity:
            since = np.array([t for t, _ in self._capacity])
            there = np.array([float(number) for _, number in self._capacity])
            capacity = Capacity(since_s=since, devices=there, source="the log's cluster")
        return builder.build(
            name=name,
            format="isoscale-simulated",
            account=self._reading.account(),
            capacity=capacity,
            quotas=self._quotas,
            own=OwnLog(
                source="simulated",
                resizes=tuple(self._resizes),
                wanted=np.array([float(draft.wanted) for draft in drafts]),
                busy_s=np.array([draft.busy_s for draft in drafts]),
                jobs_rejected=sum(draft.status == "rejected" for draft in drafts),
                retries=self._retries,
                end_s=self._last_s,
            ),
            lacks=_LACKS,
        )

"""Builds a trace row by row: readers say what a line tells, and get arrays at the end."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from isoscale.analysis.study.own_log import OwnLog
from isoscale.analysis.study.reading import Account
from isoscale.analysis.study.trace import STATUSES, Attempts, Capacity, Holdings, Jobs, Labels, Machines, Places, Trace

__all__ = ["TraceBuilder", "Vocabulary"]

NAN = math.nan


class Vocabulary:
    """Numbers texts as they come; "" is 0."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {"": 0}

    def code(self, word: str) -> int:
        return self._codes.setdefault(word, len(self._codes))

    def __len__(self) -> int:
        return len(self._codes)

    def labels(self, codes: array[int]) -> Labels:
        return Labels(codes=_ints(codes), words=tuple(self._codes))

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(self._codes)


class TraceBuilder:
    """Rows in, columns out. A job is added before its attempts, attempts in order of time."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._times = {name: array("d") for name in ("submit_s", "start_s", "end_s", "run_s", "devices")}
        self._machines, self._status = array("q"), array("q")
        self.users, self.tenants, self.kinds, self.errors = Vocabulary(), Vocabulary(), Vocabulary(), Vocabulary()
        self._user, self._tenant, self._kind = array("q"), array("q"), array("q")
        self._attempt_job, self._attempt_number, self._attempt_machines = array("q"), array("q"), array("q")
        self._attempt_times = {name: array("d") for name in ("start_s", "end_s", "run_s", "devices")}
        self._failed, self._error = array("b"), array("q")
        self._held_job = array("q")
        self._held = {name: array("d") for name in ("begin_s", "end_s", "devices")}
        self._place_attempt, self._place_machine, self._place_mask = array("q"), array("q"), array("q")
        #: code 0 is no machine
        self.machine_names = Vocabulary()
        self.machine_devices: dict[str, int] = {}

    def add_job(
        self,
        name: str,
        *,
        submit_s: float = NAN,
        start_s: float = NAN,
        end_s: float = NAN,
        run_s: float = NAN,
        devices: float = 0.0,
        machines: int = 0,
        status: str = "",
        user: str = "",
        tenant: str = "",
        kind: str = "",
    ) -> int:
        """The number of the job. `run_s` is only given where start and end are not."""
        self.names.append(name)
        if math.isnan(run_s):
            run_s = end_s - start_s
        for column, value in zip(self._times.values(), (submit_s, start_s, end_s, run_s, devices), strict=True):
            column.append(value)
        self._machines.append(machines)
        self._status.append(STATUSES.index(status))
        self._user.append(self.users.code(user))
        self._tenant.append(self.tenants.code(tenant))
        self._kind.append(self.kinds.code(kind))
        return len(self.names) - 1

    def add_attempt(
        self,
        job: int,
        *,
        start_s: float = NAN,
        end_s: float = NAN,
        run_s: float = NAN,
        devices: float = 0.0,
        machines: int = 0,
        failed: bool = False,
        error: str = "",
        holds: bool = True,
        number: int = 0,
    ) -> int:
        """The number of the attempt. Unless `holds` is False it held its devices all the time."""
        if math.isnan(run_s):
            run_s = end_s - start_s
        self._attempt_job.append(job)
        self._attempt_number.append(number)
        for column, value in zip(self._attempt_times.values(), (start_s, end_s, run_s, devices), strict=True):
            column.append(value)
        self._attempt_machines.append(machines)
        self._failed.append(failed)
        self._error.append(self.errors.code(error))
        if holds and run_s > 0 and devices > 0:
            begin = 0.0 if math.isnan(start_s) else start_s
            self.add_holding(job, begin, begin + run_s if math.isnan(end_s) else end_s, devices)
        return len(self._attempt_job) - 1

    def add_holding(self, job: int, begin_s: float, end_s: float, devices: float) -> None:
        self._held_job.append(job)
        for column, value in zip(self._held.values(), (begin_s, end_s, devices), strict=True):
            column.append(value)

    def add_place(self, attempt: int, machine: str, devices: Iterable[int]) -> None:
        self._place_attempt.append(attempt)
        self._place_machine.append(self.machine_names.code(machine))
        self._place_mask.append(sum({1 << number for number in devices}))

    def set_times(self, column: str, values: Mapping[int, float]) -> None:
        """Changes a column of jobs that are there already."""
        for job, value in values.items():
            self._times[column][job] = value

    def build(
        self,
        *,
        name: str,
        format: str,
        account: Account,
        zero: datetime | None = None,
        capacity: Capacity | None = None,
        quotas: Mapping[str, float] | None = None,
        own: OwnLog | None = None,
        lacks: Mapping[str, str] | None = None,
    ) -> Trace:
        times = {column: _floats(values) for column, values in self._times.items()}
        jobs = Jobs(
            names=self.names,
            **times,
            machines=_ints(self._machines),
            status=_ints(self._status),
            user=self.users.labels(self._user),
            tenant=self.tenants.labels(self._tenant),
            kind=self.kinds.labels(self._kind),
        )
        attempts = Attempts(
            job=_ints(self._attempt_job),
            number=_ints(self._attempt_number),
            **{column: _floats(values) for column, values in self._attempt_times.items()},
            machines=_ints(self._attempt_machines),
            failed=_ints(self._failed).astype(np.bool_),
            error=self.errors.labels(self._error),
        )
        for machine in self.machine_devices:
            self.machine_names.code(machine)
        listed = self.machine_names.words
        machines = Machines(
            names=listed, devices=np.array([self.machine_devices.get(machine, 0) for machine in listed], dtype=np.int64)
        )
        return Trace(
            name=name,
            format=format,
            jobs=jobs,
            attempts=attempts,
            holdings=Holdings(
                job=_ints(self._held_job), **{column: _floats(values) for column, values in self._held.items()}
            ),
            places=Places(
                attempt=_ints(self._place_attempt), machine=_ints(self._place_machine), mask=_ints(self._place_mask)
            ),
            machines=machines,
            capacity=capacity,
            quotas=dict(quotas or {}),
            utilisation=None,
            own=own,
            zero=zero,
            account=account,
            lacks=dict(lacks or {}),
        )


def _floats(values: Sequence[float]) -> NDArray[np.float64]:
    return np.array(values, dtype=np.float64)


def _ints(values: Sequence[int]) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64)

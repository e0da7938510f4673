"""The canonical form that every reader gives and every subject reads: columns of jobs, attempts, holdings, machines.

Columns are arrays, so that a million jobs fit into memory and sums take no time. A time that is not known is NaN, a
text that is not known is "". Times are seconds since `Trace.zero`, or since the trace's own zero where it has no date.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from isoscale.analysis.study.reading import Account
from isoscale.analysis.study.sketch import Utilisation

if TYPE_CHECKING:
    from isoscale.analysis.study.own_log import OwnLog

__all__ = ["SIZES", "STATUSES", "Attempts", "Capacity", "Holdings", "Jobs", "Labels", "Machines", "Places", "Trace"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: how a job ended, by its code; "unfinished": the trace ends before it does, "rejected": never ran, "": not told
STATUSES = ("", "passed", "killed", "failed", "unfinished", "rejected")
#: classes of the Philly study by devices asked for: name, least, most
SIZES: tuple[tuple[str, float, float], ...] = (
    ("1", 0.0, 1.0),
    ("2-4", 1.0, 4.0),
    ("5-8", 4.0, 8.0),
    (">8", 8.0, float("inf")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """A column of texts: codes into a vocabulary whose entry 0 is "", unknown."""

    codes: Ints
    words: tuple[str, ...] = ("",)

    @property
    def known(self) -> bool:
        return len(self.words) > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Jobs:
    """One row per job, in the order of the trace."""

    names: Sequence[str]
    submit_s: Floats
    #: first start and last end
    start_s: Floats
    end_s: Floats
    #: from the first start to the last end, where the trace tells only that
    run_s: Floats
    #: asked for, or held by the first attempt; may be a part of one; 0: none, or not known
    devices: Floats
    #: of the first attempt; 0: not known
    machines: Ints
    status: Ints
    user: Labels
    tenant: Labels
    #: model or type of work
    kind: Labels

    def __len__(self) -> int:
        return len(self.names)

    @property
    def queue_s(self) -> Floats:
        """From submission to the first start; a start before the submission is a clock's mistake and no wait."""
        waited: Floats = np.maximum(self.start_s - self.submit_s, 0.0)
        return waited

    def of_size(self, size: str) -> NDArray[np.bool_]:
        """Which jobs are of a class of sizes; `all` are those with any device."""
        if size == "all":
            return self.devices > 0
        least, most = next((low, high) for name, low, high in SIZES if name == size)
        return (self.devices > least) & (self.devices <= most)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempts:
    """One row per try of a job, by job, then by time."""

    job: Ints
    number: Ints
    start_s: Floats
    end_s: Floats
    run_s: Floats
    devices: Floats
    machines: Ints
    #: whether it ended in failure; of a job's attempts all but the last did
    failed: NDArray[np.bool_]
    #: class of the error, where a log tells
    error: Labels

    def __len__(self) -> int:
        return len(self.job)

    @property
    def device_s(self) -> Floats:
        """Device-seconds held; 0 where the time is not known."""
        held: Floats = np.nan_to_num(self.run_s) * self.devices
        return held


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdings:
    """Devices that a job held from when to when; of an inelastic trace, its attempts."""

    job: Ints
    begin_s: Floats
    end_s: Floats
    devices: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Which devices of which machine an attempt held: one row per attempt and machine; bit g of `mask` is device g."""

    attempt: Ints
    machine: Ints
    mask: Ints

    def __len__(self) -> int:
        return len(self.attempt)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    names: tuple[str, ...] = ()
    devices: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """How many devices there were: `devices[i]` from `since_s[i]` on."""

    since_s: Floats
    devices: Floats
    #: where it is from, for people
    source: str

    def seconds(self, begin_s: float, end_s: float) -> float:
        """Device-seconds that there were between two times."""
        total = 0.0
        until = [*self.since_s[1:].tolist(), float("inf")]
        for since, last, devices in zip(self.since_s.tolist(), until, self.devices.tolist(), strict=True):
            total += devices * max(0.0, min(last, end_s) - max(since, begin_s))
        return total

    @property
    def most(self) -> float:
        return float(self.devices.max()) if len(self.devices) else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One cluster over one stretch of time, as its files tell it."""

    name: str
    format: str
    jobs: Jobs
    attempts: Attempts
    holdings: Holdings
    places: Places
    machines: Machines
    #: None where neither a list of machines nor a log tells
    capacity: Capacity | None
    #: devices of each tenant, where a file tells
    quotas: Mapping[str, float]
    utilisation: Utilisation | None
    own: OwnLog | None
    #: wall-clock time of second 0
    zero: datetime | None
    account: Account
    #: what this format calls a column that is not there: canonical name -> file or column that would tell
    lacks: Mapping[str, str] = field(default_factory=dict)

    @property
    def device_s(self) -> Floats:
        """Device-seconds of each job, over all its holdings."""
        held = np.nan_to_num(self.holdings.end_s - self.holdings.begin_s) * self.holdings.devices
        return np.bincount(self.holdings.job, weights=held, minlength=len(self.jobs)).astype(np.float64)

    def lacking(self, column: str, otherwise: str) -> str:
        return self.lacks.get(column, otherwise)

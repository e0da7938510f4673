"""What is asked and what is answered, as values that go through a pipe as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from isoscale.scheduling.state import Cluster, JobRequest, SpeedModel
from isoscale.sim.costs import Costs

__all__ = [
    "MAX_JOBS",
    "MAX_POLICIES",
    "AskedJob",
    "PolicyAnswer",
    "Progress",
    "Question",
    "Row",
    "Source",
    "rate_tables",
]

#: queue: jobs that are not over, as they stand · day: what was submitted in the last day, from its beginning
Source = Literal["queue", "day"]

MAX_JOBS, MAX_POLICIES = 1_000, 8
#: devices for which a speed is written down
_MAX_DEVICES = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedJob:
    request: JobRequest
    #: work per second on 0, 1, 2, ... devices of each kind
    rates: dict[str, tuple[float, ...]]
    #: steps; None: nobody knows
    work: float | None
    running: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    source: Source
    now_s: float
    cluster: Cluster
    #: the one in use comes first
    policies: tuple[str, ...]
    jobs: tuple[AskedJob, ...]
    costs: Costs
    interval_s: float
    quotas: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A job's line in a Gantt chart."""

    job: str
    start_s: float | None
    end_s: float | None
    #: (from, to, devices)
    spans: tuple[tuple[float, float, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyAnswer:
    """Fields as in `sim.result.Summary`."""

    policy: str
    present: bool
    mean_jct_s: float | None
    p50_jct_s: float | None
    p99_jct_s: float | None
    makespan_s: float | None
    mean_queue_s: float | None
    allocated_utilisation: float | None
    rescales: int
    jobs_finished: int
    #: the simulation ended before they did
    jobs_unfinished: int
    rows: tuple[Row, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A line of what the process tells: how far it is; with the last one come the answers, or what went wrong."""

    share: float
    doing: str = ""
    answers: tuple[PolicyAnswer, ...] = ()
    error: str = ""
    is_last: bool = field(default=False)


def rate_tables(speed: SpeedModel, request: JobRequest, cluster: Cluster) -> dict[str, tuple[float, ...]]:
    """Any speed model as numbers; of kinds that work together, the slowest counts."""
    most = min(request.max_devices, _MAX_DEVICES)
    return {kind: tuple(speed.rates(kind, most, cluster.node_size(kind)).tolist()) for kind in cluster.kinds}

"""What a simulation is given beside jobs, devices and a policy, and what comes out of it. Values only."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from isoscale.scheduling.state import Objective
from isoscale.sim.costs import Costs
from isoscale.sim.disturbances import DeviceFailures, Lending
from isoscale.sim.interference import Interference, Slowdown
from isoscale.sim.job import SimJob
from isoscale.sim.ledger import Ledger
from isoscale.sim.market import PriceStep

__all__ = ["FailedTrial", "Options", "Outcome"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Everything about the world that is not a job, a device or a policy."""

    costs: Costs = field(default_factory=Costs)
    #: seconds between decisions; None: as the policy wishes
    interval_s: float | None = None
    #: a policy that watches time is asked only so often while nothing happens; 0: at every such interval
    quiet_s: float = 0.0
    interference: Slowdown = field(default_factory=Interference)
    failures: DeviceFailures | None = None
    lendings: Sequence[Lending] = ()
    #: prices over time where devices are rented, and how long before they are taken one is told
    prices: Sequence[PriceStep] = ()
    notice_s: float = math.inf
    quotas: Mapping[str, int] = field(default_factory=dict)
    objective: Objective = "jct"
    #: whether jobs of one application learn from each other's measurements
    shares: bool = True
    #: (error class, failures so far) -> whether to try again; None: never
    retry: Callable[[str, int], bool] | None = None
    seed: int = 0
    #: stop here, whatever still runs
    until_s: float = math.inf


@dataclass(frozen=True, slots=True)
class FailedTrial:
    """A job, by its number, failed; if it was not retried it is given up."""

    job: int
    at_s: float
    error: str
    retried: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of it: everything that figures are computed from. Jobs are numbered as they were given."""

    jobs: Sequence[SimJob]
    #: NaN where it never happened
    started_s: Sequence[float]
    finished_s: Sequence[float]
    rescales: Sequence[int]
    rejected: int
    failed: int
    #: trials that failed, in order of time
    failed_trials: Sequence[FailedTrial]
    ledger: Ledger
    prices: Sequence[PriceStep] = ()
    #: wall-clock seconds of each decision, and of the whole
    decision_s: Sequence[float]
    wall_s: float
    num_events: int
    end_s: float

"""When jobs will start and end: the simulator, run forward from the live state under the same policy.

What is known goes in: who runs, work that is left, learned speeds, measured costs. A job of which nobody knows how long
it is never ends here, so nobody is promised its devices. The first estimate of every start and end is kept and held
against what came; the range of later estimates is that of earlier errors.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from isoscale.cluster.picture import Estimate, Picture
from isoscale.cluster.store import Store, SupersededError
from isoscale.scheduling.driver import Driver
from isoscale.scheduling.policy import Policy
from isoscale.scheduling.state import Cluster, JobRequest, SpeedModel
from isoscale.sim.costs import Costs
from isoscale.sim.engine import Simulation
from isoscale.sim.job import ModelTruth, SimJob
from isoscale.sim.options import Options

__all__ = ["Forecaster", "KnownJob", "Situation", "forecast", "horizon_s", "rounds_s", "with_ranges"]

_log = logging.getLogger(__name__)

#: work of a job that says nothing of its end
_ENDLESS = 1e12
_HORIZON_S = 30 * 86_400.0
_SHORTEST_S = 60.0
#: decisions of a forecast at most: a policy that is asked every second for a month would keep a core busy for minutes;
#: and those in which nothing has happened, but for the time that went by
_MOST_ROUNDS, _QUIET_ROUNDS = 1000, 100
#: jobs that are looked at: the future of those far behind is nobody's to tell
_MOST_JOBS = 300
#: pause between two forecasts, as a multiple of what one takes: at most a four-hundredth of a core, but for those of
#: hundreds of jobs, which are made every five minutes all the same
_REST = 400.0
_SOONEST_S, _LATEST_S = 1.0, 300.0
#: shares of a wait within which most earlier forecasts came true, before there are enough of them
_WIDE = (0.5, 2.0)
_ENOUGH = 5


class Engine(Protocol):
    """What the forecast needs of the engine."""

    estimates: Mapping[str, Estimate]
    picture: Picture
    away: set[str]
    device_names: Sequence[Sequence[str]]

    def ask(self, look: Callable[[Any], list[Any]]) -> None: ...

    def known_jobs(self) -> list[KnownJob]: ...

    def costs(self) -> Costs: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownJob:
    """A job as the forecast sees it. `running`: it holds devices."""

    request: JobRequest
    speed: SpeedModel
    #: steps; None: unknown
    remaining: float | None
    running: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What a simulation from the live state begins with."""

    jobs: Sequence[KnownJob]
    #: without what is away
    cluster: Cluster
    costs: Costs
    interval_s: float
    quotas: Mapping[str, int]


def forecast(
    jobs: Sequence[KnownJob],
    cluster: Cluster,
    policy: Policy,
    now: float,
    *,
    costs: Costs,
    interval_s: float,
    quotas: Mapping[str, int],
) -> dict[str, Estimate]:
    """Start and end of each job that gets there. Pure but for the policy's own memory: give it a fresh one."""
    simulated = [_simulated(job, now, costs) for job in jobs[:_MOST_JOBS]]
    if not simulated:
        return {}
    horizon = horizon_s(jobs[:_MOST_JOBS], cluster)
    options = Options(
        costs=costs,
        interval_s=rounds_s(interval_s, horizon),
        quiet_s=horizon / _QUIET_ROUNDS,
        quotas=quotas,
        until_s=now + horizon,
    )
    outcome = Simulation(simulated, cluster, policy, options).run()
    found = {}
    for index, job in enumerate(jobs[:_MOST_JOBS]):
        start, end = outcome.started_s[index], outcome.finished_s[index]
        found[job.request.name] = Estimate(
            start_s=None if job.running or math.isnan(start) else max(now, start),
            end_s=None if job.remaining is None or math.isnan(end) else end,
        )
    return found


def horizon_s(jobs: Sequence[KnownJob], cluster: Cluster) -> float:
    """How long those whose end is known would take one after the other, each on one device, and half as long again for
    what starting costs: little comes later."""
    total = _SHORTEST_S
    for job in jobs:
        rates = [job.speed.rate(((kind, 1),)) for kind in cluster.kinds]
        if job.remaining is not None and any(rates):
            total += 1.5 * job.remaining / min(rate for rate in rates if rate)
    return min(total, _HORIZON_S)


def rounds_s(interval_s: float, horizon: float) -> float:
    """Seconds between decisions: as asked for, but not too many until the horizon."""
    return max(interval_s, horizon / _MOST_ROUNDS) if interval_s > 0 else 0.0


def _simulated(job: KnownJob, now: float, costs: Costs) -> SimJob:
    # Those who run were first, and are served first; all are there before anything is decided.
    at = now - (1e-3 if job.running else 0.0)
    work = _ENDLESS if job.remaining is None else max(1e-6, job.remaining)
    return SimJob(
        request=replace(job.request, submitted_s=at),
        declared=job.speed,
        truth=ModelTruth(job.speed, work),
        declared_work=None if job.remaining is None else work,
        costs=None if (own := job.request.restart_s) is None else replace(costs, rescale_s=own),
    )


def with_ranges(
    estimates: Mapping[str, Estimate], now: float, starts: tuple[float, float], ends: tuple[float, float]
) -> dict[str, Estimate]:
    """`starts`, `ends`: shares of the wait between which it came true so far."""

    def around(moment: float | None, shares: tuple[float, float]) -> tuple[float, float] | None:
        if moment is None:
            return None
        wait = max(0.0, moment - now)
        return now + wait * shares[0], now + wait * shares[1]

    return {
        job: replace(one, start_range_s=around(one.start_s, starts), end_range_s=around(one.end_s, ends))
        for job, one in estimates.items()
    }


def error_shares(past: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    """From (made, estimated, actual): between which shares of the estimated wait four of five came true."""
    shares = [(actual - made) / (estimate - made) for made, estimate, actual in past if estimate - made > 0.5]
    if len(shares) < _ENOUGH:
        return _WIDE
    low, high = np.quantile(shares, [0.1, 0.9])
    return max(0.0, float(low)), float(high)


class Forecaster:
    """A thread of its own: whoever decides does not wait for it."""

    def __init__(
        self,
        store: Store,
        engine: Engine,
        driver: Driver,
        cluster: Cluster,
        make_policy: Callable[[], Policy],
        now: Callable[[], float],
    ) -> None:
        self._store, self._engine, self._driver = store, engine, driver
        self._cluster, self._now = cluster, now
        #: of the policy in use
        self.make_policy = make_policy
        self._woken = threading.Event()
        self._closing = threading.Event()
        self._seconds = 0.0
        self._thread = threading.Thread(target=self._work, name="forecast", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Something has changed."""
        self._woken.set()

    def close(self) -> None:
        self._closing.set()
        self._woken.set()
        if self._thread.is_alive():
            self._thread.join(5)

    def gauges(self) -> dict[str, float]:
        return {"forecast_seconds": self._seconds}

    def _work(self) -> None:
        while not self._closing.is_set():
            self._woken.wait()
            self._woken.clear()
            if self._closing.is_set():
                return
            begun = time.thread_time()
            try:
                self._tell(self._estimate())
            except SupersededError:
                return
            except Exception:  # whatever a policy makes of it: jobs run without an estimate
                _log.exception("no forecast")
            self._seconds = time.thread_time() - begun
            self._closing.wait(min(_LATEST_S, max(_SOONEST_S, self._seconds * _REST)))

    def situation(self) -> Situation | None:
        """As things are now; None if the engine does not get to it."""
        known: list[KnownJob] = []
        ready = threading.Event()

        def look(engine: Engine) -> list[Any]:
            known.extend(engine.known_jobs())
            ready.set()
            return []

        self._engine.ask(look)
        if not ready.wait(10):
            return None
        return Situation(
            jobs=known,
            cluster=self._there(),
            costs=self._engine.costs(),
            interval_s=self._driver.controller.interval_s,
            quotas=self._engine.picture.quotas,
        )

    def _estimate(self) -> dict[str, Estimate]:
        situation = self.situation()
        if situation is None:
            return {}
        now = self._now()
        found = forecast(
            situation.jobs,
            situation.cluster,
            self.make_policy(),
            now,
            costs=situation.costs,
            interval_s=situation.interval_s,
            quotas=situation.quotas,
        )
        starts = error_shares(self._store.forecast_errors("start"))
        ends = error_shares(self._store.forecast_errors("end"))
        return with_ranges(found, now, starts, ends)

    def _there(self) -> Cluster:
        """Without what is away."""
        away = self._engine.away
        nodes = [
            replace(node, num_devices=len(names) - len(away & set(names)))
            for node, names in zip(self._cluster.nodes, self._engine.device_names, strict=True)
        ]
        return Cluster(nodes=tuple(nodes))

    def _tell(self, estimates: dict[str, Estimate]) -> None:
        told = {what: self._store.open_forecasts(what) for what in ("start", "end")}
        new = [
            (job, what, moment)
            for job, one in estimates.items()
            for what, moment in (("start", one.start_s), ("end", one.end_s))
            if moment is not None and job not in told[what]
        ]
        if new:
            with self._store.write(now=self._now()) as tx:
                for job, what, moment in new:
                    tx.forecast(job, what, moment)
                tx.event("forecast", jobs={f"{job} {what}": round(moment, 3) for job, what, moment in new})
        self._engine.estimates = estimates
        self._engine.ask(lambda engine: [])

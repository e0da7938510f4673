"""Our own policy: devices where they shorten the sum of completion times most.

Each round works out what a unit of every job's work is worth (`flowtime`), maximises the worth of the work that is done
exactly (`autoscaler` for one kind of device, `choice` for several), and packs the numbers onto nodes (`packing`).

A change of devices is charged with the seconds that it costs this job, over the time in which it can pay: `horizon_s`
or, if that is longer, a fifth of a / (1 + n) for a job that has held devices for a seconds and was changed n times, and
never beyond the job's end. One that has spent more than a quarter of its time changing is charged at least that share.
A job that is still changing is left alone.

Work that is left is what owners declare; of a job that declares nothing as much is expected as it has had already
(durations are heavy-tailed), and something on top that follows what is usual in the cluster:

    chance to end in the next second on one device   h = 1 / (a + c),  a = device-seconds had,  c = max(300 s, 2 mean a)

As long as such jobs are about, devices go where h * speedup^0.5 is largest in sum (`objectives`). A job that has waited
for `patience_s` is given devices before anybody else: nobody starves.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from isoscale.scheduling.allocation import Target, decisions_for
from isoscale.scheduling.autoscaler import allocate
from isoscale.scheduling.changes import movable_part, restart_s
from isoscale.scheduling.choice import Choices, choose
from isoscale.scheduling.fairness import FairShares
from isoscale.scheduling.money import dollars_per_s, worth_in_dollars
from isoscale.scheduling.objectives import efficient_only, option_values, sizes_of
from isoscale.scheduling.options import DeviceOptions, device_options
from isoscale.scheduling.packing import Counts, Packer
from isoscale.scheduling.policies.counting import active_jobs
from isoscale.scheduling.policy import register
from isoscale.scheduling.state import ClusterState, Decision, JobView
from isoscale.scheduling.throughput import proven_devices, trusted_devices

__all__ = ["Flow"]

Floats = NDArray[np.float64]

# A higher priority outweighs everything that lower ones could gain; so does having waited for long.
_PRIORITY_FACTOR = 1e4
_PATIENCE_BONUS = 1e6
#: so many times what the most valuable option of any job is worth is what a job is that falls behind its fair share
_PROMISE_FACTOR = 10.0
#: what is expected of a job that declares no work, beyond what it has had: so many times what active jobs have had on
#: average, and at least so many seconds on one device
_EXPECTED_FACTOR = 2.0
_EXPECTED_S = 300.0
#: a job is expected to keep devices for so large a part (one over this) of the mean time between its changes so far
_LIVED = 5.0
#: share of its time that a job may have spent in restarts before that share itself is charged
_MOST_SPENT = 0.25


@register("flow", summary="ours: least total completion time, exact, restarts priced; kinds mixed where allowed")
class Flow:
    """`horizon_s` is how long a change may take to pay for itself in a young job; `declared` False ignores declared
    work, so that the policy knows no more than Pollux does; `mix` False keeps every job on one kind at a time.

    `trust` is how many times the devices that a model was measured on a job may be given; on k devices beyond the p
    measured ones a model is believed (p / k)^`doubt` of its rate: what was not seen yet is rarely as good. A job holds
    as few devices as it can until it has run for `trial_s`: errors that show at once cost one device, not many.

    `pause_s` is what pausing a job costs it, starting again included; 0 where that is little beside a job's length.
    Where jobs are about as short as starting them, they would otherwise pause each other again and again.

    `bound` is what `--objective fairness` promises; `hour_worth` are the dollars that an hour of waiting costs under
    `--objective cost`.
    """

    interval_s = 60.0
    oracle = False
    watches_time = True
    gang = False

    def __init__(
        self,
        horizon_s: float = 300.0,
        declared: bool = True,
        patience_s: float = 7 * 86400.0,
        mix: bool = True,
        trust: float = 4.0,
        doubt: float = 0.1,
        trial_s: float = 0.0,
        pause_s: float = 0.0,
        bound: float = 1.5,
        hour_worth: float = 1.0,
    ) -> None:
        self._horizon_s = horizon_s
        self._declared = declared
        self._patience_s = patience_s
        self._mix = mix
        self._trust = trust
        self._doubt = doubt
        self._trial_s = trial_s
        self._pause_s = pause_s
        self._bound = bound
        self._hour_worth = hour_worth
        self._shares = FairShares()

    def decide(self, state: ClusterState) -> list[Decision]:
        if state.objective == "fairness":
            self._shares = self._shares.after(state)
        state = movable_part(state)
        jobs = active_jobs(state)
        capacity = [state.capacity_of[kind] for kind in state.cluster.kinds]
        options, values, worth = self._plan(state, jobs, capacity)
        held = [
            one.index_of(_held(state, job)) if job.allocation else -1 for job, one in zip(jobs, options, strict=True)
        ]
        chosen = _solve(options, values, capacity, held)
        sizes = {
            job.name: _named(state, one.counts[row]) for job, one, row in zip(jobs, options, chosen, strict=True) if row
        }
        packer = Packer(
            state=state,
            worth={job.name: float(weight) for job, weight in zip(jobs, worth, strict=True)},
            horizon_s=self._horizon_s,
        )
        placed = packer.pack(jobs, sizes)
        return decisions_for(state, {name: Target(where) for name, where in placed.items()})

    def _plan(
        self, state: ClusterState, jobs: Sequence[JobView], capacity: Sequence[int]
    ) -> tuple[list[DeviceOptions], list[Floats], Floats]:
        """Options of each job, their values with everything counted in, and the worth of a unit of its work."""
        options = [self._options(state, job) for job in jobs]
        sizes = sizes_of(options)
        if state.objective == "efficiency":
            options = [efficient_only(job, size) for job, size in zip(options, sizes, strict=True)]
            sizes = sizes_of(options)
        service = [job.service_s(state.now) for job in jobs]
        usual = max(_EXPECTED_S, _EXPECTED_FACTOR * sum(service) / max(1, len(service)))
        remaining = [
            self._remaining(state, job, one, had + usual) for job, one, had in zip(jobs, options, service, strict=True)
        ]
        values, worth = option_values(
            state.objective,
            options,
            sizes,
            remaining,
            int(sum(capacity)) if len(capacity) == 1 else _whole_size(options, sizes, capacity),
            all_declared=all(self._is_declared(state, job) for job in jobs),
            interval_s=state.interval_s,
        )
        if state.objective == "cost":
            worth = self._worth_in_dollars(state, options, worth)
            values = [weight * one.rates for weight, one in zip(worth, options, strict=True)]
        elif state.objective == "fairness":
            values = self._with_shares(jobs, options, values)
        charged = [
            self._charge(state, job, one, value, work)
            for job, one, value, work in zip(jobs, options, values, remaining, strict=True)
        ]
        if state.objective == "cost":
            # Devices cost the same whether the job trains on them or stands still.
            charged = [
                value - dollars_per_s(one, state.cluster.kinds, state.prices)
                for value, one in zip(charged, options, strict=True)
            ]
        return options, charged, worth

    def _worth_in_dollars(self, state: ClusterState, options: Sequence[DeviceOptions], weights: Floats) -> Floats:
        kinds, usual = state.cluster.kinds, state.usual_prices
        return np.array(
            [
                worth_in_dollars(one, dollars_per_s(one, kinds, usual), self._hour_worth, float(weight))
                for one, weight in zip(options, weights, strict=True)
            ]
        )

    def _with_shares(
        self, jobs: Sequence[JobView], options: Sequence[DeviceOptions], values: Sequence[Floats]
    ) -> list[Floats]:
        """Values with the promise first: what a job needs that falls behind outweighs what all others gain."""
        needs = self._shares.needs(self._bound)
        promise = _PROMISE_FACTOR * max((float(value.max(initial=0.0)) for value in values), default=0.0)
        return [
            value + promise * np.minimum(1.0, one.rates / needs[job.name]) if job.name in needs else value
            for job, one, value in zip(jobs, options, values, strict=True)
        ]

    def _options(self, state: ClusterState, job: JobView) -> DeviceOptions:
        most = trusted_devices(job.speed, self._trust)
        if self._trial_s and job.running_s(state.now) < self._trial_s:
            most = 1
        if most:
            most = max(most, job.request.min_devices)
        options = device_options(state.cluster, state.capacity_of, job.request, job.speed, most=most, mix=self._mix)
        proven = proven_devices(job.speed)
        if proven is None:
            return options
        beyond = np.maximum(options.counts.sum(axis=1) / max(1, proven), 1.0)
        return DeviceOptions(counts=options.counts, rates=options.rates * beyond**-self._doubt)

    def _remaining(self, state: ClusterState, job: JobView, options: DeviceOptions, expected_s: float) -> float:
        """Work left: declared, or what a device would do in the time that is expected."""
        if self._is_declared(state, job):
            return max(state.remaining[job.name], 1e-9)
        alone = float(options.rates[1]) if len(options.rates) > 1 else 1.0
        return expected_s * alone

    def _is_declared(self, state: ClusterState, job: JobView) -> bool:
        return self._declared and job.name in state.remaining

    def _charge(self, state: ClusterState, job: JobView, options: DeviceOptions, values: Floats, work: float) -> Floats:
        """Values with priorities and patience counted in, and with what a change of devices costs taken off."""
        values = values * _PRIORITY_FACTOR**job.request.priority
        if not job.allocation:
            # Starting costs the same on any devices, sooner or later: no reason not to.
            if state.now - job.since_s >= self._patience_s:
                values = np.where(values > 0, values + _PATIENCE_BONUS * max(1.0, float(values.max())), values)
            return values
        same = options.index_of(_held(state, job))
        if self._pause_s and same >= 0 and options.rates[same] > 0:
            # Any devices spare it the pause; the nearer its end, the less a pause is worth.
            left_s = min(self._horizon_s, work / float(options.rates[same]))
            spared = float(values[same]) * self._pause_s / max(left_s, 1e-9)
            values = np.where(values > 0, values + spared, values)
        cost = restart_s(state, job)
        if not cost:
            return values
        # A job that has lived long on few changes will go on so: for it a small gain pays, too.
        held_s, changes = job.running_s(state.now), job.num_restarts
        span = max(self._horizon_s, (held_s + cost) / (_LIVED * (1 + changes)))
        # No rate gives no value, whatever the charge. A charge of all would make being paused as good as anything.
        spans = np.minimum(span, work / np.where(options.rates > 0, options.rates, np.inf))
        charge = np.minimum(0.9, cost / np.maximum(spans, 1e-9))
        spent = changes * cost / (held_s + cost)
        if spent > _MOST_SPENT:
            charge = np.minimum(0.9, np.maximum(charge, spent))
        if same >= 0:
            charge[same] = 0.0
        return np.asarray(values * (1.0 - charge))


def _solve(
    options: Sequence[DeviceOptions], values: Sequence[Floats], capacity: Sequence[int], held: Sequence[int]
) -> list[int]:
    """The best option of each job, `held` being the rows that they have now; with one kind by the autoscaler, with
    several by `choice`."""
    if len(capacity) > 1:
        choices = [Choices(o.counts, v, row) for o, v, row in zip(options, values, held, strict=True)]
        return list(choose(choices, capacity)[0])
    tables, rows = [], []
    for job, value in zip(options, values, strict=True):
        size = job.counts[:, 0]
        table = np.full(int(size.max()) + 1, -np.inf)
        row = np.zeros(len(table), dtype=np.int64)
        table[size] = value
        row[size] = np.arange(len(size))
        tables.append(table)
        rows.append(row)
    sizes = allocate(tables, capacity[0])
    assert sizes is not None, "every job may be left out"
    return [int(row[size]) for row, size in zip(rows, sizes, strict=True)]


def _whole_size(options: Sequence[DeviceOptions], sizes: Sequence[Floats], capacity: Sequence[int]) -> int:
    """The cluster's size in devices of the fastest kind: the same exchange rates that gave the options' sizes."""
    for job, size in zip(options, sizes, strict=True):
        matrix = job.counts.astype(np.float64)
        if np.linalg.matrix_rank(matrix) == matrix.shape[1]:
            rates = np.linalg.lstsq(matrix, size, rcond=None)[0]
            return max(1, int(np.asarray(capacity) @ rates + 1e-9))
    return max(1, int(sum(capacity)))


def _held(state: ClusterState, job: JobView) -> NDArray[np.int64]:
    counts: dict[str, int] = {}
    for node, count in job.allocation:
        kind = state.cluster.nodes[node].kind
        counts[kind] = counts.get(kind, 0) + count
    return np.array([counts.get(kind, 0) for kind in state.cluster.kinds])


def _named(state: ClusterState, counts: NDArray[np.int64]) -> Counts:
    return tuple((kind, int(count)) for kind, count in zip(state.cluster.kinds, counts, strict=True) if count)

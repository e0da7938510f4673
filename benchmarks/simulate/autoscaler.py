"""Effective Elastic Scaling's comparison: an autoscaler that chooses batches, against elastic schedulers that cannot.

Four job categories with costs fitted to ElasticFlow's measurements on A100 (the table that the package ships):
compute-bound (vgg16), communication-bound (resnet50_cifar10), balanced (resnet50), limited by communication beyond a
few devices (bert). A job trains a fixed number of samples, with any batch between its bounds; a device holds at most
`max_local` samples, and nobody accumulates. Baselines hold the batch at its largest, smallest or a random value, and
are given the best number of devices for it by the same exact program. Jobs arrive for 480 minutes; decisions every 10
minutes; a change costs 30 s; at most 10 devices a job.

The grid (2 clusters x 3 arrival patterns x 3 mixes x queue and drop, 5 policies) was fixed before anything was tuned
and is printed whole. Load is work on one device at its best batch, over what the cluster could do. Beside each cell
stands what no scheduler can exceed (`bounds`): with any batch, and with the batch held.

A second part, beyond the grid, asks where the gain comes from: the even mix on 40 devices under more loads, with
decisions every 10 minutes and every minute. Figures in docs/claims.md come from the grid alone.

    python -m benchmarks.simulate.autoscaler
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks.lib.measure import rounded
from benchmarks.lib.options import parsed, parser
from benchmarks.lib.result import Rows
from benchmarks.simulate.bounds import Demand, least_mean_time, most_completed
from isoscale.scheduling.fit import StepPoint, fit_goodput
from isoscale.scheduling.policy import make_policy
from isoscale.scheduling.state import Cluster, JobRequest, Node, packed_shape
from isoscale.scheduling.throughput import GoodputSpeed
from isoscale.sim.costs import Costs
from isoscale.sim.engine import Options, Simulation
from isoscale.sim.job import ModelTruth, SimJob
from isoscale.sim.worlds.curves import shipped_curves

RESULT, MINUTES = "simulate_autoscaler", 30
_MINUTE_S = 60.0
_SPAN_S = 480 * _MINUTE_S
_NODE_SIZE = 8
_MAX_DEVICES = 10
#: category -> (application, smallest and largest batch, samples that a device holds)
_CATEGORIES = {
    "compute-bound": ("vgg16", 16, 640, 64),
    "communication-bound": ("resnet50_cifar10", 16, 640, 256),
    "balanced": ("resnet50", 16, 640, 64),
    "limited": ("bert", 16, 640, 64),
}
_MIXES = {
    "even": (0.25, 0.25, 0.25, 0.25),
    "compute": (0.7, 0.1, 0.1, 0.1),
    "communication": (0.1, 0.5, 0.1, 0.3),
}
#: (load, load) in turns of one hour
_ARRIVALS = {"low": (0.4, 0.4), "high": (1.2, 1.2), "bursty": (1.6, 0.1)}
_POLICIES = ("autoscaler", "fixed-batch-max", "fixed-batch-min", "fixed-batch-random", "flow")
_BASELINES = _POLICIES[1:4]
_INTERVAL_S = 10 * _MINUTE_S
_COSTS = Costs(start_s=30.0, resume_s=30.0, rescale_s=30.0)
#: loads of the second part, by seconds between decisions
_BEYOND = {600.0: (0.2, 0.4, 0.8, 1.2, 2.0, 4.0), 60.0: (0.4, 1.2, 4.0)}

Row = dict[str, Any]


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--devices", default="")
    made.add_argument("--arrivals", default="")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--policies", default=",".join(_POLICIES))
    arguments = parsed(made)
    policies = arguments.policies.split(",")
    all_devices = arguments.devices or arguments.pick(smoke="8", quick="40", full="40,400")
    arrivals = arguments.arrivals or arguments.pick(smoke="low", quick="low", full=",".join(_ARRIVALS))
    asked = {"policies": arguments.policies, "seed": arguments.seed, "devices": all_devices, "arrivals": arrivals}
    kept = Rows(RESULT, arguments, ("cell",), **asked)
    mixes = list(_MIXES)[: arguments.pick(smoke=1, quick=len(_MIXES), full=len(_MIXES))]
    rows, beyond = [], []
    for devices, arrival, mix, mode in itertools.product(
        map(int, all_devices.split(",")), arrivals.split(","), mixes, ("queue", "drop")
    ):
        cell = {"devices": devices, "arrivals": arrival, "mix": mix, "mode": mode}
        seed = [arguments.seed, devices, list(_ARRIVALS).index(arrival), list(_MIXES).index(mix)]
        jobs = partial(_jobs, devices, _ARRIVALS[arrival], mix, seed)
        rows.append(_kept(kept, jobs, cell, policies, _INTERVAL_S))
    measured = [policy for policy in policies if policy != "flow"]
    for interval_s, loads in _BEYOND.items() if measured and arguments.length == "full" else ():
        for load, mode in itertools.product(loads, ("queue", "drop")):
            cell = {"devices": 40, "load": load, "interval_s": interval_s, "mode": mode}
            jobs = partial(_jobs, 40, (load, load), "even", [arguments.seed, 40, 99])
            beyond.append(_kept(kept, jobs, cell, measured, interval_s))
    kept.finish(rows, beyond_the_grid=beyond, **_headline(rows))


def _kept(
    kept: Rows, jobs: Callable[[], Iterator[SimJob]], cell: Row, policies: Sequence[str], interval_s: float
) -> Row:
    """A cell, simulated unless an earlier run has it."""
    name = "  ".join(map(str, cell.values()))
    if kept.find(cell=name) is None:
        kept.put({"cell": name, **_cell(list(jobs()), cell, policies, interval_s)})
    return {key: value for key, value in (kept.find(cell=name) or {}).items() if key != "cell"}


def _cell(jobs: list[SimJob], cell: Row, policies: Sequence[str], interval_s: float) -> Row:
    """One set of jobs under the policies, beside the bounds."""
    devices, mode = int(cell["devices"]), str(cell["mode"])
    found = {}
    for policy in policies:
        if policy == "flow" and mode == "drop":
            continue  # ours never drops a job
        found[policy] = _one(jobs, devices, policy, {} if policy == "flow" else {"mode": mode}, interval_s)
    bounds = _bounds(jobs, devices, interval_s)
    ours, best = found["autoscaler"]["completed"], max(found[name]["completed"] for name in _BASELINES)
    print(
        "  ".join(map(str, cell.values()))
        + f"  {len(jobs)} jobs, at most {bounds['completed']} and {bounds['mean_jct_s']:.0f} s: "
        + "  ".join(f"{name} {row['completed']} done, {row['mean_jct_s']:.0f} s" for name, row in found.items())
        + f"  | x{ours / max(1, best):.2f} of the best baseline",
        flush=True,
    )
    return {**cell, "jobs": len(jobs), "bounds": bounds, "policies": found}


def _one(jobs: list[SimJob], devices: int, policy: str, options: Mapping[str, object], interval_s: float) -> Row:
    cluster = Cluster(
        nodes=tuple(Node(name=str(i), kind="A100", num_devices=_NODE_SIZE) for i in range(devices // _NODE_SIZE))
    )
    world = Options(costs=_COSTS, interval_s=interval_s, until_s=20 * _SPAN_S)
    # As the paper has it: changes for any gain, and nobody passes one who waits.
    if policy != "flow":
        options = {**options, "paper": True}
    outcome = Simulation(jobs, cluster, make_policy(policy, **options), world).run()
    finished = np.array(outcome.finished_s)
    done = ~np.isnan(finished)
    times = (finished - np.array([job.request.submitted_s for job in jobs]))[done]
    return {
        "completed": int((finished <= _SPAN_S).sum()),
        "completed_in_the_end": int(done.sum()),
        "mean_jct_s": rounded(float(times.mean())) if len(times) else None,
        "decision_ms_p50": rounded(float(np.median(outcome.decision_s) * 1e3)),
    }


def _bounds(jobs: list[SimJob], devices: int, interval_s: float) -> Row:
    free = [_demand(job, interval_s) for job in jobs]
    return {
        "completed": most_completed(free, devices, _SPAN_S),
        "mean_jct_s": rounded(least_mean_time(free, devices)),
        "completed_at_largest_batch": most_completed(
            [_demand(job, interval_s, job.request.max_batch) for job in jobs], devices, _SPAN_S
        ),
        "completed_at_smallest_batch": most_completed(
            [_demand(job, interval_s, job.request.min_batch) for job in jobs], devices, _SPAN_S
        ),
    }


def _demand(job: SimJob, interval_s: float, batch: int = 0) -> Demand:
    """A job's least demand, with any batch or one; it waits for a decision and starts up in any case."""
    request, speed, work = job.request, job.declared, job.truth.total_work
    sizes = range(1, request.max_devices + 1)
    rates = {k: speed.rate(packed_shape("A100", k, _NODE_SIZE), batch) for k in sizes}
    decided = math.ceil(request.submitted_s / interval_s) * interval_s
    return Demand(
        submitted_s=request.submitted_s,
        begin_s=decided + _COSTS.start_s,
        device_s=min(k * work / rate for k, rate in rates.items() if rate > 0),
        fastest_s=work / max(rates.values()),
    )


def _jobs(devices: int, loads: tuple[float, float], mix: str, seed: Sequence[int]) -> Iterator[SimJob]:
    rng = np.random.default_rng(seed)
    speeds = {name: _speed(name) for name in _CATEGORIES}
    now, number, mean_s = 0.0, 0, 45 * _MINUTE_S
    while True:
        load = loads[int(now // 3600) % 2]
        now += rng.exponential(mean_s / (load * devices))
        if now >= _SPAN_S:
            return
        name = str(rng.choice(list(_CATEGORIES), p=_MIXES[mix]))
        speed = speeds[name]
        # Seconds on one device at its best batch: 45 minutes on average, one in ten above 100.
        work = float(rng.lognormal(np.log(mean_s) - 0.32, 0.8)) * float(speed.rates("A100", 1, _NODE_SIZE)[1])
        request = JobRequest(
            name=f"{name}-{number}",
            submitted_s=now,
            requested_devices=4,
            max_devices=_MAX_DEVICES,
            requested_batch=speed.min_batch,
            min_batch=speed.min_batch,
            max_batch=speed.max_batch,
        )
        yield SimJob(request=request, declared=speed, truth=ModelTruth(speed, work), declared_work=work)
        number += 1


def _speed(category: str) -> GoodputSpeed:
    """Costs of a pass and of an exchange, fitted to the measured rates of one application."""
    application, least, most, local = _CATEGORIES[category]
    curves = [curve for curve in shipped_curves() if (curve.application, curve.kind) == (application, "A100")]
    alone = {curve.batch: 1.0 / curve.rates[0] for curve in curves}
    model = GoodputSpeed(
        fixed_s=0.0,
        per_sample_s=0.0,
        initial_batch=least,
        min_batch=least,
        max_batch=most,
        max_local_batch=local,
        accumulates=False,
        proven_devices=None,
    )
    single = [
        StepPoint(num_nodes=1, num_devices=1, local_batch=batch, compute_s=seconds, exchange_s=0.0)
        for batch, seconds in alone.items()
    ]
    costs = fit_goodput(single, model)
    points = list(single)
    for curve in curves:
        for size, rate in zip(curve.sizes, curve.rates, strict=True):
            if 1 < size <= 16:
                compute_s = costs.fixed_s + costs.per_sample_s * curve.batch / size
                points.append(
                    StepPoint(
                        num_nodes=-(-size // _NODE_SIZE),
                        num_devices=size,
                        local_batch=max(1, curve.batch // size),
                        compute_s=compute_s,
                        exchange_s=max(1e-4, 1.0 / rate - compute_s),
                    )
                )
    return GoodputSpeed(
        **{
            **{name: getattr(model, name) for name in model.__dataclass_fields__},
            "fixed_s": costs.fixed_s,
            "per_sample_s": costs.per_sample_s,
            "communication": fit_goodput(points, model).communication,
        }
    )


def _headline(rows: list[Row]) -> Row:
    """The autoscaler against the best baseline of each cell, and against each baseline by itself: least and most."""
    found: dict[str, list[float]] = {}
    for row in rows:
        policies, bounds = row["policies"], row["bounds"]
        ours = policies["autoscaler"]
        against = {name: [policies[name]] for name in _BASELINES} | {"best": [policies[name] for name in _BASELINES]}
        for name, those in against.items():
            most = max(one["completed"] for one in those)
            found.setdefault(f"completed_over_{name}", []).append(ours["completed"] / max(1, most))
            if row["mode"] == "queue":  # where jobs are dropped, those that are left have no queue
                quickest = min(one["mean_jct_s"] for one in those)
                found.setdefault(f"completion_time_of_{name}_over_ours", []).append(quickest / ours["mean_jct_s"])
        best = max(policies[name]["completed"] for name in _BASELINES)
        found.setdefault("bound_over_best", []).append(bounds["completed"] / max(1, best))
        found.setdefault("completed_of_bound", []).append(ours["completed"] / max(1, bounds["completed"]))
    return {name: [rounded(min(values)), rounded(max(values))] for name, values in found.items()}


if __name__ == "__main__":
    main()

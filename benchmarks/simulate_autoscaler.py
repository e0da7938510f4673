"""Effective Elastic Scaling's comparison: an autoscaler that chooses batches, against elastic schedulers that cannot.

Four job categories with costs fitted to ElasticFlow's measurements on A100 (the table that the package ships):
compute-bound (vgg16), communication-bound (resnet50_cifar10), balanced (resnet50), limited by communication beyond a
few devices (bert). A job trains a fixed number of samples, with any batch between its bounds; a device holds at most
`max_local` samples, and nobody accumulates. Baselines hold the batch at its largest, smallest or a random value. Jobs
arrive for 480 minutes; decisions every 10 minutes; a change costs 30 s; at most 10 devices a job.

The grid (2 clusters x 3 arrival patterns x 3 mixes x queue and drop, 5 policies) was fixed before anything was tuned
and is printed whole. Load is work on one device at its best batch, over what the cluster could do.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator

import numpy as np
from measure import save
from simulate_tools import rounded

from isoscale.scheduling.fit import StepPoint, fit_goodput
from isoscale.scheduling.policy import make_policy
from isoscale.scheduling.state import Cluster, JobRequest, Node
from isoscale.scheduling.throughput import GoodputSpeed
from isoscale.sim.costs import Costs
from isoscale.sim.engine import Options, Simulation
from isoscale.sim.job import ModelTruth, SimJob
from isoscale.sim.worlds.curves import shipped_curves

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", default="40,400")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rows: list[dict[str, object]] = []
    for devices, arrival, mix, mode in itertools.product(
        map(int, arguments.devices.split(",")), _ARRIVALS, _MIXES, ("queue", "drop")
    ):
        jobs = list(_jobs(devices, arrival, mix, arguments.seed))
        found = {}
        for policy in _POLICIES:
            options = {"mode": mode} if policy != "flow" else {}
            if policy == "flow" and mode == "drop":
                continue  # ours never drops a job
            found[policy] = _one(jobs, devices, policy, options)
        rows += [
            {
                "devices": devices,
                "arrivals": arrival,
                "mix": mix,
                "mode": mode,
                "jobs": len(jobs),
                "policy": name,
                **row,
            }
            for name, row in found.items()
        ]
        best = max((found[name] for name in _POLICIES[1:4]), key=lambda row: row["completed"])
        print(
            f"{devices:3} devices {arrival:6} {mix:13} {mode:5} {len(jobs):4} jobs: "
            + "  ".join(f"{name} {row['completed']} done, {row['mean_jct_s']} s" for name, row in found.items())
            + f"  | completed x{found['autoscaler']['completed'] / max(1, best['completed']):.2f} of the best baseline",
            flush=True,
        )
    save("simulate_autoscaler", rows, **_headline(rows))


def _one(jobs: list[SimJob], devices: int, policy: str, options: dict[str, str]) -> dict[str, float | int | None]:
    cluster = Cluster(
        nodes=tuple(Node(name=str(i), kind="A100", num_devices=_NODE_SIZE) for i in range(devices // _NODE_SIZE))
    )
    costs = Costs(start_s=30.0, resume_s=30.0, rescale_s=30.0)
    submitted = np.array([job.request.submitted_s for job in jobs])

    def finished(until_s: float) -> tuple[np.ndarray, list[float]]:
        world = Options(costs=costs, interval_s=10 * _MINUTE_S, until_s=until_s)
        outcome = Simulation(jobs, cluster, make_policy(policy, **options), world).run()
        return np.array(outcome.finished_s), list(outcome.decision_s)

    in_time, decision_s = finished(_SPAN_S)
    in_the_end, _ = finished(20 * _SPAN_S)
    done = ~np.isnan(in_the_end)
    return {
        "completed": int((~np.isnan(in_time)).sum()),
        "completed_in_the_end": int(done.sum()),
        "mean_jct_s": rounded(float((in_the_end - submitted)[done].mean())) if done.any() else None,
        "decision_ms_p50": rounded(float(np.median(decision_s) * 1e3)),
    }


def _jobs(devices: int, arrival: str, mix: str, seed: int) -> Iterator[SimJob]:
    rng = np.random.default_rng([seed, devices, list(_ARRIVALS).index(arrival), list(_MIXES).index(mix)])
    speeds = {name: _speed(name) for name in _CATEGORIES}
    now, number, mean_s = 0.0, 0, 45 * _MINUTE_S
    while True:
        load = _ARRIVALS[arrival][int(now // 3600) % 2]
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


def _headline(rows: list[dict[str, object]]) -> dict[str, object]:
    """The most favourable cells: jobs completed and completion time against the best and the worst baseline."""
    cells: dict[tuple[object, ...], dict[str, dict[str, object]]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("devices", "arrivals", "mix", "mode"))
        cells.setdefault(key, {})[str(row["policy"])] = row
    more, most, shorter = [], [], []
    for cell in cells.values():
        ours, baselines = cell["autoscaler"], [cell[name] for name in _POLICIES[1:4]]
        done = [int(row["completed"]) for row in baselines]  # type: ignore[call-overload]
        more.append(int(ours["completed"]) / max(1, *done))  # type: ignore[call-overload]
        most.append(int(ours["completed"]) / max(1, min(done)))  # type: ignore[call-overload]
        times = [float(row["mean_jct_s"]) for row in baselines if row["mean_jct_s"]]  # type: ignore[arg-type]
        shorter.append(max(times) / float(ours["mean_jct_s"]))  # type: ignore[arg-type]
    return {
        "completed_over_best_baseline": [rounded(min(more)), rounded(max(more))],
        "completed_over_worst_baseline_at_most": rounded(max(most)),
        "completion_time_of_worst_baseline_over_ours_at_most": rounded(max(shorter)),
    }


if __name__ == "__main__":
    main()

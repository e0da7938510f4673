"""Elastic-Tiresias against Tiresias: the gain in mean JCT as load grows (EDL claims 89.5 % at its own, unstated load).

The Pollux simulator's eight workloads one after the other (1,280 jobs of 64 hours, each with its owner's batch) on 16
nodes x 4 T4. To set the load, arrivals are pressed together or pulled apart. Load is what jobs would hold if each ran
on what it asks for, over what the cluster has in the time in which they arrive: beyond 1 a scheduler of gangs falls
behind for as long as jobs come. 60 s rounds; 30 s to start or resume.

Two settings, the same for both sides: a job is demoted after 1 device-hour and promoted when it has waited eight times
as long as it ran (what a public implementation gives as EDL's settings), or after 16 device-hours and never promoted
(the Pollux simulator's). EDL's rules are also taken apart: expansion alone is Elastic-Tiresias that never compacts.

    python -m benchmarks.simulate.tiresias --data DATA
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

from benchmarks.lib.measure import rounded
from benchmarks.lib.options import Options as Chosen
from benchmarks.lib.result import Rows
from benchmarks.simulate.tools import data_of, run, with_data
from isoscale.sim.costs import parse_costs
from isoscale.sim.engine import Options
from isoscale.sim.job import SimJob
from isoscale.sim.run import Experiment
from isoscale.sim.workload import Workload

RESULT, MINUTES = "simulate_tiresias", 10
_LOADS = (0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0, 8.0)
_WORKLOADS, _HOURS = range(1, 9), 8
_SETTINGS = {
    "EDL's": {"threshold_s": 3600.0, "starvation": 8.0},
    "Pollux's": {"threshold_s": 16 * 3600.0, "starvation": 0.0},
}
_COSTS = {"stop-free": 0.5, "stop-resume": 30.0}
#: settings, costs and loads of each curve: stop-resume is what EDL improves on
_CURVES = (("EDL's", "stop-free", _LOADS), ("Pollux's", "stop-free", _LOADS), ("EDL's", "stop-resume", _LOADS[2:8:2]))


def main() -> None:
    with data_of(with_data(__doc__)) as arguments:
        _measure(arguments)


def _measure(arguments: Chosen) -> None:
    rows = Rows(RESULT, arguments, ("settings", "costs", "load"))
    for settings, costs, loads in _CURVES[: arguments.pick(smoke=1, quick=3, full=3)]:
        for load in loads[: arguments.pick(smoke=1, quick=2, full=len(loads))]:
            if rows.find(settings=settings, costs=costs, load=load) is None:
                rows.put(_compare(arguments.data, settings, costs, load))
    rows.finish()


def _compare(data: Path, settings: str, costs: str, load: float) -> dict[str, object]:
    experiment = _experiment(data, _WORKLOADS[0], _COSTS[costs])
    jobs = _at_load([job for number in _WORKLOADS for job in _shifted(data, number)], load, experiment)
    knobs = _SETTINGS[settings]
    rigid = run(experiment, "tiresias", jobs, **knobs)[1]
    expanding = run(experiment, "elastic-tiresias", jobs, crowd=10**9, **knobs)[1]
    elastic = run(experiment, "elastic-tiresias", jobs, **knobs)[1]
    gain, of_expansion = (1 - float(row["mean_jct_s"]) / float(rigid["mean_jct_s"]) for row in (elastic, expanding))
    print(
        f"{settings:9} {costs:11} load {load:4}: {rigid['mean_jct_s']:8.0f} s -> {elastic['mean_jct_s']:8.0f} s, "
        f"{gain:.1%} shorter ({of_expansion:.1%} by expansion alone)",
        flush=True,
    )
    names = ("mean_jct_s", "p50_jct_s", "mean_queue_s", "makespan_s", "allocated_utilisation", "rescales")
    return {
        "settings": settings,
        "costs": costs,
        "load": load,
        "jobs": len(jobs),
        "shorter": rounded(gain),
        "shorter_by_expansion_alone": rounded(of_expansion),
        "tiresias": {name: rigid[name] for name in names},
        "expansion_alone": {name: expanding[name] for name in names},
        "elastic_tiresias": {name: elastic[name] for name in names},
    }


def _experiment(data: Path, number: int, rescale_s: float) -> Experiment:
    return Experiment(
        trace=str(data / "pollux" / "workloads" / f"workload-{number}.csv"),
        cluster="16x(T4*4)",
        workload=Workload(speeds=data / "pollux" / "traces", adaptive=False),
        options=Options(costs=parse_costs(f"free:start_s=30,resume_s=30,rescale_s={rescale_s}"), interval_s=60.0),
    )


def _shifted(data: Path, number: int) -> list[SimJob]:
    """One workload's jobs, after those of the workloads before it."""
    later_s = (number - _WORKLOADS[0]) * _HOURS * 3600.0
    return [
        _submitted(job, job.request.submitted_s + later_s, name=f"{number}-{job.request.name}")
        for job in _experiment(data, number, 0.0).jobs(0)
    ]


def _at_load(jobs: list[SimJob], load: float, experiment: Experiment) -> list[SimJob]:
    wanted = math.fsum(job.isolated_s * job.request.requested_devices for job in jobs)
    span = max(job.request.submitted_s for job in jobs)
    factor = wanted / (experiment.cluster_value().num_devices * span) / load
    return [_submitted(job, job.request.submitted_s * factor) for job in jobs]


def _submitted(job: SimJob, at_s: float, name: str = "") -> SimJob:
    request = dataclasses.replace(job.request, submitted_s=at_s, name=name or job.request.name)
    return dataclasses.replace(job, request=request)


if __name__ == "__main__":
    main()

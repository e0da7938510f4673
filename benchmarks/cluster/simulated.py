"""The same workload in the simulator: the service's requests, policies and rounds; speeds and costs of a profile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from benchmarks.cluster.profile import Profile
from benchmarks.cluster.workload import WORKERS, Job
from isoscale.cluster.learning import Learner
from isoscale.cluster.settings import one_policy
from isoscale.scheduling.state import Cluster, JobRequest, Node
from isoscale.scheduling.throughput import TableSpeed
from isoscale.sim.backend import Interference
from isoscale.sim.costs import Costs
from isoscale.sim.engine import Simulation
from isoscale.sim.job import ModelTruth, SimJob
from isoscale.sim.options import Options

_KIND = "cpu"
_CLUSTER = Cluster(nodes=(Node(name="local", kind=_KIND, num_devices=2),))
#: as the service has it: seconds between decisions, and what policies are told that a change costs
_INTERVAL_S, _RESCALE_S = 1.0, 0.5
#: a live service's rounds fall anywhere between arrivals
_PHASES = 20


@dataclass(frozen=True, slots=True)
class Simulated:
    name: str
    wait_s: float
    jct_s: float
    rescales: float


def run(workload: Sequence[Job], profile: Profile, policy: str) -> list[Simulated]:
    """Means over phases of the rounds."""
    runs = [_once(workload, profile, policy, phase / _PHASES * _INTERVAL_S) for phase in range(_PHASES)]
    return [
        Simulated(
            job.name,
            mean(one[number].wait_s for one in runs),
            mean(one[number].jct_s for one in runs),
            mean(one[number].rescales for one in runs),
        )
        for number, job in enumerate(workload)
    ]


def costs(profile: Profile, recipe: str) -> Costs:
    start_s = profile.start_s[recipe]
    return Costs(
        # Ending costs every job once, as its first start does.
        start_s=start_s + profile.end_s,
        resume_s=max(0.0, profile.resume_s + start_s - profile.start_s.get(profile.changed, start_s)),
        rescale_s=profile.rescale_s,
        ready_s=max(0.0, profile.ready_s - profile.rescale_s),
    )


def _once(workload: Sequence[Job], profile: Profile, policy: str, phase_s: float) -> list[Simulated]:
    _, make = one_policy(policy)
    made = make()
    options = Options(
        costs=Costs(handover_s=profile.pause_s),
        interval_s=_INTERVAL_S if made.interval_s > 0 or made.watches_time else None,
        interference=Interference(share=profile.interference),
    )
    jobs = [_job(job, profile, phase_s) for job in workload]
    outcome = Simulation(jobs, _CLUSTER, made, options).run()
    return [
        Simulated(
            job.name,
            outcome.started_s[number] - job.arrival_s - phase_s,
            outcome.finished_s[number] - job.arrival_s - phase_s,
            outcome.rescales[number],
        )
        for number, job in enumerate(workload)
    ]


def _job(job: Job, profile: Profile, phase_s: float) -> SimJob:
    one_s, two_s = profile.alone_s[job.recipe], profile.both_s[job.recipe]
    truth = TableSpeed(tables={_KIND: (0.0, 1 / one_s, 1 / two_s)})
    # What the service makes of the same measurements.
    learner = Learner(workers=WORKERS, kinds=(_KIND,))
    learner.learn_point(((_KIND, 1),), one_s)
    learner.learn_point(((_KIND, 2),), two_s)
    declared = learner.model()
    assert declared is not None
    request = JobRequest(
        name=job.name,
        submitted_s=job.arrival_s + phase_s,
        requested_devices=job.devices,
        num_logical_workers=WORKERS,
        min_devices=1,
        max_devices=job.devices,
        restart_s=_RESCALE_S,
    )
    return SimJob(
        request=request,
        declared=declared,
        truth=ModelTruth(truth, float(job.steps)),
        declared_work=float(job.steps),
        costs=costs(profile, job.recipe),
    )

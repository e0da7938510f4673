"""The same workload in the simulator: the service's requests, policies and rounds; speeds and costs of a profile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean

from benchmarks.cluster.profile import Changes, Speeds
from benchmarks.cluster.workload import WORKERS, Job
from isoscale.cluster.learning import Learner
from isoscale.cluster.settings import one_policy
from isoscale.scheduling.state import Cluster, JobRequest, Node
from isoscale.scheduling.throughput import TableSpeed
from isoscale.sim.costs import Costs
from isoscale.sim.engine import Simulation
from isoscale.sim.interference import PairInterference
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


@dataclass(frozen=True, slots=True)
class Profile:
    """What was measured beforehand."""

    speeds: Speeds
    changes: Changes

    def pairs(self) -> PairInterference:
        speeds = self.speeds
        shares = {(one, other): speeds.share(one, other) for one in speeds.beside_s for other in speeds.beside_s[one]}
        return PairInterference(shares=shares, start=speeds.start_beside)

    def less(self) -> dict[str, Profile]:
        """Without one thing at a time: what the simulator would say if nobody had measured it."""
        speeds = self.speeds
        shares = [speeds.share(one, other) for one in speeds.beside_s for other in speeds.beside_s[one]]
        apart = {one: dict.fromkeys(speeds.beside_s[one], alone) for one, alone in speeds.alone_s.items()}
        alike = {
            one: dict.fromkeys(speeds.beside_s[one], alone / mean(shares)) for one, alone in speeds.alone_s.items()
        }
        return {
            "interference": self._with(replace(speeds, beside_s=apart, start_beside=1.0)),
            "pairs": self._with(replace(speeds, beside_s=alike)),
            "starts beside a neighbour": self._with(replace(speeds, start_beside=1.0)),
            "evaluations": self._with(replace(speeds, evaluation=dict.fromkeys(speeds.evaluation, 0.0))),
        }

    def _with(self, speeds: Speeds) -> Profile:
        return replace(self, speeds=speeds)


def run(workload: Sequence[Job], profile: Profile, policy: str, phases: int = _PHASES) -> list[Simulated]:
    """Means over phases of the rounds."""
    runs = [_once(workload, profile, policy, phase / phases * _INTERVAL_S) for phase in range(phases)]
    return [
        Simulated(
            job.name,
            mean(one[number].wait_s for one in runs),
            mean(one[number].jct_s for one in runs),
            mean(one[number].rescales for one in runs),
        )
        for number, job in enumerate(workload)
    ]


def costs(profile: Profile, job: Job) -> Costs:
    speeds, changes = profile.speeds, profile.changes
    start_s = (speeds.start_s if job.devices == 1 else speeds.start_both_s)[job.recipe]
    # Of another recipe: some import more than others.
    more_s = speeds.start_both_s[job.recipe] - speeds.start_both_s[changes.changed]
    return Costs(
        # Ending costs every job once, as its first start does.
        start_s=max(0.0, start_s + speeds.end_s),
        resume_s=max(0.0, changes.resume_s + more_s),
        rescale_s=changes.rescale_s,
        ready_s=max(0.0, changes.ready_s - changes.rescale_s),
    )


def _once(workload: Sequence[Job], profile: Profile, policy: str, phase_s: float) -> list[Simulated]:
    _, make = one_policy(policy)
    made = make()
    options = Options(
        costs=Costs(handover_s=profile.changes.pause_s),
        interval_s=_INTERVAL_S if made.interval_s > 0 or made.watches_time else None,
        interference=profile.pairs(),
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
    speeds = profile.speeds
    one_s, two_s = (speeds.step_s(job.recipe, devices, job.steps) for devices in (1, 2))
    truth = TableSpeed(tables={_KIND: (0.0, 1 / one_s, 1 / two_s)})
    # What the service makes of the same measurements: it knows no neighbours.
    learner = Learner(workers=WORKERS, kinds=(_KIND,))
    learner.learn_point(((_KIND, 1),), mean([speeds.alone_s[job.recipe], *speeds.beside_s[job.recipe].values()]))
    learner.learn_point(((_KIND, 2),), speeds.both_s[job.recipe])
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
        application=job.recipe,
    )
    return SimJob(
        request=request,
        declared=declared,
        truth=ModelTruth(truth, float(job.steps)),
        declared_work=float(job.steps),
        costs=costs(profile, job),
    )

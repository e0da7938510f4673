"""From a question to its answers: one simulation for each policy, all from the same beginning. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from isoscale.cluster.forecast import KnownJob, horizon_s, rounds_s
from isoscale.cluster.whatif.question import AskedJob, PolicyAnswer, Question, Row
from isoscale.scheduling.throughput import TableSpeed
from isoscale.sim.engine import Simulation
from isoscale.sim.job import ModelTruth, SimJob
from isoscale.sim.options import Options, Outcome
from isoscale.sim.result import summarise
from isoscale.sim.run import parse_policies

__all__ = ["answer"]

#: work of a job that says nothing of its end
_ENDLESS = 1e12
#: spans of a job that are told; a policy that moves a job every round would fill a page
_MAX_SPANS = 200


def answer(question: Question, tell: Callable[[float, str], None]) -> tuple[PolicyAnswer, ...]:
    """`tell(share, policy)` is called now and then. Raises UserError for a policy that there is not."""
    jobs = [_simulated(job, question) for job in question.jobs]
    makers = [next(iter(parse_policies(policy))) for policy in question.policies]
    known = [
        KnownJob(request=one.request, speed=TableSpeed(tables=one.rates), remaining=one.work, running=one.running)
        for one in question.jobs
    ]
    horizon = horizon_s(known, question.cluster)
    latest = max((one.request.submitted_s for one in jobs), default=question.now_s)
    found = []
    for index, (label, make) in enumerate(makers):
        tell(index / len(makers), label)

        def on_progress(ended: int, now: float, index: int = index, label: str = label) -> None:
            tell((index + ended / max(1, len(jobs))) / len(makers), label)

        policy = make()
        interval = question.interval_s if index == 0 or not policy.interval_s else policy.interval_s
        options = Options(
            costs=question.costs,
            interval_s=rounds_s(interval, horizon),
            quotas=question.quotas,
            until_s=latest + horizon,
        )
        outcome = Simulation(jobs, question.cluster, policy, options).run(on_progress)
        found.append(_answered(label, outcome, present=index == 0))
    tell(1.0, "")
    return tuple(found)


def _simulated(job: AskedJob, question: Question) -> SimJob:
    request = job.request
    if question.source == "queue":
        # All are there already; those who run were first, and are served first.
        request = replace(request, submitted_s=question.now_s - (1e-3 if job.running else 0.0))
    work = _ENDLESS if job.work is None else max(1e-6, job.work)
    speed = TableSpeed(tables=job.rates)
    return SimJob(request=request, declared=speed, truth=ModelTruth(speed, work), declared_work=job.work and work)


def _answered(policy: str, outcome: Outcome, *, present: bool) -> PolicyAnswer:
    summary = summarise(outcome)
    first = min((job.request.submitted_s for job in outcome.jobs), default=0.0)
    spans: dict[int, list[tuple[float, float, int]]] = {}
    for job, begin, end, devices in outcome.ledger.held:
        of = spans.setdefault(job, [])
        if of and of[-1][2] == devices and of[-1][1] == begin:
            of[-1] = (of[-1][0], end, devices)
        elif len(of) < _MAX_SPANS:
            of.append((begin, end, devices))
    return PolicyAnswer(
        policy=policy,
        present=present,
        mean_jct_s=_finite(summary.mean_jct_s),
        p50_jct_s=_finite(summary.p50_jct_s),
        p99_jct_s=_finite(summary.p99_jct_s),
        makespan_s=_finite(summary.makespan_s) if summary.jobs_finished else None,
        mean_queue_s=_finite(summary.mean_queue_s),
        allocated_utilisation=_utilisation(outcome, first, first + summary.makespan_s),
        rescales=int(summary.rescales),
        jobs_finished=int(summary.jobs_finished),
        jobs_unfinished=len(outcome.jobs) - int(summary.jobs_finished),
        rows=tuple(
            Row(
                job=job.request.name,
                start_s=_finite(outcome.started_s[index]),
                end_s=_finite(outcome.finished_s[index]),
                spans=tuple(spans.get(index, ())),
            )
            for index, job in enumerate(outcome.jobs)
        ),
    )


def _utilisation(outcome: Outcome, begin: float, end: float) -> float | None:
    """Share of the devices' time that was held until the last end: jobs without one hold theirs for longer."""
    there = outcome.ledger.capacity_seconds(begin, end)
    held = sum(max(0.0, min(until, end) - max(since, begin)) * n for _, since, until, n in outcome.ledger.held)
    return held / there if there > 0 and math.isfinite(there) else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None

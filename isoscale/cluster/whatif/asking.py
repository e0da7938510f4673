"""From the live cluster or its last day to a question: which jobs, how long, how fast, and what had to be assumed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from isoscale.cluster.forecast import Situation
from isoscale.cluster.learning import Learner, devices_of, first_guess
from isoscale.cluster.requests import request_of
from isoscale.cluster.values import JobRecord
from isoscale.cluster.whatif.question import MAX_JOBS, MAX_POLICIES, AskedJob, Question, Source, rate_tables
from isoscale.errors import UserError
from isoscale.scheduling.policy import policy_names
from isoscale.scheduling.state import Cluster, JobRequest
from isoscale.sim.run import named, parse_policies

__all__ = ["ask_about_day", "ask_about_queue", "check_policies"]

#: assumptions that are told one by one
_MAX_TOLD = 20


def check_policies(policies: Sequence[str], present: str) -> tuple[str, ...]:
    """The present one first, each once. Raises UserError, also for one that would have to be imported."""
    wanted = tuple(dict.fromkeys([present, *(one.strip() for one in policies)]))
    if not policies or len(wanted) > MAX_POLICIES + 1:
        problem, remedy = f"{len(policies)} policies", f"give 1 to {MAX_POLICIES}"
        raise UserError(field="policies", value=len(policies), problem=problem, remedy=remedy)
    known = policy_names()
    for one in wanted[1:]:
        if named(one, field="policies")[0] not in known:
            remedy = f"give some of {', '.join(known)}"
            raise UserError(field="policies", value=one[:80], problem="no such policy", remedy=remedy)
        if len(list(parse_policies(one, field="policies"))) != 1:
            raise UserError(field="policies", value=one[:80], problem="several in one", remedy="give a list")
    return wanted


def ask_about_queue(
    situation: Situation, policies: tuple[str, ...], now: float, cluster: Cluster | None
) -> tuple[Question, list[str]]:
    """Jobs that are not over; the question, and what it assumes."""
    there = cluster or situation.cluster
    assumed = _cut(len(situation.jobs))
    jobs = []
    for job in situation.jobs[:MAX_JOBS]:
        if job.remaining is None:
            assumed.append(f"{job.request.name}: nobody knows yet how long it takes; it is taken for endless")
        rates = rate_tables(job.speed, job.request, there)
        jobs.append(AskedJob(request=job.request, rates=rates, work=job.remaining, running=job.running))
    return _question("queue", situation, policies, now, there, jobs), _shortened(assumed)


def ask_about_day(
    situation: Situation,
    policies: tuple[str, ...],
    begin: float,
    cluster: Cluster | None,
    records: Sequence[JobRecord],
    learner_of: Callable[[JobRecord], Learner],
) -> tuple[Question, list[str]]:
    """Jobs that were submitted since `begin`, at their times; what they did tells how long they are and how fast."""
    there = cluster or situation.cluster
    assumed = _cut(len(records))
    jobs = []
    for record in records[:MAX_JOBS]:
        request, learner = request_of(record, there), learner_of(record)
        if not learner.points and record.started_s and record.ended_s and record.step:
            most = [there.kinds[0]] * min(record.most_devices, max(1, there.num_devices))
            learner.learn_point(devices_of(most), max(1e-6, (record.ended_s - record.started_s) / record.step))
        speed = learner.model()
        if speed is None:
            speed = first_guess(record.submission.workers, there.kinds)
            assumed.append(f"{record.id}: its speed was never measured; 0.1 s a turn")
        declared = record.total or record.submission.work or record.submission.until
        work = float(record.step if record.is_over else max(record.step, declared))
        if not work:
            assumed.append(f"{record.id}: nobody knows how long it is; it is left out")
            continue
        jobs.append(AskedJob(request=request, rates=rate_tables(speed, request, there), work=work))
    return _question("day", situation, policies, begin, there, jobs), _shortened(assumed)


def _question(
    source: Source,
    situation: Situation,
    policies: tuple[str, ...],
    now: float,
    cluster: Cluster,
    jobs: Sequence[AskedJob],
) -> Question:
    known = [job for job in jobs if not job.request.kinds or set(job.request.kinds) & set(cluster.kinds)]
    return Question(
        source=source,
        now_s=now,
        cluster=cluster,
        policies=policies,
        # A rigid policy would wait for ever for more than there are.
        jobs=tuple(replace(job, request=_fitting(job, cluster)) for job in known if _fits(job, cluster)),
        costs=situation.costs,
        interval_s=situation.interval_s,
        quotas=dict(situation.quotas),
    )


def _fits(job: AskedJob, cluster: Cluster) -> bool:
    return job.request.min_devices <= cluster.num_devices and any(max(table) > 0 for table in job.rates.values())


def _fitting(job: AskedJob, cluster: Cluster) -> JobRequest:
    request = job.request
    kinds = request.kinds or cluster.kinds
    there = [sum(cluster.nodes[i].num_devices for i in cluster.nodes_of.get(kind, ())) for kind in kinds]
    most = sum(there) if request.mixes_kinds else max(there, default=0)
    return replace(request, requested_devices=max(request.min_devices, min(request.requested_devices, most)))


def _cut(count: int) -> list[str]:
    return [f"{count - MAX_JOBS:,} jobs are left out: at most {MAX_JOBS:,} are simulated"] if count > MAX_JOBS else []


def _shortened(assumed: list[str]) -> list[str]:
    more = len(assumed) - _MAX_TOLD
    return assumed if more <= 0 else [*assumed[:_MAX_TOLD], f"and {more} more of that kind"]

"""The figures of a simulation. What each one means is said beside it; all times are virtual seconds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

import numpy as np
from numpy.typing import NDArray

from isoscale.sim.engine import Outcome
from isoscale.sim.market import dollars

__all__ = ["Details", "Summary", "average", "completion_times", "details", "summarise", "summary_json"]

_SHORT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One policy on one workload; a policy under several seeds has their mean."""

    #: completion: from submission to end, of jobs that finished
    mean_jct_s: float
    p50_jct_s: float
    p99_jct_s: float
    #: from the first submission to the last completion
    makespan_s: float
    #: from submission to the first device, of jobs that started
    mean_queue_s: float
    #: share of the devices' time, from the first submission to the last completion, in which a job held them
    allocated_utilisation: float
    #: and in which they computed: no start, no pause, no waiting for each other, no interference
    busy_utilisation: float
    #: changes of devices or batch after a job's first start, pauses not counted
    rescales: float
    #: wall-clock milliseconds of a decision
    decision_ms_p50: float
    jobs_finished: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Details:
    """What a summary leaves out."""

    #: 99th percentile of finish-time unfairness: completion time over what a fair share would have given, which is the
    #: time alone on the requested devices, times by how much demand exceeded the cluster during the job's life;
    #: times under 10 s count as 10 s, or the shortest job would be all that it shows
    unfairness_p99: float
    #: jobs that have a deadline, and those of them that ended by then; one that was refused did not
    deadlines: int
    deadlines_met: int
    jobs_unfinished: int
    jobs_rejected: int
    #: given up after a trial that failed
    jobs_failed: int
    #: trials that failed and were tried again
    retries: int
    #: device-hours that failed trials had held
    failed_device_h: float
    #: error class -> [trials that failed, of them retried, jobs given up], most trials first
    failures: dict[str, list[int]]
    decisions: int
    decision_ms_p99: float
    #: wall-clock seconds, events (submissions, ends, failures, ...), microseconds for each
    wall_s: float
    events: int
    event_us: float
    #: seconds that lent devices were waited for when they were wanted back
    reclaims: int
    reclaim_max_s: float
    #: largest of what `unfairness_p99` is a percentile of, and the share of jobs that did worse than their fair share
    unfairness_max: float
    unfair_share: float
    #: paid for devices held, in all and for each job that finished; 0 where nothing is paid
    dollars: float
    dollars_per_job: float


def summarise(outcome: Outcome) -> Summary:
    submitted, started, finished = _times(outcome)
    jct = completion_times(outcome)
    begin = float(submitted.min()) if len(submitted) else 0.0
    end = float(np.nanmax(finished)) if len(jct) else outcome.end_s
    there = outcome.ledger.capacity_seconds(begin, end)
    waited = (started - submitted)[np.isfinite(started)]
    return Summary(
        mean_jct_s=_mean(jct),
        p50_jct_s=_percentile(jct, 50),
        p99_jct_s=_percentile(jct, 99),
        makespan_s=end - begin,
        mean_queue_s=_mean(waited),
        allocated_utilisation=outcome.ledger.device_seconds() / there if there else 0.0,
        busy_utilisation=outcome.ledger.busy_seconds() / there if there else 0.0,
        rescales=sum(outcome.rescales),
        decision_ms_p50=1e3 * _percentile(np.asarray(outcome.decision_s), 50) if outcome.decision_s else 0.0,
        jobs_finished=len(jct),
    )


def details(outcome: Outcome) -> Details:
    decisions = np.asarray(outcome.decision_s)
    finished = len(completion_times(outcome))
    unfair, paid = unfairness(outcome), math.fsum(dollars(outcome.ledger.rented, outcome.prices).values())
    return Details(
        unfairness_p99=_percentile(unfair, 99),
        deadlines=sum(job.request.deadline_s is not None for job in outcome.jobs),
        deadlines_met=sum(
            end <= job.request.deadline_s  # NaN, not ended, is in no time
            for job, end in zip(outcome.jobs, outcome.finished_s, strict=True)
            if job.request.deadline_s is not None
        ),
        jobs_unfinished=len(outcome.jobs) - finished - outcome.rejected - outcome.failed,
        jobs_rejected=outcome.rejected,
        jobs_failed=outcome.failed,
        retries=sum(trial.retried for trial in outcome.failed_trials),
        failed_device_h=_failed_device_s(outcome) / 3600.0,
        failures=_failures(outcome),
        decisions=len(decisions),
        decision_ms_p99=1e3 * _percentile(decisions, 99) if len(decisions) else 0.0,
        wall_s=outcome.wall_s,
        events=outcome.num_events,
        event_us=1e6 * outcome.wall_s / max(1, outcome.num_events),
        reclaims=len(outcome.ledger.reclaims),
        reclaim_max_s=max((latency for _, _, latency in outcome.ledger.reclaims), default=0.0),
        unfairness_max=_percentile(unfair, 100),
        unfair_share=float((unfair > 1.0).mean()) if len(unfair) else math.nan,
        dollars=paid,
        dollars_per_job=paid / finished if finished else math.nan,
    )


def _failures(outcome: Outcome) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for trial in outcome.failed_trials:
        row = found.setdefault(trial.error, [0, 0, 0])
        row[0] += 1
        row[1 if trial.retried else 2] += 1
    return dict(sorted(found.items(), key=lambda item: (-item[1][0], item[0])))


def _failed_device_s(outcome: Outcome) -> float:
    """What jobs held up to their last failure: a trial holds devices from the failure before, or from the start."""
    last = {trial.job: trial.at_s for trial in outcome.failed_trials}
    return math.fsum(
        (end - begin) * devices for job, begin, end, devices in outcome.ledger.held if end <= last.get(job, -math.inf)
    )


def average(summaries: Sequence[Summary]) -> Summary:
    """The mean of every figure over the seeds that have it."""
    columns = {one.name: [getattr(summary, one.name) for summary in summaries] for one in fields(Summary)}
    known = {name: np.array([v for v in values if not math.isnan(v)]) for name, values in columns.items()}
    return Summary(**{name: _mean(values) for name, values in known.items()})


def summary_json(summary: Summary) -> dict[str, float | None]:
    """JSON has no NaN: a mean of nothing is null. Counts are whole numbers."""
    found: dict[str, float | None] = {}
    for name, value in asdict(summary).items():
        whole = name in ("rescales", "jobs_finished") and float(value).is_integer()
        found[name] = None if math.isnan(value) else int(value) if whole else value
    return found


def completion_times(outcome: Outcome) -> NDArray[np.float64]:
    submitted, _, finished = _times(outcome)
    jct = finished - submitted
    kept: NDArray[np.float64] = jct[np.isfinite(jct)]
    return kept


def unfairness(outcome: Outcome) -> NDArray[np.float64]:
    """Of each job that finished; above 1 it did worse than its fair share."""
    submitted, _, finished = _times(outcome)
    done = np.isfinite(finished)
    if not done.any():
        return np.zeros(0)
    wanted = np.array([job.request.requested_devices for job in outcome.jobs], dtype=float)
    alone = np.array([job.isolated_s for job in outcome.jobs])
    left = np.where(done, finished, outcome.end_s)
    # Demand over time is a staircase; its integral up to any time is piecewise linear.
    times = np.concatenate([submitted, left])
    steps = np.concatenate([wanted, -wanted])
    order = np.argsort(times, kind="stable")
    times, demand = times[order], np.cumsum(steps[order])
    area = np.concatenate([[0.0], np.cumsum(demand[:-1] * np.diff(times))])
    devices = max(1, outcome.ledger.capacity[0][1])
    lived = np.maximum(left - submitted, 1e-9)
    crowding = (np.interp(left, times, area) - np.interp(submitted, times, area)) / lived / devices
    fair = np.maximum(alone, _SHORT_S) * np.maximum(1.0, crowding)
    ratio: NDArray[np.float64] = np.maximum(lived, _SHORT_S) / fair
    return ratio[done]


def _times(outcome: Outcome) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    submitted = np.array([job.request.submitted_s for job in outcome.jobs])
    return submitted, np.asarray(outcome.started_s, dtype=float), np.asarray(outcome.finished_s, dtype=float)


def _mean(values: NDArray[np.float64]) -> float:
    # The same in whatever order: a log has jobs as they ended.
    return math.fsum(values.tolist()) / len(values) if len(values) else math.nan


def _percentile(values: NDArray[np.float64], level: float) -> float:
    return float(np.percentile(values, level)) if len(values) else math.nan

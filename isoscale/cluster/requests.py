"""What a scheduler is told of a job: its request, its speed, the work that is left, from its row and what it says."""

from __future__ import annotations

from dataclasses import replace

from isoscale.cluster.batches import Batches, allowed_sizes
from isoscale.cluster.change_costs import is_news
from isoscale.cluster.learning import first_guess
from isoscale.cluster.live import Live
from isoscale.cluster.values import JobRecord
from isoscale.protocol.status import JobStatus
from isoscale.scheduling.driving import Happening
from isoscale.scheduling.events import JobProgress, JobSubmitted, RequestChanged, SpeedLearned
from isoscale.scheduling.state import Cluster, JobRequest

__all__ = ["asked_of", "has_passed", "learned", "progress_of", "request_of", "submission_of"]

#: between two answers of a job that trains, at most: what is longer is no training that anybody saw
_SEEN_S = 5.0


def asked_of(live: Live, cluster: Cluster) -> JobRequest:
    """With what the job itself has told and shown so far."""
    return request_of(live.record, cluster, live.batches, live.restart_s, is_on_trial=live.is_on_trial)


def request_of(
    record: JobRecord,
    cluster: Cluster,
    batches: Batches | None = None,
    restart_s: float | None = None,
    *,
    is_on_trial: bool = False,
) -> JobRequest:
    """`batches`: sizes that may be chosen for it, once it has said which it allows. `restart_s`: what a change costs,
    once that was seen. `is_on_trial`: it gets no more devices than it needs."""
    submission = record.submission
    kinds = submission.kinds or cluster.kinds
    there = max(
        (sum(cluster.nodes[i].num_devices for i in cluster.nodes_of.get(kind, ())) for kind in kinds), default=0
    )
    mixes = submission.determinism == "heterogeneous" and len(kinds) > 1
    if mixes:
        there = sum(node.num_devices for node in cluster.nodes if node.kind in kinds)
    most = max(submission.min_devices, 1 if is_on_trial else record.most_devices)
    sizes = tuple(size * submission.workers for size in batches.sizes) if batches is not None else ()
    return JobRequest(
        name=record.id,
        submitted_s=record.submitted_s,
        # A rigid policy would wait for ever for more than there are.
        requested_devices=max(submission.min_devices, min(most, there or most)),
        num_logical_workers=submission.workers,
        min_devices=submission.min_devices,
        max_devices=most,
        kinds=tuple(submission.kinds),
        mixes_kinds=mixes,
        requested_batch=batches.begun_with * submission.workers if batches is not None else 0,
        min_batch=min(sizes, default=0),
        max_batch=max(sizes, default=0),
        batch_sizes=sizes,
        priority=record.priority,
        tenant=record.tenant,
        restart_s=restart_s,
    )


def submission_of(live: Live, cluster: Cluster) -> JobSubmitted:
    record = live.record
    speed = live.learner.model() or first_guess(record.submission.workers, cluster.kinds)
    work = record.total or record.submission.work or record.submission.until
    return JobSubmitted(asked_of(live, cluster), speed, float(work) if work else None)


def learned(live: Live, status: JobStatus, cluster: Cluster, now: float) -> list[Happening]:
    """What its coordinator's answer says that was not known: sizes it may have, what a change costs it, how fast it is,
    how far it is."""
    submission, before, is_asked_anew = live.record.submission, live.restart_s, False
    live.status = status
    if "samples" in status:
        live.samples = status["samples"]
    live.learner.look(status)
    declared = status.get("batch")
    if live.batches is None and declared is not None and (sizes := allowed_sizes(submission.batch_sizes, declared)):
        live.batches = Batches(
            workers=submission.workers,
            kinds=cluster.kinds,
            sizes=sizes,
            begun_with=declared["size"],
            size=declared["size"],
        )
        is_asked_anew = True
    switch_s = status.get("switch_s")
    if switch_s is not None and is_news(before, switch_s):
        live.restart_s, is_asked_anew = switch_s, True
    events: list[Happening] = []
    if is_asked_anew:
        events.append(RequestChanged(asked_of(live, cluster)))
    if live.batches is not None:
        live.batches.look(status, now)
    model = live.batches.model() if live.batches is not None else live.learner.model()
    if model is not None:
        events.append(SpeedLearned(live.record.id, model))
    return [*events, *progress_of(live)]


def has_passed(live: Live, status: JobStatus, now: float, trial_s: float) -> bool:
    """Whether its trial is over with this answer of its coordinator's: it has trained for so long, in all its tries."""
    if not live.is_on_trial or status["state"] != "training" or not status["step"]:
        return False
    if live.seen_s:
        live.trained_s += min(now - live.seen_s, _SEEN_S)
    live.seen_s = now
    live.is_on_trial = live.trained_s < trial_s
    return not live.is_on_trial


def progress_of(live: Live) -> list[Happening]:
    """In the unit of its speed model: steps, of the smallest size where sizes may be chosen."""
    status, submission = live.status, live.record.submission
    if status is None:
        return []
    total = status.get("total", 0) or submission.work or submission.until
    if not total:
        return []
    if total != live.record.total:
        live.record = replace(live.record, total=total)
    factor = live.batches.work_factor if live.batches is not None else 1.0
    return [JobProgress(live.record.id, max(0, total - status["step"]) * factor)]

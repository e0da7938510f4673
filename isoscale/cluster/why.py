"""Why a job is where it is, with the numbers: typed reasons, in strict order of precedence. Pure.

The first reason that applies is told; those behind it would not help if it stayed.
"""

from __future__ import annotations

from isoscale.cluster.picture import Estimate, JobPicture, Picture
from isoscale.cluster.values import JobRecord, Why

__all__ = ["MOST_AHEAD", "REASONS", "explain"]

#: jobs ahead of one that are named: its place says how many there are
MOST_AHEAD = 100

#: in order of precedence
REASONS: dict[str, str] = {
    "ended": "the job is over",
    "cancelling": "it was cancelled and is ending",
    "paused_by_owner": "its owner paused it",
    "dependency": "other jobs must finish first",
    "unknown_kind": "no device of a kind that it may use",
    "too_large": "it needs more devices than there are",
    "retry_later": "it failed and waits for its next try",
    "silent": "its coordinator does not answer",
    "starting": "its processes are being started",
    "releasing": "devices that it shall get are still being freed",
    "running": "it trains",
    "quota": "its tenant has used its quota",
    "preempted": "its devices went to others",
    "no_free_device": "all devices that it may use are held",
    "decision_due": "devices are free, and the policy has not decided yet",
    "policy": "the policy serves others first",
}


def explain(job: JobRecord, picture: Picture, tries_at_s: float = 0.0) -> Why:
    """`tries_at_s`: when a failed job is tried again."""
    found = picture.jobs.get(job.id)
    if job.is_over or found is None:
        return _ended(job) if job.is_over else Why(reason="decision_due", text="it was submitted this moment")
    estimate = picture.estimates.get(job.id, Estimate())
    reason, text, numbers = _reason(job, found, picture, tries_at_s)
    position = picture.positions.get(job.id)
    usable = {device for node in picture.nodes if _may_use(job, node.kind) for device in node.devices}
    holders: dict[str, int] = {}
    if position is not None:
        for device, holder in picture.holders.items():
            if device in usable and holder != job.id:
                holders[holder] = holders.get(holder, 0) + 1
    return Why(
        reason=reason,
        text=text,
        position=position,
        ahead=picture.queue[: min(position - 1, MOST_AHEAD)] if position else (),
        holders=holders,
        estimated_start_s=estimate.start_s,
        estimated_end_s=estimate.end_s,
        start_range_s=estimate.start_range_s,
        end_range_s=estimate.end_range_s,
        numbers=numbers,
    )


def _ended(job: JobRecord) -> Why:
    text = {
        "finished": f"finished at step {job.step}",
        "failed": job.error or "failed",
        "cancelled": job.error or "cancelled",
    }
    return Why(reason="ended", text=text[job.state])


def _reason(
    job: JobRecord, found: JobPicture, picture: Picture, tries_at_s: float
) -> tuple[str, str, dict[str, float]]:
    standing, submission = found.standing, job.submission
    held = len(standing.granted)
    if job.wanted == "cancel":
        left = f"; {_devices(len(standing.holds))} not free yet" if standing.holds else ""
        return "cancelling", f"cancelled{left}", {"holds": len(standing.holds)}
    if job.wanted == "pause":
        if standing.is_up:
            return "paused_by_owner", "its owner paused it; it is writing its state", {}
        return "paused_by_owner", f"its owner paused it; isoscale jobs resume {job.id} lets it go on", {}
    if found.waits_for:
        return "dependency", f"waits for {', '.join(found.waits_for)} to finish", {"waits_for": len(found.waits_for)}
    kinds = {node.kind for node in picture.nodes}
    if submission.kinds and not kinds & set(submission.kinds):
        text = f"it may use {', '.join(submission.kinds)} only, and there is {', '.join(sorted(kinds)) or 'nothing'}"
        return "unknown_kind", text, {}
    there = sum(len(node.devices) - len(node.away) for node in picture.nodes if _may_use(job, node.kind))
    needed = max(1, submission.min_devices)
    if there < needed and not held:
        text = f"needs {_devices(needed)}, and {there} {_are(there)} there that it may use"
        return "too_large", text, {"needed": needed, "there": there}
    if standing.not_before_s > picture.t:
        wait = standing.not_before_s - picture.t
        how = f"failed {_times(standing.failures)}" if standing.failures else "did not begin"
        text = f"{how}{f' ({found.verdict})' if found.verdict else ''}; tried again in {wait:.0f} s"
        return "retry_later", text, {"failures": standing.failures, "wait_s": round(wait, 3)}
    if standing.is_silent:
        text = f"its coordinator does not answer; it keeps {_devices(len(standing.holds))}"
        return "silent", text, {"holds": len(standing.holds)}
    if held:
        return _with_devices(found, held)
    wanted = sum(count for _, count in standing.wanted)
    if wanted:
        return "releasing", f"gets {_devices(wanted)} as soon as others have let go of them", {"wanted": wanted}
    return _without_devices(job, picture, needed)


def _with_devices(found: JobPicture, held: int) -> tuple[str, str, dict[str, float]]:
    standing = found.standing
    wanted = sum(count for _, count in standing.wanted)
    if standing.state == "starting":
        return "starting", f"its processes are being started on {_devices(held)}", {"devices": held}
    if wanted > held:
        text = f"trains on {_devices(held)}; gets {wanted} as soon as others have let go of them"
        return "releasing", text, {"devices": held, "wanted": wanted}
    return (
        "running",
        f"trains on {_devices(held)}" + (f" ({standing.reason})" if standing.reason else ""),
        {"devices": held},
    )


def _without_devices(job: JobRecord, picture: Picture, needed: int) -> tuple[str, str, dict[str, float]]:
    usable = [node for node in picture.nodes if _may_use(job, node.kind)]
    taken = picture.holders
    free = sum(device not in taken and device not in node.away for node in usable for device in node.devices)
    total = sum(len(node.devices) - len(node.away) for node in usable)
    position = picture.positions.get(job.id)
    quota = picture.quotas.get(job.tenant)
    if quota is not None:
        held = sum(
            len(one.standing.granted) for id_, one in picture.jobs.items() if picture.tenants.get(id_) == job.tenant
        )
        if held >= quota:
            text = f"tenant {job.tenant} holds {held} of its quota of {_devices(quota)} while others wait"
            return "quota", text, {"held": held, "quota": quota}
    numbers: dict[str, float] = {"free": free, "needed": needed, "total": total}
    if job.started_s is not None and free < needed:
        jobs = len({taken[device] for node in usable for device in node.devices if device in taken} - {job.id})
        text = (
            f"its devices went to others under {picture.policy}; {_jobs(jobs)} {_hold(jobs)} {total - free} of {total}"
        )
        return "preempted", text, numbers
    if free < needed:
        jobs = len({taken[device] for node in usable for device in node.devices if device in taken})
        place = f"; place {position} of {len(picture.queue)}" if position else ""
        rest = f"{_jobs(jobs)} {_hold(jobs)} the rest{place}"
        text = f"needs {_devices(needed)}, {free} of {total} {_are(free)} free; {rest}"
        return "no_free_device", text, numbers
    if picture.decides_in_s is not None:
        text = f"{_devices(free)} free; {picture.policy} decides in {max(0.0, picture.decides_in_s):.1f} s"
        return "decision_due", text, {**numbers, "decides_in_s": round(picture.decides_in_s, 3)}
    place = f" (place {position} of {len(picture.queue)})" if position else ""
    return (
        "policy",
        f"{picture.policy} serves others first{place}; {free} of {total} devices {_are(free)} free",
        numbers,
    )


def _may_use(job: JobRecord, kind: str) -> bool:
    return not job.submission.kinds or kind in job.submission.kinds


def _devices(count: int) -> str:
    return f"{count} device{'' if count == 1 else 's'}"


def _jobs(count: int) -> str:
    return f"{count} job{'' if count == 1 else 's'}"


def _hold(count: int) -> str:
    return "holds" if count == 1 else "hold"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"

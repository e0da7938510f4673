"""Jobs and devices as clients see them, from the database and the picture. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from isoscale.cluster.auth import Caller
from isoscale.cluster.picture import JobPicture, Picture
from isoscale.cluster.values import DeviceShown, JobRecord, JobShown, NodeShown
from isoscale.cluster.why import explain
from isoscale.scheduling.driving import Standing

__all__ = ["actions", "show_job", "show_nodes"]


_NOTHING = JobPicture(standing=Standing())


def show_job(job: JobRecord, picture: Picture, caller: Caller, directory: str = "") -> JobShown:
    found = None if job.is_over else picture.jobs.get(job.id)
    live = found or _NOTHING
    submission = job.submission
    why = explain(job, picture)
    if caller.only_tenant is not None:
        # Places are everybody's business, names of jobs of other tenants are not.
        own = [one for one in why.ahead if picture.tenants.get(one) == caller.only_tenant]
        why = replace(why, ahead=tuple(own), holders=_own(why.holders, picture, caller))
    return JobShown(
        id=job.id,
        name=job.name,
        tenant=job.tenant,
        owner=job.owner,
        state=job.state,
        wanted=job.wanted,
        priority=job.priority,
        devices=live.standing.holds,
        executors=live.executors,
        workers=submission.workers,
        min_devices=submission.min_devices,
        max_devices=job.most_devices,
        step=max(job.step, live.step),
        total=live.total or job.total,
        samples=live.samples if live.samples is not None else job.samples,
        submitted_s=job.submitted_s,
        started_s=job.started_s,
        ended_s=job.ended_s,
        digest=job.digest,
        error=job.error,
        exit_code=job.exit_code,
        script=job.script,
        why=why,
        actions=actions(job),
        loss=live.loss,
        steps_per_s=live.steps_per_s,
        batch=live.batch,
        noise_scale=live.noise_scale,
        failures=max(job.failures, live.standing.failures),
        after=submission.after,
        directory=directory,
    )


def actions(job: JobRecord) -> tuple[str, ...]:
    """Verbs that make sense now: which buttons to show."""
    if job.is_over or job.wanted == "cancel":
        return ()
    return ("resume" if job.wanted == "pause" else "pause", "cancel", "priority", "scale")


def show_nodes(picture: Picture, caller: Caller) -> list[NodeShown]:
    holders, granted = picture.holders, picture.granted
    shown = []
    for node in picture.nodes:
        devices = []
        for device in node.devices:
            holder = holders.get(device, "")
            state: Literal["free", "held", "releasing", "away"] = "free"
            if holder:
                state = "held" if granted.get(device) == holder else "releasing"
            elif device in node.away:
                state = "away"
            known = not holder or caller.only_tenant in (None, picture.tenants.get(holder))
            devices.append(
                DeviceShown(
                    id=device,
                    node=node.name,
                    kind=node.kind,
                    state=state,
                    job=holder if known else "",
                    cores=node.cores.get(device, ()),
                )
            )
        total = len(node.devices)
        shown.append(
            NodeShown(
                name=node.name,
                kind=node.kind,
                num_devices=total,
                num_ours=total - len(node.away),
                devices=tuple(devices),
            )
        )
    return shown


def _own(holders: dict[str, int], picture: Picture, caller: Caller) -> dict[str, int]:
    """Those of others are added up under "others"."""
    found: dict[str, int] = {}
    for job, count in holders.items():
        name = job if picture.tenants.get(job) == caller.only_tenant else "others"
        found[name] = found.get(name, 0) + count
    return found

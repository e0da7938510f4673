"""The picture of the cluster, made from the driver's book and what jobs say of themselves. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import replace

from isoscale.cluster.live import Live
from isoscale.cluster.picture import Estimate, JobPicture, NodePicture, Picture
from isoscale.scheduling.driver import Driver
from isoscale.scheduling.driving import Standing

__all__ = ["later", "picture_of"]


def picture_of(
    driver: Driver,
    devices: Sequence[Sequence[str]],
    live: Mapping[str, Live],
    *,
    now: float,
    policy: str,
    quotas: Mapping[str, int],
    away: Set[str],
    cores: Mapping[str, tuple[int, ...]],
    estimates: Mapping[str, Estimate],
) -> Picture:
    """`devices`: names of each node's."""
    controller = driver.controller
    waiting = sorted(controller.waiting.values(), key=lambda view: (-view.request.priority, view.order))
    due = driver.next_due_s(now)
    return Picture(
        t=now,
        policy=policy,
        interval_s=controller.interval_s,
        nodes=tuple(
            NodePicture(
                name=node.name,
                kind=node.kind,
                devices=tuple(names),
                away=frozenset(away & set(names)),
                cores={name: cores[name] for name in names if name in cores},
            )
            for node, names in zip(controller.cluster.nodes, devices, strict=True)
        ),
        jobs={
            job: _job(driver.standing(job) if job in driver else Standing(state=one.record.state), one)
            for job, one in live.items()
        },
        queue=tuple(view.name for view in waiting),
        tenants={job: one.record.tenant for job, one in live.items()},
        quotas=quotas,
        estimates=estimates,
        decides_in_s=_left_s(due, now),
    )


def later(
    picture: Picture,
    live: Mapping[str, Live],
    jobs: Collection[str],
    now: float,
    due: float,
    estimates: Mapping[str, Estimate],
) -> Picture:
    """The picture when nothing has changed but what these jobs say of themselves."""
    said = {job: _job(picture.jobs[job].standing, live[job]) for job in jobs if job in picture.jobs and job in live}
    shown = {**picture.jobs, **said} if said else picture.jobs
    return replace(picture, t=now, jobs=shown, estimates=estimates, decides_in_s=_left_s(due, now))


def _left_s(due: float, now: float) -> float | None:
    return None if math.isinf(due) else due - now


def _job(standing: Standing, live: Live) -> JobPicture:
    status, samples = live.status, live.samples if live.samples is not None else live.record.samples
    if status is None:
        return JobPicture(
            standing=standing,
            step=live.reached,
            total=live.record.total,
            samples=samples,
            waits_for=live.waits_for,
            verdict=live.verdict.why if live.verdict is not None else "",
        )
    loss, batch = status["loss"], status.get("batch")
    return JobPicture(
        standing=standing,
        step=status["step"],
        total=status.get("total", 0),
        samples=samples,
        batch=batch["size"] if batch is not None else None,
        noise_scale=status.get("noise_scale"),
        loss=loss if isinstance(loss, float | int) and math.isfinite(loss) else None,
        steps_per_s=status.get("steps_per_s"),
        executors=sum(one["logical_workers"] is not None for one in status["executors"]),
        waits_for=live.waits_for,
        doing=status.get("pending") or status["state"],
    )

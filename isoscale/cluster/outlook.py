"""What is known of jobs, for those who look ahead: the forecast, and whoever wants devices back. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from isoscale.cluster.forecast import KnownJob
from isoscale.cluster.live import Live
from isoscale.cluster.picture import Picture
from isoscale.cluster.requests import request_of
from isoscale.scheduling.controller import Controller
from isoscale.scheduling.state import JobRequest, JobView

__all__ = ["known_jobs", "loss"]


def known_jobs(controller: Controller, live: Mapping[str, Live], now: float) -> list[KnownJob]:
    """Those who run first, then those who wait, in order; jobs that nobody may start are not among them."""
    running = sorted(controller.running.values(), key=lambda view: view.order)
    waiting = sorted(controller.waiting.values(), key=lambda view: (-view.request.priority, view.order))
    remaining = controller.state(now).remaining
    return [
        KnownJob(
            request=_in_the_end(view, live.get(view.name), controller),
            speed=view.speed,
            remaining=remaining.get(view.name) if _is_measured(live.get(view.name)) else None,
            running=bool(view.allocation),
        )
        for view in (*running, *waiting)
    ]


def _in_the_end(view: JobView, live: Live | None, controller: Controller) -> JobRequest:
    """Of a job on trial what it may have when that is over, which is soon."""
    if live is None or not live.is_on_trial:
        return view.request
    return request_of(live.record, controller.cluster, live.batches, live.restart_s)


def _is_measured(live: Live | None) -> bool:
    return live is not None and bool(live.learner.points or live.learner.turns)


def loss(live: Mapping[str, Live], picture: Picture, devices: Sequence[str], remaining: int, within_s: float) -> str:
    """What committed work would be lost if so many of a node's devices remained; "" if none, as far as is known."""
    names = set(devices)
    holders = [one for id_, one in list(live.items()) if names & set(_granted(picture, id_))]
    if remaining >= sum(max(1, one.record.submission.min_devices) for one in holders):
        return ""  # nobody has to leave for good
    for one in holders:
        grant = one.status.get("grant") if one.status is not None else None
        if grant is not None and grant["unsaved_steps"] and (grant["write_s"] or 0.0) > within_s:
            return (
                f"the state of {one.record.id} took {grant['write_s']:.1f} s to write: within {within_s:g} s its "
                f"newest checkpoint would count, and {grant['unsaved_steps']} committed steps be trained again"
            )
    return ""


def _granted(picture: Picture, job: str) -> tuple[str, ...]:
    found = picture.jobs.get(job)
    return found.standing.granted if found is not None else ()

"""A workload under a real service: jobs are submitted when they arrive, and their times are the service's own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.cluster.served import steps_of
from benchmarks.cluster.workload import WORKERS, Job
from isoscale.cluster.bundle import Bundle, pack
from isoscale.cluster.client import Client
from isoscale.cluster.values import ENDED, JobShown, Submission
from isoscale.recipes.catalogue import find, path_of
from isoscale.runtime.code.collect import code_of_script
from isoscale.testing.served import Served

POLL_S = 0.5
_LIMIT_S, _PATIENCE_S = 900.0, 120.0
Bundles = Mapping[str, Bundle]


class JobFailedError(RuntimeError):
    """A job of a measurement did not finish."""


def bundles(recipes: Sequence[str]) -> Bundles:
    """The code of every recipe, packed once: nobody wants to measure that."""
    return {one: pack(code_of_script(str(path_of(find(one))), module="", out="")) for one in dict.fromkeys(recipes)}


def submit(client: Client, packed: Bundles, job: Job, **options: Any) -> str:
    bundle = packed[job.recipe]
    submission = Submission(
        code=bundle.id,
        workers=WORKERS,
        name=job.name,
        script_args=job.script_args,
        until=job.steps,
        work=job.steps,
        **{"max_devices": job.devices, **options},
    )
    return client.submit_bundle(bundle, submission).id


def wait(client: Client, jobs: Sequence[str]) -> list[JobShown]:
    deadline = time.monotonic() + _LIMIT_S
    while True:
        found = {job.id: job for job in client.jobs(limit=len(jobs) + 5)}
        shown = [found.get(job) or client.job(job) for job in jobs]
        for job in shown:
            if job.state in ("failed", "cancelled"):
                raise JobFailedError(f"{job.name} is {job.state}: {job.error}")
        if all(job.state in ENDED for job in shown):
            return shown
        if time.monotonic() > deadline:
            raise JobFailedError(f"not done in {_LIMIT_S:g} s: {[(job.name, job.state) for job in shown]}")
        time.sleep(POLL_S)


def until(done: Callable[[], bool], every_s: float = 0.02) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not done():
        if time.monotonic() > deadline:
            raise JobFailedError(f"not in {_PATIENCE_S:g} s")
        time.sleep(every_s)


@contextmanager
def served(state: Path, policy: str, packed: Bundles) -> Iterator[tuple[Served, Client]]:
    """Two devices, each on a core of its own; processes that have imported torch are ready when it is given. What a run
    that was broken off has left in the state does not go on."""
    with Served(state, devices="cpu*2", policy=policy, options=("--pin",)) as service, service.client() as client:
        left = [job.id for job in client.jobs() if job.state not in ENDED]
        for job in left:
            client.cancel(job)
        until(lambda: all(client.job(job).state in ENDED for job in left))
        wait(client, [submit(client, packed, Job("warm-up", "neumf", 0.0, 3, 1))])
        yield service, client


@dataclass(frozen=True, slots=True)
class Lived:
    """One job, in seconds after its submission, or of the service's clock."""

    name: str
    submitted_s: float
    wait_s: float
    #: until its first step is committed
    first_step_s: float
    jct_s: float
    digest: str
    rescales: int


def run(service: Served, client: Client, packed: Bundles, workload: Sequence[Job]) -> list[Lived]:
    begun = time.monotonic()
    ids = []
    for job in workload:
        time.sleep(max(0.0, begun + job.arrival_s - time.monotonic()))
        ids.append(submit(client, packed, job))
    shown = wait(client, ids)
    first = shown[0].submitted_s
    return [
        Lived(
            job.name,
            round(job.submitted_s - first, 3),
            round((job.started_s or 0.0) - job.submitted_s, 3),
            round(steps_of(service.directory(job.id))[0].t - job.submitted_s, 3),
            round((job.ended_s or 0.0) - job.submitted_s, 3),
            job.digest,
            sum(event.event == "job_resized" or event.event == "job_resumed" for event in client.job_events(job.id)),
        )
        for job in shown
    ]

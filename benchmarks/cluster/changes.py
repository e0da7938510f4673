"""Measures what moves cost: one job under the service is shrunk, grown, paused and resumed by its owner."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.cluster import live
from benchmarks.cluster.profile import Changes
from benchmarks.cluster.served import Step, steps_of
from benchmarks.cluster.workload import Job
from isoscale.cluster.client import Client
from isoscale.testing.served import Served

#: steps on the same devices after which a change is over
_ENOUGH = 10
#: between looks that parse a job's log: on the cores that are measured
_LOOK_S = 0.1


def measure_changes(
    served: Served, client: Client, packed: live.Bundles, recipe: str, *, times: int, grows: bool
) -> Changes:
    """One long job whose devices its owner changes; it ends by being cancelled. `grows`: the policy gives devices to a
    job that runs; without, growth is not measured."""
    job = live.submit(client, packed, Job("changes", recipe, 0.0, 10**6, 2))
    directory = served.directory(job)
    shrink, pause, resume, ready, still = [], [], [], [0.0] * (not grows), [0.0] * (not grows)
    live.until(lambda: _trains(directory, 2), every_s=_LOOK_S)
    for _ in range(times):
        begun = time.time()
        client.scale(job, 1)
        live.until(lambda: _free(client) == 1)
        shrink.append(time.time() - begun)
        live.until(lambda: _trains(directory, 1), every_s=_LOOK_S)
        before = len(steps_of(directory))
        client.scale(job, 2)
        if grows:
            live.until(lambda: _trains(directory, 2), every_s=_LOOK_S)
            steps = steps_of(directory)
            switch = next(number for number in range(before, len(steps)) if steps[number].size == 2)
            step_s = _pace(steps[switch:])
            ready.append(steps[switch].t - step_s - _decided_s(client, job, "job_resized"))
            still.append(steps[switch].t - steps[switch - 1].t - step_s)
        begun = time.time()
        client.pause(job)
        live.until(lambda: _free(client) == 2)
        pause.append(time.time() - begun)
        before = len(steps_of(directory))
        client.resume(job)
        live.until(partial(_trains, directory, 2, after=before), every_s=_LOOK_S)
        steps = steps_of(directory)[before:]
        resume.append(steps[0].t - _pace(steps) - _decided_s(client, job, "job_resumed"))
    client.cancel(job)
    live.until(lambda: _free(client) == 2)
    return Changes(
        changed=recipe,
        resume_s=median(resume),
        shrink_s=median(shrink),
        pause_s=median(pause),
        ready_s=median(ready),
        rescale_s=max(0.0, median(still)),
    )


def _pace(steps: Sequence[Step]) -> float:
    return (steps[-1].t - steps[0].t) / (len(steps) - 1)


def _decided_s(client: Client, job: str, event: str) -> float:
    """When the newest such event was."""
    return [one.t for one in client.job_events(job) if one.event == event][-1]


def _free(client: Client) -> int:
    return sum(device.state == "free" for node in client.devices() for device in node.devices)


def _trains(directory: Path, executors: int, after: int = 0) -> bool:
    """A few steps on so many executors are there, beyond the first `after` ones."""
    if not (directory / "events.jsonl").exists():
        return False
    late = steps_of(directory)[after:][-_ENOUGH:]
    return len(late) == _ENOUGH and all(step.size == executors for step in late)

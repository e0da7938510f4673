"""`scripts/demo --cluster`: three jobs share devices under `isoscale serve`, one is reclaimed and lent. Same bits.

A real service with six devices, real coordinators and executors, and everything asked for through
`isoscale.cluster.Client`, as the commands do. Then each job trains alone, on one executor. Exits 1 if a digest differs.

The job (`isoscale/testing/short_job.py`) has dropout, batch norm, random transforms and state of its own. A turn takes
at least 100 ms, most of which it sleeps: so six devices share two cores as if each had its own.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from isoscale.cli.outcome import report_failure, sizes
from isoscale.cli.progress import Progress
from isoscale.cluster.client import Client
from isoscale.cluster.values import ENDED, Event, JobShown
from isoscale.kinds import DeviceSet
from isoscale.runtime.coordinator.run import RunResult, run_job
from isoscale.testing import short_job_path
from isoscale.testing.served import Served
from isoscale.types import JobSpec

_DEVICES, _POLICY, _NODE = 6, "easyscale", "local"
_WORKERS = 4
#: of each job, by name; of 20 steps each
_EPOCHS = {"short": 4, "middle": 6, "long": 8}
_STEPS_PER_EPOCH = 20
_TURN_S = 0.1
#: steps that a job trains undisturbed before the next thing happens
_QUIET_STEPS = 15
_WITHIN_S = 2.0
_POLL_S = 0.1


def main() -> int:
    console = Console(soft_wrap=True, highlight=False)
    out = Path("runs") / f"demo-cluster-{time.strftime('%Y%m%d-%H%M%S')}"
    out.mkdir(parents=True)
    console.print(f"\n[bold]Three jobs of {_WORKERS} logical workers share {_DEVICES} devices[/]")
    console.print(f"isoscale serve --devices cpu*{_DEVICES} --policy {_POLICY}; state and jobs in {out}/cluster\n")
    with Served(out / "cluster", devices=f"cpu*{_DEVICES}", policy=_POLICY) as served, served.client() as client:
        jobs, untold = _story(console, client, served)
        executors = {job.name: sizes(served.directory(job.id) / "events.jsonl") for job in jobs}
    for job in jobs:
        if job.state != "finished":
            console.print(Text(f"{job.name} is {job.state}: {job.error}; see {out}/cluster/jobs/{job.id}", style="red"))
            return 1
    for what in untold:
        console.print(Text(f"the jobs were over before this could happen: {what}", style="yellow"))
    console.print("\nEach job alone, on one executor, without a service:")
    alone = asyncio.run(_alone(out))
    for name, result in alone.items():
        if result.exit_code:
            report_failure(result, out / "alone" / name)
            return 1
    equal = all(job.digest == alone[job.name].digest for job in jobs)
    console.print()
    console.print(_table(jobs, executors, alone, equal))
    return 0 if equal else 1


def _story(console: Console, client: Client, served: Served) -> tuple[list[JobShown], list[str]]:
    """The jobs at their end, and what did not happen because they were over."""
    untold = [f"isoscale reclaim {_NODE} 1", f"isoscale lend {_NODE} 1"]
    names: dict[str, str] = {}
    teller = _Teller(console, names)
    listening = threading.Thread(target=_listen, args=(served, teller), daemon=True)
    listening.start()
    for name, epochs in _EPOCHS.items():
        arguments = (str(epochs), str(_TURN_S))
        teller.command(f"isoscale submit short_job.py --workers {_WORKERS} --name {name} -- {' '.join(arguments)}")
        work = epochs * _STEPS_PER_EPOCH
        names[f"j{len(names) + 1}"] = name  # ids count up in a new service
        client.submit(short_job_path(), workers=_WORKERS, name=name, work=work, script_args=arguments)
    ids = list(names)
    if _train(client, ids):
        teller.command(f"isoscale reclaim {_NODE} 1 --within {_WITHIN_S:g}")
        done = client.reclaim(_NODE, 1, _WITHIN_S)
        lost = f"{done.abandoned_s:.2f} s of training given up" if done.abandoned_s else "no work given up"
        teller.say(f"{done.devices[0]} is free after {done.seconds:.2f} s; {lost}", style="bold")
        untold.pop(0)
        if _train(client, ids):
            teller.command(f"isoscale lend {_NODE} 1")
            client.lend(_NODE, 1)
            untold.pop(0)
    _until(lambda: all(client.job(job).state in ENDED for job in ids))
    teller.close()
    return [client.job(job) for job in ids], untold


def _train(client: Client, jobs: list[str]) -> bool:
    """Until every job that is not over has devices or waits, and those who train have trained undisturbed for a while;
    False if less than two are left: there is nobody to share with."""
    begun: dict[str, int] = {}

    def done() -> bool:
        shown = [client.job(job) for job in jobs]
        left = [job for job in shown if job.state not in ENDED]
        if len(left) < 2:
            return True
        training = [job for job in left if job.state == "running"]
        for job in training:
            begun.setdefault(job.id, job.step)
        return bool(training) and all(
            job.id in begun and job.step - begun[job.id] >= _QUIET_STEPS
            for job in left
            if job.state not in ("queued", "paused")
        )

    _until(done)
    return sum(client.job(job).state not in ENDED for job in jobs) >= 2


def _until(done: Callable[[], bool]) -> None:
    while not done():
        time.sleep(_POLL_S)


@dataclass
class _Teller:
    """Says what the service's events mean, with the time since the story began."""

    console: Console
    #: of jobs, by id
    names: dict[str, str]
    begun: float = 0.0
    is_closed: bool = False

    def __post_init__(self) -> None:
        self.begun = time.time()

    def close(self) -> None:
        self.is_closed = True

    def command(self, text: str) -> None:
        self.say(text, style="bold cyan")

    def say(self, text: str, style: str = "", at: float | None = None) -> None:
        seconds = (time.time() if at is None else at) - self.begun
        self.console.print(Text(f"{seconds:6.1f} s  ", style="dim").append(Text(text, style=style)))

    def hear(self, event: Event) -> None:
        text = told(event, self.names.get(event.job, event.job))
        if text and not self.is_closed:
            self.say(text, at=event.t)


def _listen(served: Served, teller: _Teller) -> None:
    with served.client() as client:
        for event in client.events(after=0):
            if teller.is_closed:
                return
            teller.hear(event)


#: why devices change, in the words of the driver, for people
_REASONS = {"policy": "the policy's choice", "reclaimed": "a device was reclaimed"}


def told(event: Event, job: str) -> str:
    """One line for what moves devices; "" for the rest."""
    fields: dict[str, Any] = event.fields
    why = _REASONS.get(str(fields.get("reason", "")), str(fields.get("reason", "")))
    match event.event:
        case "job_started" | "job_resumed":
            verb = "starts on" if event.event == "job_started" else "goes on with"
            return f"{job} {verb} {_devices(fields['to'])} ({why})"
        case "job_resized" if fields["to"] != fields["from"]:
            verb = "grows" if fields["to"] > fields["from"] else "shrinks"
            return f"{job} {verb} from {fields['from']} to {_devices(fields['to'])} ({why})"
        case "job_paused":
            return f"{job} is paused, its state kept ({why})"
        case "devices_lent":
            return f"{', '.join(fields['devices'])} is the service's again"
        case "job_finished":
            return f"{job} has finished: {fields['step']} steps, digest {fields['digest'][:12]}"
        case "job_failed":
            return f"{job} has failed: {fields.get('error')}"
    return ""


def _devices(count: int) -> str:
    return f"{count} device{'s' if count != 1 else ''}"


class _Unwatched(Progress):
    """An observer of runs that go on side by side: their lines would only mix."""

    def __init__(self) -> None:
        super().__init__(Console(quiet=True))


async def _alone(out: Path) -> dict[str, RunResult]:
    """Each on its own executor, without the sleep."""

    async def one(name: str, epochs: int) -> RunResult:
        directory = out / "alone" / name
        directory.mkdir(parents=True)
        script, arguments = str(short_job_path()), (str(epochs), "0")
        spec = JobSpec(workers=_WORKERS, script=script, script_args=arguments, out=str(directory))
        return await run_job(spec, DeviceSet((("cpu", 1),)), _Unwatched())

    found = await asyncio.gather(*(one(name, epochs) for name, epochs in _EPOCHS.items()))
    return dict(zip(_EPOCHS, found, strict=True))


def _table(jobs: list[JobShown], executors: dict[str, list[int]], alone: dict[str, RunResult], equal: bool) -> Table:
    title, style = ("the same bits", "bold green") if equal else ("THE BITS DIFFER", "bold red")
    table = Table(title=title, title_style=style, caption="digest: parameters, buffers and optimizer state")
    for column in ("job", "steps", "executors", "in the cluster", "alone"):
        table.add_column(column, no_wrap=True)
    for job in jobs:
        sizes_ = " → ".join(map(str, executors[job.name]))
        table.add_row(job.name, str(job.step), sizes_, job.digest[:16], alone[job.name].digest[:16])
    return table

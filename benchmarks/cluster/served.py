"""A service in a process of its own, for as long as a measurement lasts, with what measurements ask of it."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

from isoscale.cluster.client import Client
from isoscale.protocol.events import read_events
from isoscale.testing import short_job_path
from isoscale.testing.served import Served as Service

__all__ = ["Served", "Step", "serve", "steps_of", "until"]

T = TypeVar("T")
_PATIENCE_S = 120.0


class Served:
    def __init__(self, service: Service, client: Client) -> None:
        self.state, self.pid, self.client = service.state, service.pid, client

    def submit(self, *arguments: str, workers: int = 2, **options: object) -> str:
        """The short job: EPOCHS, SECONDS PER TURN, LOADER PROCESSES, then words."""
        return self.client.submit(short_job_path(), workers=workers, script_args=arguments, **options).id

    def until_training(self, job: str, devices: int, step: int = 1) -> None:
        def look() -> bool:
            shown = self.client.job(job)
            assert shown.state not in ("finished", "failed", "cancelled"), f"{job} is {shown.state}: {shown.error}"
            return shown.state == "running" and len(shown.devices) == devices and shown.step >= step

        until(look, f"{job} trains on {devices} devices from step {step} on")

    def processor_s(self) -> float:
        """That the service has taken so far, by the clock that the system keeps of every process: /proc counts in ticks
        of 10 ms, of which one is 5 % of a fifth of a second."""
        return time.clock_gettime(~self.pid << 3 | 2)


@contextlib.contextmanager
def serve(
    *options: str, devices: str = "cpu*2", policy: str = "easyscale(room=true)", state: Path | None = None
) -> Iterator[Served]:
    with (
        tempfile.TemporaryDirectory(prefix="cluster-") as directory,
        Service(state or Path(directory) / "state", devices=devices, policy=policy, options=options) as service,
        service.client(patience_s=60.0) as client,
    ):
        yield Served(service, client)


def until(look: Callable[[], T], what: str, every_s: float = 0.02) -> T:
    deadline = time.monotonic() + _PATIENCE_S
    while not (found := look()):
        assert time.monotonic() < deadline, f"not within {_PATIENCE_S:.0f} s: {what}"
        time.sleep(every_s)
    return found


class Step(NamedTuple):
    """A committed one."""

    step: int
    t: float
    #: executors that made it
    size: int
    epoch: int


def steps_of(directory: Path) -> list[Step]:
    size, found = 0, []
    for event in read_events(directory / "events.jsonl"):
        if event["event"] == "generation":
            size = len(event["members"])
        elif event["event"] == "step":
            found.append(Step(int(event["step"]), float(event["t"]), size, int(event["epoch"])))
    return found

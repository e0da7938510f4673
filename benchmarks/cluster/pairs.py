"""Measures speeds and starts under the service: every recipe alone, on both devices, and beside every recipe.

A host trains on one device. Beside it one guest after another starts, trains for some seconds and is cancelled. So one
start of the host gives its pace alone and beside each guest, the pace of each guest, and starts beside a neighbour.

A machine's speed drifts, and what is said in shares of it does not: those are measured once. Seconds can be measured
anew without guests, in a third of the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import mean, median

from benchmarks.cluster import live
from benchmarks.cluster.profile import WARM, Speeds, epoch_ends, epoch_steps, gaps, pace, start_s
from benchmarks.cluster.served import Step, steps_of
from benchmarks.cluster.workload import STEP_S, Job
from isoscale.cluster.client import Client
from isoscale.testing.served import Served

_ENDLESS = 10**6
#: between looks at a job that trains: each reads its log, on the cores that are measured
_LOOK_S = 0.1
#: steps of which a pace is the mean, at least
_FEWEST = 5


@dataclass(slots=True)
class Found:
    """What was measured so far."""

    alone_s: dict[str, float] = field(default_factory=dict)
    both_s: dict[str, float] = field(default_factory=dict)
    #: a recipe beside itself is measured on both sides
    beside_s: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    epoch: dict[str, int] = field(default_factory=dict)
    ends: dict[str, list[float]] = field(default_factory=dict)
    start_s: dict[str, float] = field(default_factory=dict)
    start_both_s: dict[str, float] = field(default_factory=dict)
    starts_beside: list[tuple[str, float]] = field(default_factory=list)
    while_starting: list[float] = field(default_factory=list)
    end_s: list[float] = field(default_factory=list)

    def speeds(self, before: Speeds | None = None) -> Speeds:
        """`before`: where shares are from, which were not measured."""
        if before is not None:
            return replace(
                before,
                alone_s=self.alone_s,
                both_s=self.both_s,
                beside_s={
                    one: {other: seconds * self.alone_s[one] / before.alone_s[one] for other, seconds in others.items()}
                    for one, others in before.beside_s.items()
                },
                start_s=self.start_s,
                start_both_s=self.start_both_s,
                end_s=median(self.end_s),
            )
        beside: dict[str, dict[str, float]] = {one: {} for one in self.alone_s}
        for (one, other), paces in self.beside_s.items():
            beside[one][other] = mean(paces)
        return Speeds(
            alone_s=self.alone_s,
            both_s=self.both_s,
            beside_s=beside,
            epoch=self.epoch,
            evaluation={one: median(self.ends.get(one) or [0.0]) for one in self.alone_s},
            start_s=self.start_s,
            start_both_s=self.start_both_s,
            start_beside=max(1.0, median(seconds / self.start_s[one] for one, seconds in self.starts_beside)),
            while_starting=mean(self.while_starting),
            end_s=median(self.end_s),
        )


class Pairs:
    """Under a policy that gives a job all that it asks for. `seconds`: how long each pace is looked at."""

    def __init__(self, served: Served, client: Client, packed: live.Bundles, seconds: float) -> None:
        self._served, self._client, self._packed, self._seconds = served, client, packed, seconds
        self._found = Found()

    def measure(self, recipes: Sequence[str], say: Callable[[str], None], before: Speeds | None = None) -> Speeds:
        """`before`: shares are taken from there, seconds are measured."""
        # Long steps first: the first host trains longest, and whose epochs are long must train long to end one.
        order = sorted(recipes, key=lambda recipe: -STEP_S[recipe])
        for number, recipe in enumerate(order):
            self._host(recipe, () if before is not None else order[number:])
            self._on_both(recipe)
            found = self._found
            say(
                f"{recipe}: a step takes {found.alone_s[recipe] * 1e3:.1f} ms alone, "
                f"{found.both_s[recipe] * 1e3:.1f} ms on both devices"
                + "".join(
                    f", {mean(paces) * 1e3:.1f} beside {other}"
                    for (one, other), paces in found.beside_s.items()
                    if one == recipe
                )
            )
        return self._found.speeds(before)

    def _host(self, recipe: str, guests: Sequence[str]) -> None:
        host = self._submit("host", recipe)
        begun = self._trains(host)
        ended = self._looked_at(begun, host)
        for guest in guests:
            self._guest(host, recipe, guest)
        steps, found = self._steps(host), self._found
        self._cancel(host)
        found.alone_s[recipe] = pace(steps, begun, ended)
        found.start_s[recipe] = start_s(steps, self._started_s(host), found.alone_s[recipe])
        found.epoch[recipe] = epoch_steps(steps)
        found.ends[recipe] = epoch_ends(steps)

    def _guest(self, host: str, recipe: str, guest: str) -> None:
        job = self._submit("guest", guest)
        begun = self._trains(job)
        ended = self._looked_at(begun, host, job)
        own, others, started = self._steps(job), self._steps(host), self._started_s(job)
        self._cancel(job)
        found, host_s, guest_s = self._found, pace(others, begun, ended), pace(own, begun, ended)
        found.beside_s.setdefault((recipe, guest), []).append(host_s)
        found.beside_s.setdefault((guest, recipe), []).append(guest_s)
        found.starts_beside.append((guest, start_s(own, started, guest_s)))
        found.while_starting.append(pace(others, started, own[0].t) / host_s)

    def _on_both(self, recipe: str) -> None:
        steps = 2 * WARM + round(self._seconds / STEP_S[recipe])
        job = live.submit(self._client, self._packed, Job("both", recipe, 0.0, steps, 2))
        live.wait(self._client, [job])
        made = self._steps(job)
        step_s = pace(made, made[WARM].t, made[-1].t)
        ended = next(one.t for one in self._client.job_events(job) if one.event == "job_finished")
        self._found.both_s[recipe] = step_s
        self._found.start_both_s[recipe] = start_s(made, self._started_s(job), step_s)
        self._found.end_s.append(ended - made[-1].t)

    def _submit(self, name: str, recipe: str) -> str:
        return live.submit(self._client, self._packed, Job(name, recipe, 0.0, _ENDLESS, 1))

    def _trains(self, job: str) -> float:
        """The moment from which on it has its pace."""
        log = self._served.directory(job) / "events.jsonl"
        # Lines, not steps: nothing is parsed while others are measured.
        live.until(lambda: log.exists() and log.read_bytes().count(b"\n") > WARM + 5, every_s=_LOOK_S)
        live.until(lambda: len(self._steps(job)) > WARM, every_s=_LOOK_S)
        return self._steps(job)[WARM].t

    def _looked_at(self, begun: float, *jobs: str) -> float:
        """For as long as told, or longer where steps are long; the moment at which it ended."""
        time.sleep(self._seconds)
        live.until(lambda: all(len(gaps(self._steps(job), begun)) >= _FEWEST for job in jobs), every_s=_LOOK_S)
        return time.time()

    def _steps(self, job: str) -> list[Step]:
        return steps_of(self._served.directory(job))

    def _started_s(self, job: str) -> float:
        return next(one.t for one in self._client.job_events(job) if one.event == "job_started")

    def _cancel(self, job: str) -> None:
        self._client.cancel(job)
        live.until(lambda: self._client.job(job).state == "cancelled", every_s=_LOOK_S)

"""Several jobs that train in turn, a block of steps each, while the others wait: interleaved, as ratios need it.

Every job is a whole `isoscale run` that lives through the measurement. A file tells its script how far it may train.
The first step after a wait is not timed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from benchmarks.elastic.commits import commits_of, read_lines
from benchmarks.elastic.job import IsoscaleJob, NotReachedError, job, wait_for
from benchmarks.lib.processes import ROOT

STARTS = ("benchmarks.elastic.training",)
SCRIPT = Path(__file__).resolve().parent / "training.py"
WARM_UP = 4
_LIMIT_S = 120.0


@dataclass(frozen=True)
class Side:
    """One job of a comparison: which tree of isoscale, on how many executors, with which options."""

    workers: int
    executors: int
    root: Path = ROOT
    options: tuple[str, ...] = ()


class GatedJob:
    def __init__(self, running: IsoscaleJob, folder: Path) -> None:
        self.running = running
        self.folder = folder
        self.done = 0

    def train(self, steps: int) -> list[float]:
        """Let it train so many further steps; the seconds of all but the first."""
        first, self.done = self.done + 1, self.done + steps
        set_gate(self.folder, self.done)
        wait_for(self._arrived, _LIMIT_S, f"step {self.done} of {self.folder.name}")
        block = [c for c in commits_of(read_lines(self.folder)) if first <= c.step <= self.done]
        return [b.t - a.t for a, b in pairwise(block)]

    def _arrived(self) -> bool:
        if self.running.process.poll() is not None:
            raise NotReachedError(f"{self.folder.name} ended: {self.running.tail()}")
        commits = commits_of(read_lines(self.folder)) if self.folder.exists() else []
        return bool(commits) and commits[-1].step >= self.done


def set_gate(folder: Path, step: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / "gate.new"
    partial.write_text(str(step))
    partial.replace(folder / "gate")


@contextmanager
def gated_jobs(sides: Mapping[str, Side], workload: int, folder: Path) -> Iterator[dict[str, GatedJob]]:
    """All started and warmed up."""
    with ExitStack() as stack:
        found = {}
        for name, side in sides.items():
            place = folder / name
            set_gate(place, 0)
            running = stack.enter_context(
                job(
                    SCRIPT,
                    folder / f"{name}-run",
                    workers=side.workers,
                    executors=side.executors,
                    root=side.root,
                    options=side.options,
                    script_args=[
                        "--workload",
                        workload,
                        "--steps",
                        10**6,
                        "--commits",
                        place,
                        "--gate",
                        place / "gate",
                    ],
                )
            )
            found[name] = GatedJob(running, place)
        for one in found.values():
            one.train(WARM_UP)
        yield found


def interleaved(
    sides: Mapping[str, Side],
    workload: int,
    folder: Path,
    *,
    blocks: int,
    rounds: int,
    steps: int,
    seed: int = 0,
    after_block: Callable[[dict[str, GatedJob]], None] = lambda jobs: None,
) -> dict[str, list[list[float]]]:
    """Step times by side and block. Each block starts all jobs anew; they train `rounds` times, by `steps` + 1."""
    order = random.Random(seed)
    times: dict[str, list[list[float]]] = {name: [] for name in sides}
    for block in range(blocks):
        names = order.sample(list(sides), len(sides))
        with gated_jobs({name: sides[name] for name in names}, workload, folder / f"block-{block}") as jobs:
            spent: dict[str, list[float]] = {name: [] for name in sides}
            for _ in range(rounds):
                for name in order.sample(list(jobs), len(jobs)):
                    spent[name] += jobs[name].train(steps + 1)
            for name in sides:
                times[name].append(spent[name])
            after_block(jobs)
    return times

"""A job of a few seconds that would notice: everything in it that could differ by placement does.

    isoscale run short_job.py --workers 4 -- [EPOCHS] [SECONDS PER TURN] [LOADER PROCESSES] [stream|wait|track|live ...]

Random transforms from three streams, dropout, batch norm, momentum, a schedule, per-worker state, evaluation. It reads
by `job.loader`, or with `stream` by `job.stream`, and fails unless each sample of each epoch was used once. As soon
as there is a file `hurry` in the run's directory turns take no longer than they must: a test that is done with a job
need not wait for it. With `wait` turns take longer and longer until then: the job is not done before the test is.
With `track` it has a tracker (`job.on_main`), which writes what it is told into the directory `curves` there. With
`live` its batch size may change.
A file `flood` there with a word and a number makes every executor print so many lines, once for every word. A file
`slow` with the id of an executor and a number makes its turns take so many times as long.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import random
import signal
import sys
import time
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import isoscale
from isoscale import env

EPOCHS, TURN_S, LOADER_PROCESSES, STREAMS, WAITS, TRACKS, LIVE = 4, 0.01, 0, False, False, False, False
SAMPLES, VALIDATION = 640, 100
#: the last flood that was printed
FLOOD = ""
#: the step from which on a job that waits becomes slower
SLOWER_FROM = 30


class Noisy(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]):
    """Samples, labels, and marks of samples: only if each was used once is their sum what it should be."""

    def __init__(self, size: int) -> None:
        self._x = torch.randn(size, 20, generator=torch.Generator().manual_seed(1))
        self._y = (self._x.sum(1) > 0).long()
        self.marks = torch.randint(2**40, (size,), generator=torch.Generator().manual_seed(2))

    def __len__(self) -> int:
        return len(self._x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        noise = 0.1 * torch.randn(20) + 0.01 * random.random() + 0.01 * float(np.random.rand())
        return self._x[index] + noise, self._y[index], self.marks[index]


class Curves:
    """A tracker that draws random numbers, of which the job must not notice anything."""

    def __init__(self, run: isoscale.MainRun) -> None:
        random.seed(run.step)
        folder = run.out / "curves"
        folder.mkdir(exist_ok=True)
        self._file = (folder / f"{run.id}-{time.time_ns()}.jsonl").open("w", buffering=1)

    def log(self, values: dict[str, Any], step: int) -> None:
        self._file.write(json.dumps({"step": step, **values, "drawn": random.random() + float(torch.rand(1))}) + "\n")

    def finish(self) -> None:
        self._file.write(json.dumps({"closed": True}) + "\n")
        self._file.close()


def train(job: isoscale.Job) -> None:
    if TRACKS:
        job.on_main(Curves)
    net = nn.Sequential(nn.Linear(20, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Dropout(0.3), nn.Linear(48, 2))
    model = job.model(net)
    optimizer = job.keep("optimizer", torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    schedule = job.keep("schedule", torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5))
    data, unseen = Noisy(SAMPLES), Noisy(VALIDATION)
    loader = reader(job, data)
    val = job.loader(unseen, batch_size=16, train=False)
    generator = job.keep_per_worker("generator", lambda rank: torch.Generator().manual_seed(rank))
    counter = job.keep_per_worker("counter", lambda: {"turns": 0})
    for _ in job.epochs(EPOCHS):
        for step in loader:
            for x, y, marks in step:
                linger(job, TURN_S)
                counter["turns"] += 1
                noise = 0.01 * torch.randn(x.shape, generator=generator)
                loss = F.cross_entropy(model(x + noise), y) * (1 + 1e-4 * counter["turns"])
                loss.backward()
                step.log(loss=loss)
                step.sum(used=len(marks), marks=marks.sum())
            optimizer.step()
            optimizer.zero_grad()
            job.state["steps"] = job.state.get("steps", 0) + 1
        schedule.step()
        model.eval()
        for step in val:
            for x, y, marks in step:
                linger(job, TURN_S / 4)
                with torch.no_grad():
                    step.sum(correct=(model(x).argmax(1) == y).sum(), seen=len(y), loss=F.cross_entropy(model(x), y))
                step.sum(used=len(marks), marks=marks.sum())
        model.train()
        check_ledger(loader.totals, data)
        check_ledger(val.totals, unseen)
        totals = val.totals
        job.log(accuracy=totals["correct"] / totals["seen"], val_loss=totals["loss"], steps=job.state["steps"])


def reader(job: isoscale.Job, data: Noisy) -> Any:
    live: dict[str, Any] = {"batch_sizes": (4, 8, 16), "batch_rule": "sqrt"} if LIVE else {}
    if not STREAMS:
        return job.loader(data, batch_size=8, shuffle=True, num_workers=LOADER_PROCESSES, **live)
    source = isoscale.samples(data, partition_samples=23)
    return job.stream(source, batch_size=8, shuffle_buffer=20, ledger=True, num_workers=LOADER_PROCESSES, **live)


def check_ledger(totals: dict[str, Any], data: Noisy) -> None:
    used, whole = (int(totals["used"]), int(totals["marks"])), (len(data), int(data.marks.sum()))
    if used != whole:
        raise AssertionError(f"not each sample was used once: {used} is not {whole}")


def linger(job: isoscale.Job, seconds: float) -> None:
    late = max(0, job.step - SLOWER_FROM) if WAITS else 0
    deadline = time.monotonic() + seconds * (1 + late**2 / 10) * slowness(job.out / "slow")
    print_flood(job.out / "flood")
    while seconds and not (job.out / "hurry").exists():
        left = deadline - time.monotonic()
        if left <= 0:
            return
        time.sleep(min(left, 0.05))


def slowness(told: Path) -> float:
    """How many times as slow this executor is to be."""
    with contextlib.suppress(OSError, ValueError):
        executor, factor = told.read_text().split()
        if int(executor) == env.executor():
            return float(factor)
    return 1.0


def print_flood(wanted: Path) -> None:
    """A million lines from one turn: whoever shows them must not keep anybody waiting."""
    global FLOOD
    with contextlib.suppress(OSError, ValueError):
        word, lines = wanted.read_text().split()
        if word == FLOOD:
            return
        FLOOD = word
        block = "".join(f"{number:04d} and nothing else is in this line of a flood\n" for number in range(1000))
        for _ in range(int(lines) // 1000):
            sys.stdout.write(block)
        sys.stdout.flush()


def do_without_compiler() -> None:
    """The first optimizer of a process would import all of torch.compile, which takes a second."""
    for function in vars(torch.optim.Optimizer).values():
        if isinstance(function, FunctionType) and function.__code__.co_name == "inner":
            function.__wrapped__.__dynamo_disable = function.__wrapped__  # type: ignore[attr-defined]


if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR1)
    do_without_compiler()
    given = sys.argv[1:]
    EPOCHS = int(given[0]) if given else EPOCHS
    TURN_S = float(given[1]) if given[1:] else TURN_S
    LOADER_PROCESSES = int(given[2]) if given[2:] else LOADER_PROCESSES
    STREAMS, WAITS, TRACKS, LIVE = (word in given[3:] for word in ("stream", "wait", "track", "live"))
    isoscale.run(train)

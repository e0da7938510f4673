"""`scripts/demo`: a job to which things happen while it trains, and stock DDP, to which nothing happens. Same bits.

Trains `isoscale/recipes/digits.py` with four logical workers on 1, 3, 2 and 4 executors; one of them is killed, one is
slowed down. Everything is asked for while training goes on, as `isoscale scale` does, and done to real processes.
Leaves a report. Exits 1 if a digest differs. A story, not a command: it stands above the command line, whose live line
and report it shows.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from isoscale.backends.system import born
from isoscale.cli.outcome import report_failure, sizes
from isoscale.cli.progress import Progress
from isoscale.cli.reference_progress import ReferenceProgress
from isoscale.cli.report import report
from isoscale.kinds import DeviceSet
from isoscale.protocol import messages as m
from isoscale.protocol.events import read_events
from isoscale.recipes.catalogue import find, path_of
from isoscale.runtime.code.freezing import code_kept_for
from isoscale.runtime.control.job_handle import JobHandle
from isoscale.runtime.coordinator.run import RunResult, run_job
from isoscale.runtime.tools.verify import run_reference_ranks
from isoscale.types import JobSpec, Settings

_WORKERS = 4
#: 23 steps each, of a hundredth of a second on a fast machine; the last act comes at step 600 or so
_EPOCHS = "40"
#: committed steps between two events of the story
_QUIET_STEPS = 60
#: what is so for two heartbeats may move logical workers: other processes on the same cores make anybody slow for one
_STRAGGLER_STEPS = 40
#: a slow executor that is not noticed within so many is left alone
_PATIENT_STEPS = 150
#: a slow executor is stopped for two slices and runs for one: less than a turn, or it would be stopped while it waits
_SLICE_S = 0.004


def main() -> int:
    console = Console(soft_wrap=True)
    out = Path("runs") / f"demo-{time.strftime('%Y%m%d-%H%M%S')}"
    script = path_of(find("digits"))
    spec = JobSpec(workers=_WORKERS, script=str(script), script_args=("--epochs", _EPOCHS), out=str(out))
    console.print(f"\n[bold]One job, {_WORKERS} logical workers; executors come, go, slow down and die as it trains[/]")
    console.print("A small convolutional network on handwritten digits: BatchNorm, dropout, random shifts.\n")
    out.mkdir(parents=True)
    result, untold = asyncio.run(_story(console, spec))
    if result.exit_code:
        report_failure(result, out)
        return result.exit_code
    for what in untold:
        console.print(Text(f"the job was over before this could happen: {what}", style="yellow"))
    console.print("\nThe same script under stock DistributedDataParallel, undisturbed:")
    with ReferenceProgress(console, _WORKERS, result.step) as progress:
        stock = JobSpec(workers=_WORKERS, script=spec.script, script_args=spec.script_args, out=str(out / "stock-ddp"))
        reference = asyncio.run(run_reference_ranks(stock, "cpu", progress, code=code_kept_for(out)))
    if reference.error:
        console.print(reference.traceback + reference.error, markup=False)
        return 1
    equal = result.digest == reference.digest
    table = _table(equal)
    losses, stock_losses = _losses(out), _stock_losses(out / "stock-ddp")
    executors = " → ".join(map(str, sizes(out / "events.jsonl")))
    table.add_row("isoscale", executors, str(result.step), f"{result.digest[:24]} ...")
    table.add_row("stock DDP", str(_WORKERS), str(reference.step), f"{reference.digest[:24]} ...")
    console.print()
    console.print(table)
    same = sum(losses.get(step) == loss for step, loss in stock_losses.items())
    console.print(f"losses equal bit for bit: {same} of {len(stock_losses)} steps\n", highlight=False)
    report(out)
    return 0 if equal else 1


class _Stage(Progress):
    """Shows the job, without what it logs after every epoch, and knows who plays."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._lines = console
        self.step = 0
        self.members: list[int] = []
        self.shares: list[int] = []
        self.pids: dict[int, int] = {}

    def on_begin(self, num_executors: int) -> None:
        if not self.step:  # later ones are told as rescales
            super().on_begin(num_executors)

    def on_step(self, step: m.StepDone, num_executors: int) -> None:
        self.step = step.step
        super().on_step(step, num_executors)

    def on_log(self, logged: m.Logged) -> None:
        pass

    def on_event(self, event: str, fields: dict[str, Any]) -> None:
        if event == "executor_started":
            self.pids[fields["executor"]] = fields["pid"]
        elif event == "generation":
            self.members, self.shares = fields["members"], fields["shares"]
        if not (event == "rescale" and fields["from"] == fields["to"]):  # a move, told already by what caused it
            super().on_event(event, fields)

    def announce(self, text: str) -> None:
        self._lines.print(Text(f"step {self.step}: {text}", style="bold cyan"), highlight=False)


async def _story(console: Console, spec: JobSpec) -> tuple[RunResult, list[str]]:
    """The job with everything that happens to it; and what did not happen because the job was over."""
    untold = ["3 executors", "kill -9", "2 executors", "a slow device", "4 executors"]
    stage = _Stage(console)
    with stage:
        job = asyncio.create_task(
            run_job(
                spec, DeviceSet((("cpu", 1),)), stage, settings=Settings(spares=3, straggler_steps=_STRAGGLER_STEPS)
            )
        )
        director = asyncio.create_task(_direct(Path(spec.out), stage, untold))
        await asyncio.wait([job, director], return_when=asyncio.FIRST_COMPLETED)
        if director.done() and not job.done():
            director.result()
        result = await job
        director.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await director
    return result, untold


async def _direct(directory: Path, stage: _Stage, untold: list[str]) -> None:
    await _until(lambda: stage.step >= _QUIET_STEPS)
    await _scale(directory, stage, 3)
    untold.pop(0)
    await _quiet(stage)
    victim = stage.members[1]
    stage.announce(f"kill -9 {stage.pids[victim]}, which is executor {victim}")
    os.kill(stage.pids[victim], signal.SIGKILL)
    await _until(lambda: victim not in stage.members)
    # A spare takes its place.
    await _until(lambda: len(stage.members) == 3)
    untold.pop(0)
    await _quiet(stage)
    await _scale(directory, stage, 2)
    untold.pop(0)
    await _quiet(stage)
    await _slow_down(stage, stage.members[1])
    untold.pop(0)
    await _scale(directory, stage, 4)
    untold.pop(0)


async def _scale(directory: Path, stage: _Stage, executors: int) -> None:
    stage.announce(f"isoscale scale {directory} {executors}")
    with await asyncio.to_thread(JobHandle, directory) as handle:
        await asyncio.to_thread(handle.scale_to, executors)
    await _until(lambda: len(stage.members) == executors)


async def _slow_down(stage: _Stage, executor: int) -> None:
    """Stops and continues a process in turn until its logical workers have moved away, and a while longer.

    On a machine where others are as slow now and then nothing may move; that is waited for so long and no longer.
    """
    pid, shares = stage.pids[executor], list(stage.shares)
    birth = born(pid)
    stage.announce(f"executor {executor} gets a third of its processor's time from now on")
    done = asyncio.create_task(_moved(stage, shares))
    try:
        with contextlib.suppress(ProcessLookupError):  # it may end with the job
            while not done.done() and born(pid) == birth:
                os.kill(pid, signal.SIGSTOP)
                await asyncio.sleep(2 * _SLICE_S)
                os.kill(pid, signal.SIGCONT)
                await asyncio.sleep(_SLICE_S)
    finally:
        done.cancel()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


async def _moved(stage: _Stage, shares: list[int]) -> None:
    latest = stage.step + _PATIENT_STEPS
    await _until(lambda: stage.shares != shares or stage.step >= latest)
    await _quiet(stage)


async def _quiet(stage: _Stage) -> None:
    until = stage.step + _QUIET_STEPS
    await _until(lambda: stage.step >= until)


async def _until(done: Callable[[], bool]) -> None:
    while not done():
        await asyncio.sleep(0.01)


def _table(equal: bool) -> Table:
    title, style = ("the same bits", "bold green") if equal else ("THE BITS DIFFER", "bold red")
    table = Table(title=title, title_style=style, caption="digest: parameters, buffers and optimizer state")
    for column in ("run", "processes", "steps", "digest"):
        table.add_column(column, no_wrap=True)
    return table


def _losses(run: Path) -> dict[int, float]:
    return {e["step"]: float(e["loss"]) for e in read_events(run / "events.jsonl") if e["event"] == "step"}


def _stock_losses(run: Path) -> dict[int, float]:
    """Every rank wrote its own losses; the step's is their mean."""
    ranks = [(run / f"rank-{rank}.jsonl").read_text().splitlines() for rank in range(_WORKERS)]
    return {
        step: sum(float.fromhex(json.loads(line)["loss"]) for line in lines) / _WORKERS
        for step, lines in enumerate(zip(*ranks, strict=True), 1)
    }

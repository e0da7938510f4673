"""`isoscale verify`: the same script elastically and under stock DDP, compared bit for bit."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from isoscale.cli import options as o
from isoscale.cli.devices import devices_and_plan
from isoscale.cli.job import claim_directory, code_to_keep, job_spec
from isoscale.cli.outcome import show_traceback, sizes
from isoscale.cli.progress import Progress, QuietProgress, count
from isoscale.cli.reference_progress import ReferenceProgress
from isoscale.cli.screen import console_of_a_job
from isoscale.errors import UserError
from isoscale.kinds import DeviceSet
from isoscale.runtime.code.collect import Snapshot
from isoscale.runtime.code.freezing import Frozen, code_kept_for
from isoscale.runtime.coordinator.run import RunResult, run_job
from isoscale.runtime.tools.verify import ReferenceResult, reference_spec, report_on, run_reference_ranks
from isoscale.types import JobSpec, Settings

if TYPE_CHECKING:
    from isoscale.runtime.tools.compare import Report

__all__ = ["run_both", "verify"]

_SIDES = {"elastic": "under isoscale", "reference": "in the reference (stock DDP)"}

Explain = Annotated[bool, typer.Option("--explain", help="If bits differ, find the first operator that differs.")]


def verify(
    script: o.Script,
    workers: o.Workers,
    script_args: o.ScriptArgs = None,
    module: o.Module = False,
    executors: o.Executors = None,
    devices: o.Devices = None,
    determinism: o.Determinism = "elastic",
    kinds: o.Kinds = None,
    order: o.OrderOption = "ddp",
    seed: o.Seed = 0,
    threads: o.Threads = 1,
    out: o.Out = None,
    until: o.Until = None,
    plan: o.Plan = None,
    batch_plan: o.BatchPlan = None,
    measure_noise: o.MeasureNoise = 0,
    no_warm: o.NoWarm = False,
    explain: Explain = False,
) -> None:
    """Train SCRIPT elastically and with stock DDP on N processes; exit 0 only if every bit agrees."""
    console = console_of_a_job()
    found, entries = devices_and_plan(executors, devices, plan, workers, until)
    # Checked before a directory is made, so that a mistake leaves nothing behind.
    spec = job_spec(
        script,
        script_args,
        workers=workers,
        devices=found,
        planned=[wanted for _, wanted in entries],
        determinism=determinism,
        kinds=kinds,
        order=order,
        seed=seed,
        threads=threads,
        until=until,
        record=True,
        module=module,
        batch_plan=batch_plan,
        measure_noise=measure_noise,
    )
    code = code_to_keep(spec, out)
    spec = replace(spec, out=str(claim_directory(out, spec.script)), trace=0 if explain else None)
    elastic, reference = asyncio.run(run_both(console, spec, found, entries, code=code, warm=not no_warm))
    if elastic.exit_code != 0:
        bad_input = elastic.exit_code == UserError.exit_code
        _report_failure("elastic", elastic.error, elastic.traceback, f"{spec.out}/logs", bad_input=bad_input)
        raise typer.Exit(elastic.exit_code)
    if reference.error:
        _report_failure("reference", reference.error, reference.traceback, f"{spec.out}/reference/logs")
        raise typer.Exit(1)
    report = report_on(spec, elastic, reference)
    _show(console, report, spec, _in_words(sizes(Path(spec.out) / "events.jsonl")))
    for step, wanted in entries:
        if step >= elastic.step:
            line = f"not tried: {wanted} at step {step}, because the job ended after {elastic.step} steps"
            console.print(Text(line, style="yellow"), highlight=False)
    for entry in spec.batch_plan:
        if entry.step >= elastic.step:
            line = f"not tried: batch size {entry.size} at step {entry.step}: the job ended after {elastic.step} steps"
            console.print(Text(line, style="yellow"), highlight=False)
    if not report.equal and explain:
        from isoscale.cli.explain import explain_difference

        explain_difference(console, spec, found, entries)
    elif not report.equal:
        console.print(Text("--explain finds the first operator that differs", style="dim"))
    raise typer.Exit(0 if report.equal else 1)


async def run_both(
    console: Console,
    spec: JobSpec,
    devices: DeviceSet,
    plan: Sequence[tuple[int, DeviceSet]] = (),
    *,
    code: Snapshot | Frozen | None = None,
    quiet: bool = False,
    warm: bool = True,
) -> tuple[RunResult, ReferenceResult]:
    """One after the other, with the same code; without the reference if the elastic run failed.

    `quiet` hides what the script prints.
    """
    with (QuietProgress if quiet else Progress)(console, "elastic") as progress:
        elastic = await run_job(
            spec, devices, progress, settings=Settings(warm=warm, lasting=False), plan=plan, code=code
        )
    if elastic.exit_code != 0:
        return elastic, ReferenceResult(error="not run")
    kept = code if isinstance(code, Frozen) else code_kept_for(spec.out)
    reference = reference_spec(spec, elastic.step)
    with ReferenceProgress(console, spec.workers, elastic.step) as watcher:
        return elastic, await run_reference_ranks(reference, next(iter(devices)), watcher, code=kept, warm=warm)


def _in_words(executors: Sequence[int]) -> str:
    """How many executors there were, one number after another."""
    return count(executors[0], "executor") if len(executors) == 1 else f"{' -> '.join(map(str, executors))} executors"


def _show(console: Console, report: Report, spec: JobSpec, executors: str) -> None:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("compared")
    table.add_column("count", justify="right")
    table.add_column("equal")
    for check in report.checks:
        ok = "[green]yes[/]" if not check.differing else f"[red]no: {check.differing} differ[/]"
        table.add_row(check.what, str(check.count), ok)
    console.print(table)
    console.print(f"elastic    digest {report.elastic_digest}", highlight=False)
    console.print(f"reference  digest {report.reference_digest}", highlight=False)
    sides = f"{executors} and stock DDP with {count(spec.workers, 'process')}"
    if report.equal:
        console.print(Text(f"equal: {sides} give the same bits", style="bold green"))
        return
    console.print(Text(f"not equal: {sides} give other bits", style="bold red"))
    for check in report.checks:
        if check.first is not None:
            first = check.first
            line = Text(f"  {first.where}: elastic {first.elastic}, reference {first.reference}")
            console.print(line, highlight=False)
    console.print(Text(f"  runs in {spec.out}", style="dim"), highlight=False)


def _report_failure(side: str, error: str, traceback: str, logs: str, *, bad_input: bool = False) -> None:
    """The script's traceback once, then one line that says on which side it failed."""
    console = Console(stderr=True, soft_wrap=True)
    if bad_input:
        console.print(Text(f"isoscale: {error}", style="bold red"), highlight=False)
        return
    if traceback:
        show_traceback(console, traceback, f", {_SIDES[side]}")
    console.print(Text(f"isoscale: the script failed {_SIDES[side]}: {error}", style="bold red"), highlight=False)
    console.print(Text(f"logs in {logs}", style="dim"), highlight=False)

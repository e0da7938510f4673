"""`isoscale run`: a script on executor processes of this machine."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from isoscale.cli import options as o
from isoscale.cli.progress import Progress, count, duration
from isoscale.runtime.coordinator import RunResult, run_job

__all__ = ["run"]


def run(
    script: o.Script,
    script_args: o.ScriptArgs = None,
    workers: o.Workers = 1,
    executors: o.Executors = None,
    devices: o.Devices = None,
    determinism: o.Determinism = "elastic",
    kinds: o.Kinds = None,
    order: o.OrderOption = "ddp",
    seed: o.Seed = 0,
    threads: o.Threads = 1,
    out: o.Out = None,
    until: o.Until = None,
    audit_every: Annotated[
        int, typer.Option(help="Compare executors' state every so many steps; 0: at the end.")
    ] = 100,
) -> None:
    """Train SCRIPT with N logical workers on E executors: the same bits for every E."""
    console = Console(soft_wrap=True)
    found = o.device_set(executors, devices, workers)
    # Checked before a directory is made, so that a mistake leaves nothing behind.
    spec = o.job_spec(
        script,
        script_args,
        workers=workers,
        devices=found,
        determinism=determinism,
        kinds=kinds,
        order=order,
        seed=seed,
        threads=threads,
        until=until,
        audit_every=audit_every,
    )
    directory = o.claim_directory(out, script)
    spec = replace(spec, out=str(directory))
    with Progress(console) as progress:
        result = asyncio.run(run_job(spec, found, progress))
    shown = out if out is not None else Path(os.path.relpath(directory))
    if result.exit_code == 0:
        _report(console, result, workers, found.total, shown)
    else:
        report_failure(result, shown)
    raise typer.Exit(result.exit_code)


def _report(console: Console, result: RunResult, workers: int, num_executors: int, out: object) -> None:
    why = f" ({result.stop_reason})" if result.stop_reason else ""
    console.print(
        f"done{why}: {result.step} steps of {count(workers, 'logical worker')} "
        f"on {count(num_executors, 'executor')} in {duration(result.seconds)}",
        highlight=False,
    )
    console.print(f"digest {result.digest}", highlight=False)
    console.print(f"result {out}/final.pt", highlight=False)


def report_failure(result: RunResult, out: object) -> None:
    """The traceback once, then one line that says what happened."""
    console = Console(stderr=True, soft_wrap=True)
    if result.traceback:
        console.print(Panel(Text(result.traceback.rstrip()), title="the script's traceback", border_style="red"))
    console.print(Text(f"isoscale: {result.error}", style="bold red"), highlight=False)
    if out is not None:
        console.print(Text(f"logs in {out}/logs", style="dim"), highlight=False)

"""Commands for a job that runs: `scale`, `status`, `resume`, `stop`, `checkpoint`."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live

from isoscale.cli.ended import status_after
from isoscale.cli.live import status_table
from isoscale.cli.metrics import metrics_text
from isoscale.cli.progress import Progress
from isoscale.cli.run import ToldExit, report_failure, report_success
from isoscale.errors import UserError
from isoscale.runtime.handle import JobHandle

__all__ = ["Ca", "checkpoint", "resume", "scale", "status", "stop"]

Directory = Annotated[Path, typer.Argument(help="Directory of the run (--out of isoscale run).", show_default=False)]
Ca = Annotated[Path | None, typer.Option("--ca", help="Certificates to trust, where the job uses TLS.")]


def scale(
    directory: Directory,
    target: Annotated[
        str, typer.Argument(help='Executors: 4, +1, -1, or devices such as "cpu*2+cpu-sse*1".', show_default=False)
    ],
    wait: Annotated[bool, typer.Option("--wait", help="Return when the job trains on them.")] = False,
    ca: Ca = None,
) -> None:
    """Give a running job more, fewer or other executors; its result does not change by a bit."""
    with JobHandle(directory, ca_file=ca) as job:
        wanted = job.scale_to(target)["target"]
        if wait:
            status_ = job.wait_for(lambda s: bool(s["refused"]) or _is_there(s), timeout_s=600)
            if status_["refused"]:
                raise UserError(
                    field="target", value=target, problem=status_["refused"], remedy="see DIR/logs of the newcomers"
                )
        typer.echo(f"{'training on' if wait else 'accepted:'} {wanted}")


def _is_there(status_: dict[str, object]) -> bool:
    executors = status_["executors"]
    assert isinstance(executors, list)
    members = [one["kind"] for one in executors if one["logical_workers"] is not None]
    wanted = [
        kind
        for part in str(status_["target"]).split("+")
        for kind, _, number in [part.partition("*")]
        for _ in range(int(number))
    ]
    aside = status_.get("set_aside") or []
    assert isinstance(aside, list)
    for one in aside:
        if one["kind"] in wanted:
            wanted.remove(one["kind"])
    return sorted(members) == sorted(wanted) and status_["state"] == "training"


def status(
    directory: Directory,
    as_json: Annotated[bool, typer.Option("--json", help="Print it once, as JSON.")] = False,
    metrics: Annotated[bool, typer.Option("--metrics", help="Print it once, in Prometheus' text format.")] = False,
    once: Annotated[bool, typer.Option("--once", help="Print it once.")] = False,
    ca: Ca = None,
) -> None:
    """Show what a running job does, until it ends or Ctrl-C; of one that has ended, how."""
    console = Console()
    over = status_after(directory)
    if over is not None:
        _print(console, over, directory, as_json=as_json, metrics=metrics)
        return
    with JobHandle(directory, ca_file=ca) as job:
        if as_json or metrics or once or not console.is_terminal:
            _print(console, job.status(), directory, as_json=as_json, metrics=metrics)
            return
        with Live(status_table(job.status()), console=console, refresh_per_second=4) as live:
            try:
                while True:
                    time.sleep(0.5)
                    live.update(status_table(job.status()))
            except KeyboardInterrupt:
                return
            except UserError:
                over = status_after(directory)
                if over is not None:
                    live.update(status_table(over))


def _print(console: Console, found: dict[str, Any], directory: Path, *, as_json: bool, metrics: bool) -> None:
    if as_json:
        typer.echo(json.dumps(found, indent=1))
    elif metrics:
        typer.echo(metrics_text(found, directory.resolve().name), nl=False)
    else:
        console.print(status_table(found))


def checkpoint(directory: Directory, ca: Ca = None) -> None:
    """Ask a running job for a checkpoint now."""
    with JobHandle(directory, ca_file=ca) as job:
        before = job.status()["checkpoint"]
        job.checkpoint()
        after = job.wait_for(lambda s: bool(s["checkpoint"] != before and s["checkpoint"]), 600)["checkpoint"]
        typer.echo(f"checkpoint of step {after['step']}")


def stop(directory: Directory, ca: Ca = None) -> None:
    """End a running job after a checkpoint; `isoscale resume` goes on."""
    with JobHandle(directory, ca_file=ca) as job:
        job.stop()
        typer.echo("stopping")


def resume(directory: Directory) -> None:
    """Go on with a job whose coordinator is gone: with its executors if they live, else from its checkpoint."""
    from isoscale.runtime.coordinator import resume_job

    console = Console(soft_wrap=True)
    if not directory.is_dir():
        raise UserError(field="DIR", value=directory, problem="no such directory", remedy="give the --out of a run")
    with Progress(console) as progress:
        result = asyncio.run(resume_job(directory.resolve(), progress))
    if result.exit_code == 0:
        report_success(console, result, 0, directory)
    else:
        report_failure(result, directory)
    raise ToldExit(result.exit_code)

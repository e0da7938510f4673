"""`isoscale jobs`: what a cluster service's jobs do, and what can be done to them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.live import Live

from isoscale import limits
from isoscale.cli.cluster_options import AsJson, Ca, ClusterOption, JobId, TokenFile, connect
from isoscale.cli.cluster_view import job_page, job_table, why_text
from isoscale.cli.job_logs import show_logs
from isoscale.cli.numbers import in_range
from isoscale.cluster.client import Client
from isoscale.cluster.values import JobShown

__all__ = ["jobs"]

jobs = typer.Typer(help="Jobs of a cluster service: list them, ask why, pause, resume, cancel, change them.")

_WATCH_S = 1.0


@jobs.callback(invoke_without_command=True)
def list_jobs(
    context: typer.Context,
    as_json: AsJson = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show them until Ctrl-C.")] = False,
    limit: Annotated[
        int,
        typer.Option(help="So many of those that are over, at most.", callback=in_range(limits.Range(1, 1000))),
    ] = 100,
    cluster: ClusterOption = None,
    token_file: TokenFile = None,
    ca: Ca = None,
) -> None:
    """List jobs: those that are not over, and the newest that are."""
    context.obj = (cluster, token_file, ca)
    if context.invoked_subcommand is not None:
        return
    client, console = connect(cluster, token_file, ca), Console()
    if as_json:
        _print_json(client.jobs(limit=limit))
    elif watch and console.is_terminal:
        _watch(client, console, limit)
    else:
        console.print(job_table(client.jobs(limit=limit), time.time()))


def _watch(client: Client, console: Console, limit: int) -> None:
    with Live(job_table(client.jobs(limit=limit), time.time()), console=console, screen=True) as live:
        try:
            while True:
                time.sleep(_WATCH_S)
                live.update(job_table(client.jobs(limit=limit), time.time()))
        except KeyboardInterrupt:
            return


@jobs.command()
def show(
    context: typer.Context,
    job: JobId,
    as_json: AsJson = False,
    cluster: ClusterOption = None,
    token_file: TokenFile = None,
    ca: Ca = None,
) -> None:
    """Everything that is known of a job, and what happened to it."""
    client = _client(context, cluster, token_file, ca)
    found = client.job(job)
    if as_json:
        _print_json(found)
    else:
        Console().print(job_page(found, client.job_events(job), time.time()))


@jobs.command()
def why(
    context: typer.Context,
    job: JobId,
    as_json: AsJson = False,
    cluster: ClusterOption = None,
    token_file: TokenFile = None,
    ca: Ca = None,
) -> None:
    """Why a job is where it is: what it waits for, its place, who holds what, when it will start and end."""
    found = _client(context, cluster, token_file, ca).job(job)
    if as_json:
        _print_json(found.why)
    else:
        Console().print(why_text(found, time.time()))


@jobs.command()
def logs(
    context: typer.Context,
    job: JobId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job is over.")] = False,
    source: Annotated[
        str | None,
        typer.Option(
            help="An executor's number, or coordinator.  \\[default: the one that printed last]", show_default=False
        ),
    ] = None,
    whole: Annotated[bool, typer.Option("--all", help="From the beginning; otherwise the last 64 KiB.")] = False,
    cluster: ClusterOption = None,
    token_file: TokenFile = None,
    ca: Ca = None,
) -> None:
    """What a job printed."""
    show_logs(_client(context, cluster, token_file, ca), job, source, whole=whole, follow=follow)


@jobs.command()
def pause(
    context: typer.Context, job: JobId, cluster: ClusterOption = None, token_file: TokenFile = None, ca: Ca = None
) -> None:
    """Checkpoint, then no devices, until `jobs resume`."""
    _say(_client(context, cluster, token_file, ca).pause(job))


@jobs.command()
def resume(
    context: typer.Context, job: JobId, cluster: ClusterOption = None, token_file: TokenFile = None, ca: Ca = None
) -> None:
    """Let a paused job go on when its turn comes."""
    _say(_client(context, cluster, token_file, ca).resume(job))


@jobs.command()
def cancel(
    context: typer.Context, job: JobId, cluster: ClusterOption = None, token_file: TokenFile = None, ca: Ca = None
) -> None:
    """End a job without a result. Its directory stays."""
    _say(_client(context, cluster, token_file, ca).cancel(job))


@jobs.command(context_settings={"ignore_unknown_options": True})
def priority(
    context: typer.Context,
    job: JobId,
    priority: Annotated[int, typer.Argument(metavar="P", help="Higher is served first.", show_default=False)],
    cluster: ClusterOption = None,
    token_file: TokenFile = None,
    ca: Ca = None,
) -> None:
    """Give a job another priority."""
    _say(_client(context, cluster, token_file, ca).priority(job, priority))


@jobs.command()
def scale(
    context: typer.Context,
    job: JobId,
    devices: Annotated[
        int, typer.Argument(metavar="E", help="The most devices from now on; 0: as submitted.", show_default=False)
    ],
    cluster: ClusterOption = None,
    token_file: TokenFile = None,
    ca: Ca = None,
) -> None:
    """Bound the devices that the policy may give a job."""
    _say(_client(context, cluster, token_file, ca).scale(job, devices))


def _client(context: typer.Context, cluster: str | None, token_file: Path | None, ca: Path | None) -> Client:
    """Options count before the verb, too: `isoscale jobs --cluster DIR why j1`."""
    outer = context.obj or (None, None, None)
    return connect(cluster or outer[0], token_file or outer[1], ca or outer[2])


def _say(job: JobShown) -> None:
    typer.echo(f"{job.id}: {job.state}; {job.why.text}")


def _print_json(value: object) -> None:
    typer.echo(msgspec.json.format(msgspec.json.encode(value), indent=1).decode())

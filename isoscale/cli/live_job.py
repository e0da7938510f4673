"""Commands for a job that runs: `scale`, `status`, `resume`, `stop`, `checkpoint`, and `executor`, which joins one."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from isoscale.cli.live import status_table
from isoscale.cli.progress import Progress, count
from isoscale.cli.run import report_failure, report_success
from isoscale.cli.scripts import resolved, script_here
from isoscale.errors import IsoscaleError, UserError
from isoscale.runtime.handle import JobHandle

__all__ = ["checkpoint", "executor", "resume", "scale", "status", "stop"]

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
    return sorted(members) == sorted(wanted) and status_["state"] == "training"


def status(
    directory: Directory,
    as_json: Annotated[bool, typer.Option("--json", help="Print it once, as JSON.")] = False,
    once: Annotated[bool, typer.Option("--once", help="Print it once.")] = False,
    ca: Ca = None,
) -> None:
    """Show what a running job does, until it ends or Ctrl-C."""
    console = Console()
    with JobHandle(directory, ca_file=ca) as job:
        if as_json:
            typer.echo(json.dumps(job.status(), indent=1))
            return
        if once or not console.is_terminal:
            console.print(status_table(job.status()))
            return
        with Live(status_table(job.status()), console=console, refresh_per_second=4) as live:
            try:
                while True:
                    time.sleep(0.5)
                    live.update(status_table(job.status()))
            except (UserError, KeyboardInterrupt):
                return


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
    raise typer.Exit(result.exit_code)


def executor(
    join: Annotated[str, typer.Option(help="The coordinator: ws://HOST:PORT, as in DIR/control/coordinator.json.")],
    token_file: Annotated[Path, typer.Option(help="File with the run's token: DIR/control/token.")],
    kind: Annotated[str, typer.Option(help="What this device is.")] = "cpu",
    script: Annotated[
        str | None,
        typer.Option(help="The training script, where it has another path on this machine.", callback=resolved),
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="Address under which other executors reach this one, if it must be chosen.")
    ] = None,
    ca: Ca = None,
) -> None:
    """Join a running job from any shell, Slurm step or pod: serves as a spare until the job wants it."""
    from isoscale import env
    from isoscale.backends.local import ALLOCATOR
    from isoscale.kinds import check_kind, executor_environment, profile_named, profile_of
    from isoscale.runtime.joining import ask_to_join

    check_kind(kind)
    try:
        token = token_file.read_text().strip()
    except OSError as error:
        raise UserError(
            field="--token-file", value=token_file, problem=str(error.strerror), remedy="give DIR/control/token"
        ) from None
    welcome = ask_to_join(join, token, kind, ca)
    spec = welcome.spec
    path = Path(script) if script is not None else script_here(spec.script)
    if not path.is_file():
        raise UserError(field="--script", value=path, problem="no such file here", remedy="give its path with --script")
    profile = profile_named(spec.profile) if spec.profile else profile_of(kind)
    variables = {
        env.COORDINATOR: join.rstrip("/"),
        env.TOKEN_FILE: str(token_file.resolve()),
        env.EXECUTOR: str(welcome.executor),
        "PYTHONHASHSEED": "0",
        "PYTHONUNBUFFERED": "1",
    }
    if ca is not None:
        variables[env.CA_FILE] = str(ca.resolve())
    if host is not None:
        variables[env.HOST] = host
    environment = executor_environment({**ALLOCATOR, **env.child_environment(variables)}, profile, spec.threads)
    Console(stderr=True).print(
        Text(f"joined as executor {welcome.executor} of a job of {count(spec.workers, 'logical worker')}", style="dim")
    )
    sys.stderr.flush()
    try:
        os.execve(sys.executable, [sys.executable, str(path), *spec.script_args], environment)
    except OSError as error:
        raise IsoscaleError(f"{path}: {error}") from None

"""Commands for a job that runs: `scale`, `status`, `resume`, `stop`, `checkpoint`."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live

from isoscale import env, limits
from isoscale.cli.devices import devices_to_go_on_with
from isoscale.cli.live import status_table
from isoscale.cli.metrics import metrics_text
from isoscale.cli.numbers import in_range
from isoscale.cli.on_storage import ended_status, fetched_run, handle_of, name_of
from isoscale.cli.outcome import ToldExit, report_failure, report_success
from isoscale.cli.progress import Progress
from isoscale.cli.promises import warn_if_broken
from isoscale.cli.screen import console_of_a_job
from isoscale.cli.waiting import answer_to
from isoscale.errors import IsoscaleError, UserError
from isoscale.protocol.status import JobStatus
from isoscale.runtime.control.directory import read_job
from isoscale.runtime.control.ended import status_after
from isoscale.runtime.control.grants import refuse_if_granted
from isoscale.runtime.control.home import EXIT_ELSEWHERE
from isoscale.runtime.storage.client import is_url

__all__ = ["Ca", "checkpoint", "resume", "scale", "status", "stop"]

Place = Annotated[
    str,
    typer.Argument(
        metavar="DIR|URL", help="Directory of the run (--out of isoscale run), or its --storage.", show_default=False
    ),
]
Ca = Annotated[Path | None, typer.Option("--ca", help="Certificates to trust, where the job uses TLS.")]


def scale(
    place: Place,
    target: Annotated[
        str | None,
        typer.Argument(help='Executors: 4, +1, -1, or devices such as "cpu*2+cpu-sse*1".', show_default=False),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(
            "--batch",
            help="Batch size of each logical worker, one that the script declares; changes with the executors.",
            show_default=False,
            callback=in_range(limits.BATCH),
        ),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Return when the job trains on them.")] = False,
    ca: Ca = None,
) -> None:
    """Give a running job more, fewer or other executors, which changes no bit; or another batch size, which does."""
    _refuse_if_granted(place, "scale")
    if target is None and batch is None:
        problem, remedy = "neither executors nor a batch size", "give a number of executors, --batch, or both"
        raise UserError(field="scale", value="nothing", problem=problem, remedy=remedy)
    with handle_of(place, ca) as job:
        accepted = job.scale_to(target, batch=batch)
        wanted = accepted["target"] if target is not None else ""
        if batch is not None:
            wanted += f"{', ' if wanted else ''}batch size {batch}"
        if wait:
            answer = answer_to(job, accepted)
            if answer["outcome"] in ("given_up", "refused"):
                remedy = "see DIR/logs of the newcomers"
                raise UserError(field="target", value=target or batch, problem=answer["detail"], remedy=remedy)
            if answer["outcome"] != "done":
                raise IsoscaleError(f"scale: {_not_done(answer)}")
        typer.echo(f"{('training on' if target is not None else 'training with') if wait else 'accepted:'} {wanted}")


def status(
    place: Place,
    as_json: Annotated[bool, typer.Option("--json", help="Print it once, as JSON.")] = False,
    metrics: Annotated[bool, typer.Option("--metrics", help="Print it once, in Prometheus' text format.")] = False,
    once: Annotated[bool, typer.Option("--once", help="Print it once.")] = False,
    ca: Ca = None,
) -> None:
    """Show what a running job does, until it ends or Ctrl-C; of one that has ended, how."""
    console = Console()
    over = ended_status(place)
    if over is not None:
        _print(console, over, place, as_json=as_json, metrics=metrics)
        return
    with handle_of(place, ca) as job:
        if as_json or metrics or once or not console.is_terminal:
            _print(console, job.status(), place, as_json=as_json, metrics=metrics)
            return
        with Live(status_table(job.status()), console=console, refresh_per_second=4) as live:
            try:
                while True:
                    time.sleep(0.5)
                    live.update(status_table(job.status()))
            except KeyboardInterrupt:
                return
            except UserError:
                over = ended_status(place)
                if over is not None:
                    live.update(status_table(over))


def _print(console: Console, found: JobStatus, place: str, *, as_json: bool, metrics: bool) -> None:
    if as_json:
        typer.echo(json.dumps(found, indent=1))
    elif metrics:
        typer.echo(metrics_text(found, name_of(place)), nl=False)
    else:
        # A path or a digest that is cut in two could not be copied out of a file.
        console.print(status_table(found), soft_wrap=not console.is_terminal)


def checkpoint(place: Place, ca: Ca = None) -> None:
    """Ask a running job for a checkpoint now, and wait until it is there."""
    with handle_of(place, ca) as job:
        answer = answer_to(job, job.checkpoint())
    if answer["outcome"] != "done":
        raise IsoscaleError(f"no checkpoint: {_not_done(answer)}")
    typer.echo(f"checkpoint of {answer['detail']}")


def stop(
    place: Place,
    now: Annotated[
        bool, typer.Option("--now", help="At once, without a checkpoint: steps since the last one are lost.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Return when the job has ended, or as soon as it is asked to.")
    ] = True,
    ca: Ca = None,
) -> None:
    """End a running job after a checkpoint, and wait until it has; `isoscale resume` goes on."""
    _refuse_if_granted(place, "cancel" if now else "pause")
    with handle_of(place, ca) as job:
        asked = job.stop(now=now)
        if not wait:
            typer.echo(f"asked to stop {'at once' if now else 'after a checkpoint'}")
            return
        answer = answer_to(job, asked)
        if answer["outcome"] == "done":
            job.wait_gone()
    if answer["outcome"] == "ended":
        typer.echo(f"nothing to stop: {answer['detail']}")
        return
    if answer["outcome"] != "done":
        way_out = "; it trains on: isoscale stop --now ends it without a checkpoint" * (answer["outcome"] == "failed")
        raise IsoscaleError(f"not stopped: {_not_done(answer)}{way_out}")
    typer.echo(f"stopped {'' if now else 'at '}{answer['detail']}")


def _refuse_if_granted(place: str, verb: str) -> None:
    if not is_url(place):  # a service's jobs have none
        refuse_if_granted(Path(place), verb)


def _not_done(answer: dict[str, Any]) -> str:
    """Why a request did not come to what it should."""
    words = {"overtaken": "overtaken ", "ended": "the job ended first: "}
    return f"{words.get(answer['outcome'], '')}{answer['detail']}"


def resume(
    place: Annotated[
        str,
        typer.Argument(
            metavar="DIR|URL",
            help="Directory of the run (--out of isoscale run), or its --storage on a machine that has no DIR of it.",
            show_default=False,
        ),
    ],
    new_code: Annotated[
        bool,
        typer.Option(
            "--new-code", help="From its checkpoint, with the script and its modules as they are now, not as it began."
        ),
    ] = False,
    executors: Annotated[
        int | None,
        typer.Option(
            help="Executor processes from now on, instead of those (and the plan) that it has.",
            show_default=False,
            callback=in_range(limits.EXECUTORS),
        ),
    ] = None,
    devices: Annotated[
        str | None, typer.Option(help='The same by kind, such as "cpu*2+cpu-sse*1".', show_default=False)
    ] = None,
    plan: Annotated[
        str | None, typer.Option(help="Executors by committed step, instead of its plan.", show_default=False)
    ] = None,
    until: Annotated[
        int | None,
        typer.Option(
            help="Another limit of steps, also for a job that has reached its own.",
            show_default=False,
            callback=in_range(limits.STEPS),
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Head of the Ray cluster, if it is another one now.", show_default=False
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(help="Address that the job's sockets bind to, if it is another one now.", show_default=False),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="With a URL: the directory to go on in.  \\[default: a new one]", show_default=False),
    ] = None,
) -> None:
    """Go on with a job whose coordinator is gone: with its executors if they live, else from its checkpoint."""
    from isoscale.runtime.coordinator.run import resume_job

    directory = _directory(place, out)
    if not env.service_job():
        refuse_if_granted(directory, "resume")
    console = console_of_a_job()
    if not directory.is_dir():
        raise UserError(field="DIR", value=directory, problem="no such directory", remedy="give the --out of a run")
    over = status_after(directory)
    if over is not None and over["state"] == "finished" and not (until is not None and until > over["step"]):
        typer.echo(f"nothing to resume: the job has finished at step {over['step']}; result {over['result']}")
        return
    spec = read_job(directory).spec
    spec = replace(spec, until=spec.until if until is None else until)
    wanted, entries = devices_to_go_on_with(spec, executors, devices, plan)
    with Progress(console) as progress:
        job = resume_job(
            directory.resolve(),
            progress,
            new_code=new_code,
            heed_signals=True,
            devices=wanted,
            plan=entries,
            until=until,
            address=address,
            host=listen,
        )
        result = asyncio.run(job)
    if result.exit_code in (0, EXIT_ELSEWHERE):
        report_success(console, result, 0, directory)
    else:
        report_failure(result, directory)
    warn_if_broken(directory, directory)
    raise ToldExit(result.exit_code)


def _directory(place: str, out: Path | None) -> Path:
    """Of the run to go on with. Raises UserError."""
    if not is_url(place):
        if out is not None:
            problem, remedy = "the run goes on in its own directory", "leave it out, or give the URL of its storage"
            raise UserError(field="--out", value=out, problem=problem, remedy=remedy)
        return Path(place)
    return fetched_run(place, out)

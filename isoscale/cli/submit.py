"""`isoscale submit`: a job for the cluster service, with its code as it is now."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Annotated

import typer

from isoscale import limits
from isoscale.cli import options as o
from isoscale.cli.cluster_options import Ca, ClusterOption, TokenFile, connect
from isoscale.cli.job import job_spec
from isoscale.cli.numbers import in_range
from isoscale.cli.outcome import ToldExit
from isoscale.cluster.bundle import pack
from isoscale.cluster.client import Client
from isoscale.cluster.values import PRIORITY, JobShown, Submission
from isoscale.errors import UserError
from isoscale.kinds import DeviceSet, parse_kinds
from isoscale.runtime.code.freezing import snapshot_of

__all__ = ["exit_code_of", "submit"]

_SHARE = "How it shares devices"


def submit(
    script: o.Script,
    script_args: o.ScriptArgs = None,
    module: o.Module = False,
    workers: o.Workers = 1,
    least: Annotated[
        int,
        typer.Option(
            "--min", help="Fewest devices that it runs on.", rich_help_panel=_SHARE, callback=in_range(limits.EXECUTORS)
        ),
    ] = 1,
    most: Annotated[
        int | None,
        typer.Option(
            "--max",
            help="Most devices that it is given.  \\[default: N]",
            show_default=False,
            rich_help_panel=_SHARE,
            callback=in_range(limits.EXECUTORS),
        ),
    ] = None,
    kinds: o.Kinds = None,
    batch_sizes: Annotated[
        str | None,
        typer.Option(
            help="Batch sizes that the script allows, such as 16,32.", show_default=False, rich_help_panel=_SHARE
        ),
    ] = None,
    work: Annotated[
        int | None,
        typer.Option(
            help="Steps in all, if you know.",
            show_default=False,
            rich_help_panel=_SHARE,
            callback=in_range(limits.STEPS),
        ),
    ] = None,
    priority: Annotated[
        int, typer.Option(help="Higher is served first.", rich_help_panel=_SHARE, callback=in_range(PRIORITY))
    ] = 0,
    tenant: Annotated[
        str | None,
        typer.Option(help="Whose job it is.  \\[default: your token's]", show_default=False, rich_help_panel=_SHARE),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="For people.  \\[default: the script's]", show_default=False, rich_help_panel=_SHARE),
    ] = None,
    determinism: o.Determinism = "elastic",
    order: o.OrderOption = "ddp",
    seed: o.Seed = 0,
    threads: o.Threads = 1,
    until: o.Until = None,
    measure_noise: o.MeasureNoise = 0,
    retries: Annotated[
        int,
        typer.Option(
            help="Start it again so often after an error that another try may cure.",
            rich_help_panel=_SHARE,
            callback=in_range(limits.RETRIES),
        ),
    ] = 0,
    key: Annotated[
        str | None,
        typer.Option(
            help="The same key is the same job: submit again without fear.", show_default=False, rich_help_panel=_SHARE
        ),
    ] = None,
    after: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID", help="Start when this job has finished (may be given again).", rich_help_panel=_SHARE
        ),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Return when it is over, with its exit code.")] = False,
    cluster: ClusterOption = None,
    token_file: TokenFile = None,
    ca: Ca = None,
) -> None:
    """Submit SCRIPT to a cluster service, with its code as it is now; prints the job's id."""
    declared = parse_kinds(kinds) if kinds is not None else ()
    sizes = _sizes(batch_sizes)
    spec = job_spec(
        script,
        script_args,
        workers=workers,
        devices=DeviceSet(tuple((kind, 1) for kind in declared) or (("cpu", 1),)),
        determinism=determinism,
        kinds=kinds,
        order=order,
        seed=seed,
        threads=threads,
        until=until,
        module=module,
        measure_noise=measure_noise,
    )
    client = connect(cluster, token_file, ca)
    bundle = pack(snapshot_of(spec))
    submission = Submission(
        code=bundle.id,
        workers=workers,
        name=name or "",
        tenant=tenant or "",
        script_args=tuple(script_args or ()),
        min_devices=least,
        max_devices=most or 0,
        kinds=declared,
        batch_sizes=sizes,
        work=work or 0,
        priority=priority,
        determinism=determinism,
        order=order,
        seed=seed,
        threads=threads,
        until=until or 0,
        measure_noise=measure_noise,
        retries=retries,
        key=key or "",
        after=tuple(after or ()),
    )
    with _as_options():
        submission.check()
    job = client.submit_bundle(bundle, submission)
    typer.echo(job.id)
    if wait:
        raise ToldExit(_wait(client, job.id))


@contextlib.contextmanager
def _as_options() -> Iterator[None]:
    """What is wrong with a field of a submission, told of the option that it came from."""
    try:
        yield
    except UserError as error:
        field = "ARGS" if error.field == "script_args" else f"--{error.field.replace('_', '-').removeprefix('--')}"
        raise UserError(field=field, value=error.value, problem=error.problem, remedy=error.remedy) from None


def _wait(client: Client, job: str) -> int:
    shown = client.wait(job)
    if shown.state != "finished":
        typer.echo(f"isoscale: {job} {shown.state}: {shown.error}", err=True)
    return exit_code_of(shown)


def exit_code_of(job: JobShown) -> int:
    """0 done, the job's own if it failed, 130 if it was cancelled."""
    if job.state == "finished":
        return 0
    return 130 if job.state == "cancelled" else job.exit_code or 1


def _sizes(text: str | None) -> tuple[int, ...]:
    if not text:
        return ()
    if text.count(",") >= limits.MAX_BATCHES:
        raise UserError(
            field="--batch-sizes", value=text, problem="too many", remedy=f"give at most {limits.MAX_BATCHES}"
        )
    return tuple(limits.whole(part.strip(), "--batch-sizes", limits.BATCH, part_of=text) for part in text.split(","))

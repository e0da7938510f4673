"""`isoscale run`: a script on executor processes of this machine, or of a Ray cluster."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from isoscale import limits
from isoscale.cli import options as o
from isoscale.cli.devices import devices_and_plan
from isoscale.cli.job import check_running, claim_directory, code_to_keep, forget_if_empty, job_spec
from isoscale.cli.like import like_run, take_code, with_batches_of
from isoscale.cli.numbers import in_range
from isoscale.cli.on_ray import Address, BackendName, Cores, Memory, WorkingDir, listening_address, ray_options
from isoscale.cli.on_storage import StorageUrl
from isoscale.cli.outcome import ToldExit, report_failure, report_success
from isoscale.cli.progress import Progress
from isoscale.cli.promises import warn_if_broken
from isoscale.cli.screen import console_of_a_job
from isoscale.errors import UserError
from isoscale.runtime.code.collect import Snapshot
from isoscale.runtime.code.freezing import Frozen
from isoscale.runtime.control.home import EXIT_ELSEWHERE
from isoscale.runtime.control.server import Security, check_security
from isoscale.runtime.coordinator.run import RunResult, run_job
from isoscale.types import Settings

__all__ = ["run"]

#: parts of the help text, beside those of other commands
_KEEPING, _NETWORK = "What keeps it going", "Other machines"


def run(
    context: typer.Context,
    script: o.Script,
    script_args: o.ScriptArgs = None,
    module: o.Module = False,
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
    plan: o.Plan = None,
    batch_plan: o.BatchPlan = None,
    measure_noise: o.MeasureNoise = 0,
    like: Annotated[
        Path | None,
        typer.Option(
            "--like",
            metavar="DIR",
            help="Train again what the run in DIR trained: its code, arguments, N, seed, batch sizes.",
            show_default=False,
            rich_help_panel=o.RUNNING,
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on in --out from its newest whole checkpoint.", rich_help_panel=o.RUNNING),
    ] = False,
    new_code: o.NewCode = False,
    checkpoint_every: Annotated[
        int,
        typer.Option(
            help="Write a checkpoint every so many steps; 0: never.",
            rich_help_panel=_KEEPING,
            callback=in_range(limits.CHECKPOINT_EVERY),
        ),
    ] = 0,
    keep_checkpoints: Annotated[
        int,
        typer.Option(
            help="Keep the newest so many checkpoints.",
            rich_help_panel=_KEEPING,
            callback=in_range(limits.KEPT_CHECKPOINTS),
        ),
    ] = 3,
    spares: Annotated[
        int,
        typer.Option(
            help="Warm processes that wait to become executors.",
            rich_help_panel=_KEEPING,
            callback=in_range(limits.SPARES),
        ),
    ] = 0,
    no_warm: o.NoWarm = False,
    no_rebalance: Annotated[
        bool,
        typer.Option("--no-rebalance", help="Leave logical workers on slow executors.", rich_help_panel=_KEEPING),
    ] = False,
    lost_after: Annotated[
        float,
        typer.Option(
            help="Seconds without a heartbeat after which an executor is killed and replaced.",
            rich_help_panel=_KEEPING,
            callback=in_range(limits.LOST_AFTER_S),
        ),
    ] = 10.0,
    notice: Annotated[
        float,
        typer.Option(
            help="Seconds that whoever is told to go (SIGTERM) has: a whole job is stopped within them.",
            rich_help_panel=_KEEPING,
        ),
    ] = 30.0,
    audit_every: Annotated[
        int,
        typer.Option(
            help="Compare executors' state every so many steps; 0: at the end.",
            rich_help_panel=_KEEPING,
            callback=in_range(limits.AUDIT_EVERY),
        ),
    ] = 100,
    audit_turns: Annotated[
        float,
        typer.Option(
            help="Run this share of turns again elsewhere, to find devices that miscompute.",
            rich_help_panel=_KEEPING,
            callback=in_range(limits.SHARE),
        ),
    ] = 0.0,
    backend: BackendName = "local",
    address: Address = None,
    cores: Cores = None,
    memory: Memory = None,
    working_dir: WorkingDir = None,
    storage: StorageUrl = None,
    listen: Annotated[
        str | None,
        typer.Option(
            help="Address that the job's sockets bind to.  \\[default: 127.0.0.1; with Ray this node's]",
            show_default=False,
            rich_help_panel=_NETWORK,
        ),
    ] = None,
    port: Annotated[
        int,
        typer.Option(
            help="Port of the control socket; 0: any.", rich_help_panel=_NETWORK, callback=in_range(limits.PORT)
        ),
    ] = 0,
    certificate: Annotated[
        Path | None, typer.Option(help="TLS certificate (PEM) of the control socket.", rich_help_panel=_NETWORK)
    ] = None,
    key: Annotated[Path | None, typer.Option(help="Its private key.", rich_help_panel=_NETWORK)] = None,
    no_spawn: Annotated[
        bool,
        typer.Option("--no-spawn", help="Start no executors; wait for some to join.", rich_help_panel=_NETWORK),
    ] = False,
) -> None:
    """Train SCRIPT with N logical workers on E executors: the same bits for every E, and for every change of E."""
    console = console_of_a_job()
    model = None if like is None else like_run(context, like, script, script_args)
    if model is not None:
        workers, seed, threads, order, determinism = (
            model.workers,
            model.seed,
            model.threads,
            model.order,
            model.determinism,
        )
        until, script_args, kinds = model.until or None, list(model.script_args), ",".join(model.kinds)
        measure_noise, module, script = model.measure_noise, bool(model.module), model.module or model.script
    found, entries = devices_and_plan(executors, devices, plan, workers, until)
    # Checked before a directory is made, so that a mistake leaves nothing behind.
    spec = job_spec(
        script,
        script_args,
        workers=workers,
        devices=found,
        planned=[devices for _, devices in entries],
        determinism=determinism,
        kinds=kinds,
        order=order,
        seed=seed,
        threads=threads,
        until=until,
        audit_every=audit_every,
        module=module,
        batch_plan=batch_plan,
        measure_noise=measure_noise,
    )
    if model is not None:
        spec = replace(spec, batch_plan=model.batch_plan, is_repeat=True)
    elif resume and out is not None and (out / "checkpoints").is_dir():
        spec = with_batches_of(spec, out, given=batch_plan is not None)
    check_running(
        spares=spares,
        checkpoint_every=checkpoint_every,
        keep_checkpoints=keep_checkpoints,
        lost_after=lost_after,
        notice=notice,
        audit_turns=audit_turns,
    )
    ray = ray_options(backend, address=address, cores=cores, memory=memory, working_dir=working_dir, threads=threads)
    host = listening_address(ray, listen)
    settings = Settings(
        spares=spares,
        spawn=not no_spawn,
        warm=not no_warm,
        checkpoint_every=checkpoint_every,
        keep_checkpoints=keep_checkpoints,
        heartbeat_s=min(1.0, lost_after / 5),
        lost_after_s=lost_after,
        notice_s=notice,
        rebalance=not no_rebalance,
        audit_turns=audit_turns,
        host=host,
        ray=ray,
        storage=storage or "",
        command=shlex.join(["isoscale", *sys.argv[1:]]),
    )
    security = Security(port=port, certificate=certificate, key=key)
    check_security(host, security)
    code: Snapshot | Frozen | None
    code = None if model is not None else code_to_keep(spec, out, resume=resume, new_code=new_code)
    directory = claim_directory(out, spec.script, resume=resume)
    if like is not None and not resume:
        code = take_code(like, directory, spec.script)
    spec = replace(spec, out=str(directory))
    with Progress(console) as progress:
        job = run_job(
            spec,
            found,
            progress,
            settings=settings,
            plan=entries,
            security=security,
            resume=resume,
            heed_signals=True,
            new_code=new_code,
            code=code,
        )
        try:
            result = asyncio.run(job)
        except UserError:
            if out is None:
                forget_if_empty(directory)
            raise
    shown = out if out is not None else Path(os.path.relpath(directory))
    if result.exit_code in (0, EXIT_ELSEWHERE):
        report_success(console, result, workers, shown)
    elif _told_all(result) and out is None and forget_if_empty(directory):
        report_failure(result, None)
    else:
        report_failure(result, shown)
    warn_if_broken(directory, shown)
    raise ToldExit(result.exit_code)


def _told_all(result: RunResult) -> bool:
    """Of a run that failed before its first step: is nothing in its logs that the terminal does not show?"""
    return result.exit_code in (1, 2) and not result.step and not result.num_lost

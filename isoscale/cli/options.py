"""Options that several commands share, checked into values."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from isoscale import limits
from isoscale.cli.numbers import in_range
from isoscale.cli.scripts import existing, module_file, own_help, resolved
from isoscale.errors import UserError, shortened
from isoscale.kinds import DeviceSet, check_kind, check_profile, common_profile, parse_kinds
from isoscale.runtime.code.collect import Snapshot
from isoscale.runtime.code.freezing import snapshot_of
from isoscale.types import JobSpec, Level, Order

__all__ = [
    "JOB",
    "RUNNING",
    "Determinism",
    "Devices",
    "Executors",
    "Kinds",
    "Module",
    "NewCode",
    "OrderOption",
    "Out",
    "Plan",
    "Script",
    "ScriptArgs",
    "Seed",
    "Threads",
    "Until",
    "Workers",
    "check_running",
    "claim_directory",
    "code_to_keep",
    "device_set",
    "devices_and_plan",
    "job_spec",
    "parse_plan",
    "plan_error",
]

Script = Annotated[
    str,
    typer.Argument(
        help="Training script that ends with isoscale.run(train), or recipe:NAME.",
        show_default=False,
        callback=resolved,
    ),
]
Module = Annotated[
    bool,
    typer.Option(
        "--module", "-m", help="SCRIPT is the name of a module, as after python -m.", rich_help_panel="Options"
    ),
]
ScriptArgs = Annotated[
    list[str] | None,
    typer.Argument(help="Arguments for the script, after --.", show_default=False, callback=own_help),
]
#: parts of a help text
JOB, RUNNING = "The job: other values give other results", "How it is run"

Workers = Annotated[
    int,
    typer.Option(
        help="Logical workers N: the job's identity, constant for its life.",
        rich_help_panel=JOB,
        callback=in_range(limits.LOGICAL_WORKERS),
    ),
]
Executors = Annotated[
    int | None,
    typer.Option(
        help="Executor processes E, 1 to N.  \\[default: 1]",
        show_default=False,
        rich_help_panel=RUNNING,
        callback=in_range(limits.EXECUTORS),
    ),
]
Devices = Annotated[
    str | None,
    typer.Option(help='Executors by kind, such as "cpu*2+cpu-sse*1".', show_default=False, rich_help_panel=RUNNING),
]
Determinism = Annotated[
    Literal["off", "elastic", "heterogeneous"],
    typer.Option(
        metavar="LEVEL",
        help="off; elastic: same bits on any number of one kind; heterogeneous: on mixed kinds too.",
        rich_help_panel=JOB,
    ),
]
Kinds = Annotated[
    str | None,
    typer.Option(
        help="Every kind the job may ever meet, such as cpu-avx2,cpu-sse.  \\[default: those in --devices]",
        show_default=False,
        rich_help_panel=JOB,
    ),
]
OrderOption = Annotated[
    Literal["ddp", "tree"],
    typer.Option("--order", help="Order of gradient sums: stock DDP's, or a faster fixed tree.", rich_help_panel=JOB),
]
Seed = Annotated[
    int,
    typer.Option(
        help="Seeds set-up; logical worker r gets seed + r.", rich_help_panel=JOB, callback=in_range(limits.SEED)
    ),
]
Threads = Annotated[
    int,
    typer.Option(
        help="Intra-op threads per executor; part of the job's identity.",
        rich_help_panel=JOB,
        callback=in_range(limits.THREADS),
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        help="Directory of the run.  \\[default: runs/SCRIPT-TIME]", show_default=False, rich_help_panel=RUNNING
    ),
]
Plan = Annotated[
    str | None,
    typer.Option(
        help='Executors (or devices) by committed step, such as "0:2,40:4,80:1".',
        show_default=False,
        rich_help_panel=RUNNING,
    ),
]
Until = Annotated[
    int | None,
    typer.Option(
        help="Stop when this many steps are committed.",
        show_default=False,
        rich_help_panel=JOB,
        callback=in_range(limits.STEPS),
    ),
]

NewCode = Annotated[
    bool,
    typer.Option(
        "--new-code",
        help="Go on with the script and its modules as they are now, not as the run began.",
        rich_help_panel=RUNNING,
    ),
]


def device_set(executors: int | None, devices: str | None, workers: int) -> DeviceSet:
    limits.within(workers, "--workers", limits.LOGICAL_WORKERS)
    if devices is not None:
        found = DeviceSet.parse(devices)
        if executors is not None and executors != found.total:
            raise UserError(
                field="--executors",
                value=executors,
                problem=f"--devices {devices} has {found.total}",
                remedy="give one of the two",
            )
    else:
        executors = 1 if executors is None else executors
        limits.within(executors, "--executors", limits.EXECUTORS)
        found = DeviceSet((("cpu", executors),))
    if found.total > workers:
        raise UserError(
            field="--executors",
            value=found.total,
            problem=f"more than the {workers} logical workers of the job",
            remedy=f"give --workers {found.total} or fewer executors",
        )
    for kind in found.kinds:
        check_kind(kind)
    return found


def parse_plan(plan: str | None, workers: int, until: int | None) -> list[tuple[int, DeviceSet]]:
    """Entries `step:executors` or `step:DEVICES`, in ascending order of steps."""
    if plan is None:
        return []
    if len(plan) > limits.MAX_PLAN_CHARS or plan.count(",") >= limits.MAX_PLAN_ENTRIES:
        raise plan_error(plan, "has too many entries", f"give at most {limits.MAX_PLAN_ENTRIES}")
    entries: list[tuple[int, DeviceSet]] = []
    for part in plan.split(","):
        step, found = _plan_entry(plan, part.strip())
        if entries and step <= entries[-1][0]:
            raise plan_error(plan, f"step {step} does not come after {entries[-1][0]}", "give steps in ascending order")
        if found.total > workers:
            raise plan_error(
                plan, f"{found.total} executors at step {step} for {workers} logical workers", f"give at most {workers}"
            )
        entries.append((step, found))
    for kind in dict.fromkeys(kind for _, found in entries for kind in found.kinds):
        check_kind(kind, field="--plan")
    return [(step, found) for step, found in entries if not until or step < until]


def _plan_entry(plan: str, part: str) -> tuple[int, DeviceSet]:
    step, colon, devices = (text.strip() for text in part.partition(":"))
    if not colon or not (step.isascii() and step.isdigit()) or not devices:
        shown = shortened(part, 60)
        raise plan_error(plan, f"{shown!r} is not STEP:EXECUTORS", 'give, for example, "0:2,40:4,80:1"')
    at = limits.whole(step, "--plan", limits.STEP, part_of=plan)
    if not limits.is_whole(devices):
        return at, DeviceSet.parse(devices, field="--plan")
    if int(devices) < 1:
        raise plan_error(plan, f"{shortened(part, 60)!r} leaves the job without executors", "give 1 or more")
    return at, DeviceSet((("cpu", limits.whole(devices, "--plan", limits.EXECUTORS, part_of=plan)),))


def devices_and_plan(
    executors: int | None, devices: str | None, plan: str | None, workers: int, until: int | None
) -> tuple[DeviceSet, list[tuple[int, DeviceSet]]]:
    """The devices to begin with, and the changes that a plan makes later."""
    entries = parse_plan(plan, workers, until)
    if not entries or entries[0][0] != 0:
        return device_set(executors, devices, workers), entries
    first, later = entries[0][1], entries[1:]
    if executors is not None or devices is not None:
        given = device_set(executors, devices, workers)
        # A number says nothing of kinds, so the plan's own are meant.
        if given.total != first.total or (devices is not None and given.counts() != first.counts()):
            option, value = ("--devices", devices) if devices is not None else ("--executors", executors)
            raise plan_error(plan, f"begins with {first}, but {option} is {value}", "give one of them, or both alike")
    return first, later


def plan_error(plan: object, problem: str, remedy: str) -> UserError:
    return UserError(field="--plan", value=plan, problem=problem, remedy=remedy)


def job_spec(
    script: str,
    script_args: list[str] | None,
    *,
    workers: int,
    devices: DeviceSet,
    planned: Sequence[DeviceSet] = (),
    determinism: Level,
    kinds: str | None,
    order: Order,
    seed: int,
    threads: int,
    until: int | None,
    audit_every: int = 100,
    record: bool = False,
    module: bool = False,
) -> JobSpec:
    """Check everything a person can get wrong before any process is started. Where it writes is added later."""
    path = existing(module_file(script) if module else script)
    limits.within(workers, "--workers", limits.LOGICAL_WORKERS)
    limits.within(threads, "--threads", limits.THREADS)
    if until is not None:
        limits.within(until, "--until", limits.STEPS)
    limits.within(audit_every, "--audit-every", limits.AUDIT_EVERY)
    last_seed = int(limits.SEED.most) - workers
    if not 0 <= seed <= last_seed:
        raise UserError(
            field="--seed",
            value=seed,
            problem="seed + logical rank must fit 32 bits",
            remedy=f"give 0 .. {last_seed}",
        )
    met = tuple(dict.fromkeys(kind for one in (devices, *planned) for kind in one.kinds))
    declared = parse_kinds(kinds) if kinds is not None else met
    for kind in met:
        if kind not in declared:
            raise UserError(
                field="--devices",
                value=str(devices),
                problem=f"{kind} is not among --kinds {kinds}",
                remedy=f"declare it: --kinds {','.join([*declared, kind])}",
            )
    profile = ""
    if determinism == "heterogeneous":
        common = common_profile(declared)
        check_profile(common)
        profile = common.name
    return JobSpec(
        workers=workers,
        seed=seed,
        threads=threads,
        order=order,
        determinism=determinism,
        kinds=declared,
        profile=profile,
        until=until or 0,
        audit_every=audit_every,
        script=str(path),
        module=script if module else "",
        script_args=tuple(script_args or ()),
        record=record,
    )


def check_running(
    *,
    spares: int,
    checkpoint_every: int,
    keep_checkpoints: int,
    lost_after: float,
    audit_turns: float,
    notice: float = 30.0,
) -> None:
    """How a run is kept going: refuses numbers that would train for hours and then do nothing, or never begin."""
    limits.within(spares, "--spares", limits.SPARES)
    limits.within(checkpoint_every, "--checkpoint-every", limits.CHECKPOINT_EVERY)
    limits.within(keep_checkpoints, "--keep-checkpoints", limits.KEPT_CHECKPOINTS)
    limits.within(lost_after, "--lost-after", limits.LOST_AFTER_S)
    limits.within(notice, "--notice", limits.NOTICE_S)
    limits.within(audit_turns, "--audit-turns", limits.SHARE)


def code_to_keep(spec: JobSpec, out: Path | None, *, resume: bool = False, new_code: bool = False) -> Snapshot | None:
    """The code of a run that begins, read before a directory is made; None for one that goes on with what it has."""
    if new_code and not resume:
        problem, remedy = "only a run that goes on has old code", "give --resume too, or leave it out"
        raise UserError(field="--new-code", value="given", problem=problem, remedy=remedy)
    if resume and not new_code:
        return None
    return snapshot_of(replace(spec, out=str(out.resolve()) if out is not None else ""))


def claim_directory(out: Path | None, script: str, *, field: str = "--out", resume: bool = False) -> Path:
    """An empty directory that this run has for itself, made if need be; or, to resume, one that has a run."""
    if resume:
        if out is None or not (out / "checkpoints").is_dir():
            raise UserError(
                field="--resume",
                value=out if out is not None else "no --out",
                problem="there is no run with checkpoints to go on with",
                remedy="give --out with the directory of a run that wrote some (--checkpoint-every)",
            )
        return out.resolve()
    directory = out or Path("runs") / f"{Path(script).stem}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise UserError(
                field=field,
                value=directory,
                problem="the directory is not empty",
                remedy="give another one or remove it",
            )
        # Whoever makes this first has the directory.
        (directory / "control").mkdir()
    except FileExistsError:
        raise UserError(
            field=field,
            value=directory,
            problem="another run has this directory, or it is a file",
            remedy="give another one",
        ) from None
    except OSError as error:
        raise UserError(
            field=field, value=directory, problem=f"cannot be written ({error.strerror})", remedy="give another one"
        ) from None
    return directory.resolve()

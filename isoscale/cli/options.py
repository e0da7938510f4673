"""Options that several commands share, checked into values."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from isoscale.cli.scripts import existing, own_help, resolved
from isoscale.errors import UserError
from isoscale.kinds import DeviceSet, check_kind, check_profile, common_profile, parse_kinds
from isoscale.types import JobSpec, Level, Order

__all__ = [
    "JOB",
    "RUNNING",
    "Determinism",
    "Devices",
    "Executors",
    "Kinds",
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
ScriptArgs = Annotated[
    list[str] | None,
    typer.Argument(help="Arguments for the script, after --.", show_default=False, callback=own_help),
]
#: parts of a help text
JOB, RUNNING = "The job: other values give other results", "How it is run"

Workers = Annotated[
    int, typer.Option(help="Logical workers N: the job's identity, constant for its life.", rich_help_panel=JOB)
]
Executors = Annotated[
    int | None,
    typer.Option(help="Executor processes E, 1 to N.  \\[default: 1]", show_default=False, rich_help_panel=RUNNING),
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
Seed = Annotated[int, typer.Option(help="Seeds set-up; logical worker r gets seed + r.", rich_help_panel=JOB)]
Threads = Annotated[
    int, typer.Option(help="Intra-op threads per executor; part of the job's identity.", rich_help_panel=JOB)
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
    typer.Option(help="Stop when this many steps are committed.", show_default=False, rich_help_panel=JOB),
]

_MAX_SEED = 2**32 - 1
#: of --lost-after: five heartbeats must fit, and a machine pauses for a moment now and then
_SHORTEST_S, _LONGEST_S = 0.5, 86400.0


def device_set(executors: int | None, devices: str | None, workers: int) -> DeviceSet:
    _at_least("--workers", workers, 1)
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
        _at_least("--executors", executors if executors is not None else 1, 1)
        found = DeviceSet((("cpu", executors or 1),))
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
    entries: list[tuple[int, DeviceSet]] = []
    for part in (plan or "").split(","):
        if plan is None:
            break
        step, colon, devices = part.strip().partition(":")
        if not colon or not step.strip().isdigit() or not devices.strip():
            raise plan_error(plan, f"{part.strip()!r} is not STEP:EXECUTORS", 'give, for example, "0:2,40:4,80:1"')
        text = devices.strip()
        found = DeviceSet((("cpu", int(text)),)) if text.isdigit() and int(text) else None
        if found is None:
            if text.isdigit():
                raise plan_error(plan, f"{part.strip()!r} leaves the job without executors", "give 1 or more")
            found = DeviceSet.parse(text, field="--plan")
        if entries and int(step) <= entries[-1][0]:
            raise plan_error(plan, f"step {step} does not come after {entries[-1][0]}", "give steps in ascending order")
        if found.total > workers:
            raise plan_error(
                plan, f"{found.total} executors at step {step} for {workers} logical workers", f"give at most {workers}"
            )
        for kind in found.kinds:
            check_kind(kind)
        entries.append((int(step), found))
    return [(step, found) for step, found in entries if not until or step < until]


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
) -> JobSpec:
    """Check everything a person can get wrong before any process is started. Where it writes is added later."""
    path = existing(script)
    _at_least("--workers", workers, 1)
    _at_least("--threads", threads, 1)
    if until is not None:
        _at_least("--until", until, 1)
    _at_least("--audit-every", audit_every, 0)
    if not 0 <= seed <= _MAX_SEED - workers:
        raise UserError(
            field="--seed",
            value=seed,
            problem="seed + logical rank must fit 32 bits",
            remedy=f"give 0 .. {_MAX_SEED - workers}",
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
        script_args=tuple(script_args or ()),
        record=record,
    )


def check_running(
    *, spares: int, checkpoint_every: int, keep_checkpoints: int, lost_after: float, audit_turns: float
) -> None:
    """How a run is kept going: refuses numbers that would train for hours and then do nothing, or never begin."""
    _at_least("--spares", spares, 0)
    _at_least("--checkpoint-every", checkpoint_every, 0)
    _at_least("--keep-checkpoints", keep_checkpoints, 1)
    if not _SHORTEST_S <= lost_after <= _LONGEST_S:  # refuses NaN, too
        raise UserError(
            field="--lost-after",
            value=lost_after,
            problem="not a time in which a heartbeat can come",
            remedy=f"give {_SHORTEST_S:g} to {_LONGEST_S:g} seconds",
        )
    if not 0 <= audit_turns <= 1:
        raise UserError(field="--audit-turns", value=audit_turns, problem="is no share", remedy="give 0 to 1")


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


def _at_least(field: str, value: int, minimum: int) -> None:
    if value < minimum:
        raise UserError(field=field, value=value, problem="too small", remedy=f"give {minimum} or more")

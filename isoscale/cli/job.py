"""A job as its options describe it: checked before a process starts, then its code and its directory."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from isoscale import limits
from isoscale.batches import parse_batch_plan
from isoscale.cli.scripts import existing, module_file
from isoscale.errors import UserError
from isoscale.kinds import DeviceSet, check_profile, common_profile, parse_kinds
from isoscale.protocol.events import read_events
from isoscale.runtime.code.collect import Snapshot
from isoscale.runtime.code.freezing import snapshot_of
from isoscale.types import JobSpec, Level, Order

__all__ = ["check_running", "claim_directory", "code_to_keep", "forget_if_empty", "job_spec"]

#: what a run that trains nothing leaves in its directory
_OWN = {"checkpoints", "code", "control", "events.jsonl", "logs", "summary.json"}


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
    batch_plan: str | None = None,
    measure_noise: int = 0,
) -> JobSpec:
    """Check everything a person can get wrong before any process is started. Where it writes is added later."""
    path = existing(module_file(script) if module else script)
    limits.within(workers, "--workers", limits.LOGICAL_WORKERS)
    limits.within(threads, "--threads", limits.THREADS)
    if until is not None:
        limits.within(until, "--until", limits.STEPS)
    limits.within(audit_every, "--audit-every", limits.AUDIT_EVERY)
    limits.within(measure_noise, "--measure-noise", limits.STEP)
    if measure_noise and workers < 2:
        problem, remedy = "one logical worker has one gradient per step", "give --workers 2 or more, or leave it out"
        raise UserError(field="--measure-noise", value=measure_noise, problem=problem, remedy=remedy)
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
        batch_plan=tuple(parse_batch_plan(batch_plan, until)),
        measure_noise=measure_noise,
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


def forget_if_empty(directory: Path) -> bool:
    """Remove the directory of a run that failed before its first step and left nothing but what was said on the
    terminal; whether it was. Whatever is not known to be ours stays, and so does the directory then."""
    try:
        left = {path.name for path in directory.iterdir()} - _OWN
        log = directory / "events.jsonl"
        trained = log.exists() and any(event["event"] in ("step", "checkpoint") for event in read_events(log))
        if left or trained:
            return False
        shutil.rmtree(directory)
        return True
    except OSError:
        return False


def claim_directory(out: Path | None, script: str, *, field: str = "--out", resume: bool = False) -> Path:
    """An empty directory that this run has for itself, made if need be; or, to resume, one that has a run."""
    if resume:
        if out is None or not (out / "checkpoints").is_dir():
            raise UserError(
                field="--resume",
                value=... if out is None else out,
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
            problem="another run has this directory" if directory.is_dir() else "is a file",
            remedy="give another one",
        ) from None
    except OSError as error:
        raise UserError(
            field=field, value=directory, problem=f"cannot be written ({error.strerror})", remedy="give another one"
        ) from None
    return directory.resolve()

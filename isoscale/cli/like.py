"""`isoscale run --like DIR`: the job of another run, with the batch sizes that it had and the code that it kept."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from isoscale.batches import plan_text
from isoscale.cli.scripts import existing
from isoscale.errors import UserError
from isoscale.runtime.code.freezing import Frozen, code_kept_at, code_kept_for
from isoscale.runtime.tools.replay import read_log, spec_of
from isoscale.types import JobSpec

__all__ = ["like_run", "take_code", "with_batches_of"]

#: what an earlier run has seen of imports and data, which the next one finds out for itself
_NOT_CODE = shutil.ignore_patterns("imports.json", "hashes.json")
#: options that say what a job computes, and the fields of a job that they give
_FIXED = {
    "workers": "workers",
    "seed": "seed",
    "threads": "threads",
    "order": "order",
    "determinism": "determinism",
    "until": "until",
    "measure_noise": "measure_noise",
    "module": "module",
}


def like_run(context: typer.Context, directory: Path, script: str, script_args: list[str] | None) -> JobSpec:
    """The job of a run, with the plan that it has recorded. Raises UserError if an option asks for another job."""
    log = read_log(directory)
    spec = log.spec
    plan = log.batches
    if log.finished is None and log.last_step:
        spec = replace(spec, until=log.last_step)  # it has not come further
    spec = replace(spec, batch_plan=plan)
    for option, field in _FIXED.items():
        value: Any = context.params.get(option)
        mine = bool(getattr(spec, field)) if field == "module" else getattr(spec, field)
        if _is_given(context, option) and value != mine:
            raise _differs(f"--{option.replace('_', '-')}", value, directory, mine)
    if _is_given(context, "batch_plan") and context.params["batch_plan"].replace(" ", "") != plan_text(plan):
        raise _differs("--batch-plan", context.params["batch_plan"], directory, plan_text(plan) or "no changes")
    if _is_given(context, "kinds") and tuple(context.params["kinds"].split(",")) != spec.kinds:
        raise _differs("--kinds", context.params["kinds"], directory, ",".join(spec.kinds))
    if script_args and tuple(script_args) != spec.script_args:
        raise _differs("SCRIPT_ARGS", " ".join(script_args), directory, " ".join(spec.script_args) or "none")
    if not spec.module and Path(spec.script).name != Path(str(existing(script))).name:
        raise _differs("SCRIPT", script, directory, spec.script)
    return spec


def with_batches_of(spec: JobSpec, directory: Path, *, given: bool) -> JobSpec:
    """A job that goes on in its directory, with the batch plan that it has there unless another one is `given`."""
    before = spec_of(directory)
    plan = spec.batch_plan if given else before.batch_plan
    noise = spec.measure_noise or before.measure_noise
    return replace(spec, batch_plan=plan, measure_noise=noise, is_repeat=before.is_repeat and not given)


def take_code(directory: Path, out: Path, script: str) -> Frozen | None:
    """The code that a run has kept becomes that of another run, in `out`. None if it has kept none."""
    if code_kept_for(directory) is None:
        return None
    try:
        shutil.copytree(code_kept_at(directory).parent, code_kept_at(out).parent, ignore=_NOT_CODE)
    except OSError as error:
        problem = f"its code cannot be copied ({error.strerror or error})"
        raise UserError(field="--like", value=directory, problem=problem, remedy="see whether it is whole") from None
    return code_kept_for(out, script)


def _is_given(context: typer.Context, option: str) -> bool:
    source = context.get_parameter_source(option)
    return source is not None and source.name == "COMMANDLINE"


def _differs(option: str, value: object, directory: Path, mine: object) -> UserError:
    return UserError(
        field=option,
        value=value,
        problem=f"the run in {directory} has {mine}",
        remedy="leave it out, or run without --like",
    )

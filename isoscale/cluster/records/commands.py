"""Commands that prove or repeat a run, as its owner would type them, from what the run recorded of itself."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isoscale.protocol.files import read_small_json

__all__ = ["Commands", "commands_of"]

#: options of `verify`, by the name of what is recorded, where they are not these
_DEFAULTS: dict[str, object] = {"seed": 0, "threads": 1, "order": "ddp", "determinism": "elastic", "until": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
    """Each is "" where nobody can tell."""

    #: trains again, elastically and with stock DDP, and compares every bit
    verify: str = ""
    #: trains again up to the step, in one process, and compares every loss
    replay: str = ""
    #: trains again with the kept code and batch plan, on any executors: the same digest
    again: str = ""
    report: str = ""


def commands_of(directory: Path, step: int) -> Commands:
    place = shlex.quote(str(directory))
    report = f"isoscale report {place}"
    try:
        found = read_small_json(directory / "control" / "job.json")
        spec: Mapping[str, Any] = found["spec"]
        what = f"-m {shlex.quote(spec['module'])}" if spec["module"] else shlex.quote(spec["script"])
        given = shlex.join(str(one) for one in spec["script_args"])
        verify = ["isoscale verify", what, "--workers", str(int(spec["workers"])), *_options(spec)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Commands(report=report)
    arguments = [f"-- {given}"] if given else []
    return Commands(
        verify=" ".join([*verify, *arguments]),
        replay=f"isoscale replay {place} --step {step}" if step else "",
        again=" ".join(["isoscale run", what, "--like", place, *arguments]),
        report=report,
    )


def _options(spec: Mapping[str, Any]) -> list[str]:
    unusual = {name: spec[name] for name, usual in _DEFAULTS.items() if spec.get(name, usual) != usual}
    found = [f"--{name} {shlex.quote(str(value))}" for name, value in unusual.items()]
    plan = [f"{int(one['step'])}:{int(one['size'])}" for one in spec.get("batch_plan", ())]
    return [*found, f'--batch-plan "{",".join(plan)}"'] if plan else found

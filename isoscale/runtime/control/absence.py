"""Why a run's coordinator does not answer, as far as its machine can tell, and what to do about it."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from isoscale.backends.host_id import machine_id
from isoscale.backends.system import is_stopped, lives
from isoscale.errors import UserError
from isoscale.runtime.control.executor_link import ADDRESS_FILE

__all__ = ["absent", "stopped"]


def stopped(out: Path, *, field: str = "DIR") -> UserError | None:
    """The run's coordinator, if it is stopped by a signal: it holds its connections and its lock, and does nothing."""
    pid = _coordinator_here(out)
    if not pid or not is_stopped(pid):
        return None
    return UserError(
        field=field,
        value=out,
        problem=f"its coordinator (process {pid}) is stopped by a signal; executors train on without it",
        remedy=f"continue it: kill -CONT {pid}",
    )


def absent(out: Path, *, asked: bool = False) -> UserError:
    """It did not answer. `asked`: it was sent a request, which it may still find when it runs again."""
    error = stopped(out)
    if error is not None:
        return error
    pid = _coordinator_here(out)
    if pid:
        later = " it may still do what it was asked for;" if asked else ""
        problem = f"its coordinator (process {pid}) is alive but does not answer: it is busy, or swapped out"
        return UserError(
            field="DIR", value=out, problem=problem, remedy=f"executors train on without it;{later} try again"
        )
    problem = "the job ended, or its coordinator is gone" if asked else "its coordinator is gone"
    if pid is None:
        problem = "its coordinator does not answer, and is not on this machine"
    remedy = f"start another one: isoscale resume {out}"
    if asked:
        remedy = f"see isoscale report {out}, or go on with isoscale resume {out}"
    elif pid is None:
        remedy = f"if it is gone, {remedy}"
    return UserError(field="DIR", value=out, problem=problem, remedy=remedy)


def _coordinator_here(out: Path) -> int | None:
    """The process that wrote down its address; 0 if it is gone, None if this machine cannot say."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        address = json.loads((out / "control" / ADDRESS_FILE).read_text())
        if address["machine"] != machine_id() or not address["born"]:
            return None
        return int(address["pid"]) if lives(int(address["pid"]), address["born"]) else 0
    return 0

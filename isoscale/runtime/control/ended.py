"""A job that has ended, read from its directory: how, when, with what result. Knows nothing of jobs that run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from isoscale.errors import UserError
from isoscale.protocol.files import read_small_json
from isoscale.protocol.status import JobState, JobStatus
from isoscale.runtime.control.executor_link import ADDRESS_FILE
from isoscale.runtime.control.home import EXIT_ELSEWHERE

__all__ = ["is_over", "over_error", "status_after", "status_of"]

#: by exit code
_STATES: dict[int, JobState] = {0: "finished", EXIT_ELSEWHERE: "finished", 130: "stopped", 143: "stopped"}


def status_after(directory: Path) -> JobStatus | None:
    """The keys of a status that still mean something, and how it ended. None: it runs, was killed, or is no run.

    A coordinator that ends takes its address away and leaves a summary; one that was killed does neither.
    """
    try:
        if (directory / "control" / ADDRESS_FILE).exists():
            return None
        summary = read_small_json(directory / "summary.json")
        return status_of(summary, str(directory / "final.pt"))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def status_of(summary: Any, result: str) -> JobStatus:
    """What a summary says; `result`: where the result is if it does not say that. Raises what damaged ones raise."""
    job = summary["job"]
    # One that was broken off leaves no error.
    unhappy: JobState = "failed" if summary["error"] else "interrupted"
    state = _STATES.get(summary["exit_code"], unhappy)
    found: JobStatus = {
        "job": Path(job["script"]).name,
        "state": state,
        "step": summary["step"],
        "loss": summary["loss"],
        "workers": job["workers"],
        "executors": [],
        "digest": summary["digest"],
        "stop_reason": summary["error" if state == "stopped" else "stop_reason"],
        "error": summary["error"] if state == "failed" else "",
        "seconds": summary["seconds"],
        "logged": dict(summary["logged"]),
    }
    # Summaries of earlier versions have none of these.
    if summary.get("began") and summary.get("ended"):
        found["began"], found["ended"] = float(summary["began"]), float(summary["ended"])
    if summary.get("command"):
        found["command"] = str(summary["command"])
    if state == "finished":
        found["result"] = str(summary.get("result") or result)
    return found


def is_over(directory: Path) -> UserError | None:
    """For whoever wants something of a job that has ended; None if it has not, as far as its directory tells."""
    status = status_after(directory)
    return None if status is None else over_error("DIR", str(directory), status)


def over_error(field: str, place: str, status: JobStatus) -> UserError:
    """`place`: by what the run is known, as `field`."""
    problem = f"the job has {status['state']} at step {status['step']}"
    remedy = f"isoscale resume {place} goes on with it"
    match status["state"]:
        case "finished":
            remedy = f"its result is {status['result']}; isoscale status {place} tells more"
        case "stopped":
            problem = f"the job was stopped at step {status['step']}"
        case "failed":
            problem += f" ({status['error']})"
            remedy = f"see isoscale report {place}; isoscale resume {place} tries again"
        case _:
            problem = f"the job was interrupted at step {status['step']}"
    return UserError(field=field, value=place, problem=problem, remedy=remedy)

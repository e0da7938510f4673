"""The status of a job that has ended, read from its directory. Knows nothing of jobs that run."""

from __future__ import annotations

from pathlib import Path

from isoscale.protocol.files import read_small_json
from isoscale.protocol.status import JobState, JobStatus
from isoscale.runtime.control.directory import control_directory
from isoscale.runtime.control.executor_link import ADDRESS_FILE
from isoscale.runtime.control.home import EXIT_ELSEWHERE

__all__ = ["status_after"]

#: by exit code
_STATES: dict[int, JobState] = {0: "finished", EXIT_ELSEWHERE: "finished", 130: "stopped", 143: "stopped"}


def status_after(directory: Path) -> JobStatus | None:
    """The keys of a status that still mean something, and how it ended. None: it runs, was killed, or is no run.

    A coordinator that ends takes its address away and leaves a summary; one that was killed does neither.
    """
    try:
        if (control_directory(directory) / ADDRESS_FILE).exists():
            return None
        summary = read_small_json(directory / "summary.json")
        job = summary["job"]
        # One that was broken off leaves no error.
        unhappy: JobState = "failed" if summary["error"] else "interrupted"
        state = _STATES.get(summary["exit_code"], unhappy)
        return {
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
        }
    except (OSError, ValueError, KeyError, TypeError):
        return None

"""One run's directory as the API sees a job: for a page without a service. Reads; asks the coordinator how it is.

The job is called "run". It belongs to whoever can read the directory; nothing here changes it.
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

from isoscale.cluster.auth import Caller, NotFoundError
from isoscale.cluster.values import JobRecord, JobShown, State, Submission, Why
from isoscale.errors import IsoscaleError, UserError
from isoscale.protocol.files import read_small_json
from isoscale.protocol.status import JobState, JobStatus
from isoscale.runtime.control.ended import status_after
from isoscale.runtime.control.job_handle import JobHandle

__all__ = ["RUN", "RunDesk"]

RUN = "run"
_LOG = "events.jsonl"
#: how long a coordinator may take to answer: the page asks again in a second
_ANSWER_S = 2.0
_STATES: dict[JobState, State] = {
    "starting": "starting",
    "training": "running",
    "rescaling": "resizing",
    "recovering": "resizing",
    "finished": "finished",
    "failed": "failed",
    "stopped": "paused",
    "interrupted": "paused",
}


class RunDesk:
    def __init__(self, directory: Path, ca_file: Path | None = None) -> None:
        """Raises UserError."""
        self._directory = directory.absolute()
        if not (self._directory / _LOG).is_file() and not (self._directory / "control").is_dir():
            problem = "is no run" if directory.is_dir() else "no such directory"
            raise UserError(field="DIR", value=directory, problem=problem, remedy="give the --out of isoscale run")
        self._ca_file = ca_file
        self._handle: JobHandle | None = None
        self._lock = threading.Lock()

    def close(self) -> None:
        with self._lock:
            self._forget()

    def directory(self, caller: Caller, job: str) -> Path:
        if job != RUN:
            raise NotFoundError(f"ID={job[:40]}: no such job; there is only {RUN}")
        return self._directory

    def record(self, caller: Caller, job: str) -> JobRecord:
        shown = self.job(caller, job)
        return JobRecord(
            id=RUN,
            number=1,
            submission=Submission(code="", workers=shown.workers),
            name=shown.name,
            tenant="",
            owner="",
            state=shown.state,
            step=shown.step,
            digest=shown.digest,
        )

    def job(self, caller: Caller, job: str) -> JobShown:
        directory = self.directory(caller, job)
        status = status_after(directory)
        live = None if status is not None else self._ask()
        told = status or live
        script, workers = self._recorded()
        state, why = _state(told, directory)
        began = told.get("began") if told else None
        return JobShown(
            id=RUN,
            name=(told["job"] if told else script) or directory.name,
            tenant="",
            owner="",
            state=state,
            wanted="run",
            priority=0,
            devices=(),
            executors=sum(one["logical_workers"] is not None for one in told["executors"]) if told else 0,
            workers=told["workers"] if told else workers,
            min_devices=1,
            max_devices=told["workers"] if told else workers,
            step=told["step"] if told else 0,
            total=told.get("total", 0) if told else 0,
            samples=None,
            submitted_s=began or self._begun(),
            started_s=began or self._begun(),
            ended_s=told.get("ended") if told else None,
            digest=told.get("digest", "") if told else "",
            error=told.get("error", "") if told else "",
            exit_code=None,
            script=script,
            why=Why(reason=state, text=why),
            loss=_number(told["loss"]) if told else None,
            steps_per_s=_number(told.get("steps_per_s")) if told else None,
            directory=str(directory),
        )

    def _ask(self) -> JobStatus | None:
        """The coordinator's own word; None if there is none, or it does not answer."""
        with self._lock:
            try:
                if self._handle is None:
                    self._handle = JobHandle(self._directory, ca_file=self._ca_file, answer_s=_ANSWER_S)
                return self._handle.status()
            except (IsoscaleError, OSError, TimeoutError):
                self._forget()
                return None

    def _forget(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.close()

    def _recorded(self) -> tuple[str, int]:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            spec = read_small_json(self._directory / "control" / "job.json")["spec"]
            return str(spec["script"] or spec["module"]), int(spec["workers"])
        return "", 1

    def _begun(self) -> float:
        for name in ("control/job.json", _LOG):
            with contextlib.suppress(OSError):
                return (self._directory / name).stat().st_mtime
        return 0.0


def _state(status: JobStatus | None, directory: Path) -> tuple[State, str]:
    go_on = f"isoscale resume {directory} goes on with it"
    if status is None:
        return "paused", f"no coordinator answers: it was killed, or has not started; {go_on}"
    state = _STATES[status["state"]]
    if state == "paused":
        reason = status.get("stop_reason") or status["state"]
        return state, f"{reason}; {go_on}"
    return state, status.get("pending") or ""


def _number(value: float | str | None) -> float | None:
    """A loss that is not finite comes as text."""
    return value if isinstance(value, float | int) else None

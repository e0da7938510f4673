"""What the state machine of a job tells its shell to do, in order. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from isoscale.errors import IsoscaleError, UserCodeError
from isoscale.protocol import messages as m

__all__ = [
    "Ask",
    "Done",
    "Emit",
    "Fail",
    "Instruction",
    "Kill",
    "ReportedError",
    "Restart",
    "Start",
    "Stop",
    "Tell",
    "error_of",
]


@dataclass(frozen=True, slots=True)
class Start:
    """Start a process for this executor."""

    executor: int
    kind: str


@dataclass(frozen=True, slots=True)
class Tell:
    """Send a message, unless the executor is gone."""

    executor: int
    message: m.FromCoordinator


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL, before anything else goes on: a woken zombie must find nobody to talk to."""

    executor: int
    reason: str


@dataclass(frozen=True, slots=True)
class Emit:
    """Write an event."""

    event: str
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Restart:
    """Nobody holds the job's state any more: find the newest checkpoint and call `Membership.begin`."""

    reason: str


@dataclass(frozen=True, slots=True)
class Ask:
    """Do as if a client had asked for it."""

    request: Literal["checkpoint", "stop"]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The result is on disk."""

    step: int
    digest: str
    stop_reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail:
    """End the job: kill what still runs and report the error."""

    error: IsoscaleError
    traceback: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """End the job because somebody wants that: what it is told, and its exit code."""

    told: str
    exit_code: int
    #: the step of the checkpoint that it goes on from, 0 for the beginning
    saved: int
    #: the service that runs it wants its devices: it goes on when it gets others
    paused: bool = False


Instruction = Start | Tell | Kill | Emit | Restart | Ask | Done | Fail | Stop


class ReportedError(IsoscaleError):
    """An isoscale error that an executor raised, as its one line and its exit code."""

    def __init__(self, summary: str, exit_code: int) -> None:
        super().__init__(summary)
        self.reported_exit_code = exit_code


def error_of(failed: m.Failed) -> IsoscaleError:
    """What an executor says it failed of: the script's fault if there is a traceback."""
    if failed.traceback:
        return UserCodeError(
            traceback_text=failed.traceback, logical_rank=failed.logical_rank, executor=failed.executor
        )
    return ReportedError(failed.summary, failed.exit_code)

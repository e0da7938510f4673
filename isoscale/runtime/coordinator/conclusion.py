"""How a job ended, in the words and codes of its result. Pure."""

from __future__ import annotations

from isoscale.runtime.control.home import EXIT_ELSEWHERE
from isoscale.runtime.coordinator.journal import RunResult
from isoscale.runtime.membership.instructions import Done, Emit, Fail, ReportedError, Stop

__all__ = ["conclude", "how_it_ended"]


def conclude(result: RunResult, outcome: Done | Fail | Stop, *, rescued: bool) -> Emit:
    """Fill in the result, and give the log's last event. `rescued`: the result is not where it should be."""
    match outcome:
        case Done():
            result.exit_code, result.digest, result.step = 0, outcome.digest, outcome.step
            result.stop_reason = outcome.stop_reason
            if rescued:
                result.exit_code = EXIT_ELSEWHERE
            return Emit("finished", {"step": outcome.step, "digest": outcome.digest})
        case Stop():
            result.exit_code, result.error, result.paused = outcome.exit_code, outcome.told, outcome.paused
            fields = {"step": result.step, "saved": outcome.saved, "error": result.error}
            return Emit("stopped", {**fields, "paused": True} if outcome.paused else fields)
    error = outcome.error
    result.exit_code = error.reported_exit_code if isinstance(error, ReportedError) else error.exit_code
    result.error, result.traceback = str(error), outcome.traceback
    return Emit("failed", {"step": result.step, "error": result.error})


def how_it_ended(result: RunResult) -> str:
    """For requests that are still open then."""
    if result.exit_code in (0, EXIT_ELSEWHERE):
        return f"the job finished at step {result.step}"
    return result.error or f"the job was interrupted at step {result.step}"

"""How a run ended, as its own directory tells it: that counts more than whether anybody lives."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isoscale.protocol.files import open_regular, read_small_json
from isoscale.runtime.control.home import EXIT_ELSEWHERE
from isoscale.scheduling.driving import RunOutcome

__all__ = ["INPUT", "LOST", "MACHINE", "SCRIPT", "Outcome", "forget_summary", "outcome_of"]

_BAD_INPUT = 2
#: of a coordinator that its service told to pause
_PAUSED = 75
#: of the end of its log, where its last answers are
_TAIL = 8192
#: of a text that goes into the database, an event and every answer
_MOST_CHARS = 8192
_GIVEN_UP = re.compile(r"([0-9]+(?:\.[0-9]+)?) s of the open step are given up")
#: classes of errors, by which it is decided whether another try can help
SCRIPT, INPUT, LOST, MACHINE = "script", "input", "lost", "machine"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    kind: RunOutcome
    step: int = 0
    #: read in committed steps; None if it did not say
    samples: int | None = None
    digest: str = ""
    error: str = ""
    #: script, input, lost or machine; "" if nothing went wrong
    error_class: str = ""
    exit_code: int | None = None
    #: work that was thrown away, in seconds of training
    abandoned_s: float = 0.0


def outcome_of(directory: Path, exit_code: int | None = None) -> Outcome:
    """Of a coordinator that is gone. `exit_code`: if anybody knows it.

    Without a summary it died: whoever ends by itself writes one (and `forget_summary` took away older ones).
    """
    summary = _summary(directory)
    if not summary and exit_code == _BAD_INPUT and (text := _last_words(directory)):
        # It could not begin. That another one runs it is no error of the job's.
        lost = "another coordinator" in text
        return Outcome(kind="died" if lost else "failed", error=text, error_class=LOST if lost else INPUT, exit_code=2)
    if not summary:
        return Outcome(kind="died", error=_died(exit_code), error_class=LOST, exit_code=exit_code)
    code, step = _whole(summary.get("exit_code"), 1), max(0, _whole(summary.get("step"), 0))
    digest, error = str(summary.get("digest") or "")[:_MOST_CHARS], str(summary.get("error") or "")[:_MOST_CHARS]
    if digest and code in (0, EXIT_ELSEWHERE):
        samples = _whole(summary.get("samples"), -1)
        return Outcome(
            kind="finished", step=step, samples=samples if samples >= 0 else None, digest=digest, exit_code=code
        )
    if code == _PAUSED:
        return Outcome(kind="paused", step=step, exit_code=code, abandoned_s=_abandoned_s(directory))
    failed_class = INPUT if code == _BAD_INPUT else SCRIPT
    text = error or f"its coordinator ended with exit code {code}"
    return Outcome(kind="failed", step=step, error=text, error_class=failed_class, exit_code=code)


def forget_summary(directory: Path) -> bool:
    """Before another coordinator starts: what its predecessor wrote. False if that was the job's result."""
    if outcome_of(directory).kind == "finished":
        return False
    with contextlib.suppress(OSError):
        (directory / "summary.json").unlink(missing_ok=True)
    return True


def _summary(directory: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        found = read_small_json(directory / "summary.json")
        return found if isinstance(found, dict) else {}
    return {}


def _whole(value: object, otherwise: int) -> int:
    """The file lies where the job's own code may write: whatever is in it must not stop whoever reads it."""
    return value if isinstance(value, int) and -(2**31) <= value < 2**53 else otherwise


def _last_words(directory: Path) -> str:
    """The error that a coordinator printed."""
    with contextlib.suppress(OSError), open_regular(directory / "coordinator.log") as file:
        file.seek(max(0, file.seek(0, 2) - _TAIL))
        found = [line for line in file.read().decode("utf-8", "replace").splitlines() if line.startswith("isoscale: ")]
        return found[-1].removeprefix("isoscale: ") if found else ""
    return ""


def _abandoned_s(directory: Path) -> float:
    """Seconds of an open step that were given up to be in time, as its last answer says."""
    with contextlib.suppress(OSError), open_regular(directory / "events.jsonl") as file:
        file.seek(max(0, file.seek(0, 2) - _TAIL))
        found = _GIVEN_UP.findall(file.read().decode("utf-8", "replace"))
        return float(found[-1]) if found else 0.0
    return 0.0


def _died(exit_code: int | None) -> str:
    how = "" if exit_code is None else f" ({exit_code})"
    return f"its coordinator died{how}"

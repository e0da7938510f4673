"""What `isoscale analyze` says of this STATE: made by that command in a process of its own, and kept until it is old.

The service does not import the analysis; it reads what the command prints.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from isoscale import env

__all__ = ["Study", "StudyShown", "StudyState"]

StudyState = Literal["none", "running", "ready", "failed"]

_MAX_SECONDS, _MAX_BYTES, _MAX_ANSWER = 300.0, 4 * 2**30, 64 * 2**20
_COMMAND = f"""
import os, resource
os.nice(10)
resource.setrlimit(resource.RLIMIT_AS, ({_MAX_BYTES}, {_MAX_BYTES}))
from isoscale.cli import main
main()
"""
#: jobs that the analysis simulates under other policies; the page has a what-if of its own
_SIMULATE = "0"


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyShown:
    """`result` is the document of `isoscale analyze --json`."""

    state: StudyState
    made_s: float | None = None
    seconds: float | None = None
    error: str = ""
    result: Any = None


class Study:
    """One at a time; the last good one stays while the next is made."""

    def __init__(self, state: Path, now: Callable[[], float]) -> None:
        self._state, self._now = state, now
        self._lock = threading.Lock()
        self._shown = StudyShown(state="none")
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closing = False

    @property
    def shown(self) -> StudyShown:
        return self._shown

    def begin(self) -> StudyShown:
        with self._lock:
            if self._shown.state != "running" and not self._is_closing:
                last = self._shown
                self._shown = StudyShown(state="running", made_s=last.made_s, seconds=last.seconds, result=last.result)
                threading.Thread(target=self._make, name="study", daemon=True).start()
            return self._shown

    def close(self) -> None:
        with self._lock:
            self._is_closing = True
            process = self._process
        if process is not None:
            process.kill()

    def _make(self) -> None:
        begun = time.monotonic()
        try:
            result, error = self._run()
        except (OSError, ValueError, RecursionError) as problem:
            result, error = None, str(problem)
        with self._lock:
            self._process = None
            last = self._shown
            seconds = round(time.monotonic() - begun, 3)
            if error:
                self._shown = StudyShown(
                    state="failed", error=error, made_s=last.made_s, seconds=last.seconds, result=last.result
                )
            else:
                self._shown = StudyShown(state="ready", made_s=self._now(), seconds=seconds, result=result)

    def _run(self) -> tuple[Any, str]:
        """The document, or what went wrong."""
        command = [sys.executable, "-c", _COMMAND, "analyze", str(self._state), "--json", "--simulate-jobs", _SIMULATE]
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as words:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=words,
                env=env.child_environment({}),
                start_new_session=True,
            )
            with self._lock:
                self._process = process
                if self._is_closing:
                    process.kill()
            try:
                code = process.wait(_MAX_SECONDS)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return None, f"took longer than {_MAX_SECONDS:.0f} s"
            if code:
                words.seek(max(0, words.seek(0, 2) - 2_000))
                said = words.read().decode("utf-8", "replace").strip()
                return None, said or f"isoscale analyze ended with {code}"
            if out.seek(0, 2) > _MAX_ANSWER:
                return None, "the analysis is too large to show"
            out.seek(0)
            return json.loads(out.read()), ""

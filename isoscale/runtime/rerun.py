"""The training half of a replay: all logical workers in this process, every loss held against the run's log.

Stops after the step asked for, or at the next place for which the log has a digest of the state; before the turn of a
logical worker it can stop in a debugger, in the frame of the script. Writes its verdict beside the request it was
started with (`runtime.replay`); what the script saves goes there too, never into the run's own directory.
"""

from __future__ import annotations

import bdb
import pdb
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import msgspec
import torch

from isoscale import env
from isoscale.core import determinism
from isoscale.core.exchange import LocalExchange
from isoscale.core.totals import Combined
from isoscale.runtime.execute import code_of, execute
from isoscale.runtime.job import Job, Value, step_loss
from isoscale.runtime.replay import Compared, Request, RunLog, Verdict, compare_loss, read_log, replayed_spec

__all__ = ["run_replay"]

_LINE_EVERY_S = 1.0
_LIBRARIES = (str(Path(__file__).resolve().parent.parent), str(Path(torch.__file__).parent))


class _Arrived(BaseException):
    """Leaves the training function once there is nothing more to compare; not an Exception, so scripts let it pass."""


def run_replay(train: Callable[[Job], Any]) -> NoReturn:
    """Called by `isoscale.run` in the process that `isoscale replay` started. Ends the process."""
    path = env.replay()
    assert path is not None
    request = msgspec.json.decode(path.read_bytes(), type=Request)
    log = read_log(Path(request.directory))
    spec = replayed_spec(log, path.parent)
    determinism.apply(spec.determinism, spec.threads, spec.profile)
    replayer = _Replayer(log, request)
    job = Job(spec, LocalExchange(spec.workers), replayer, train_code=code_of(train))
    job._attach(replayer)
    replayer.state_digest = job._state.digest
    code, stopped = 0, ""
    try:
        execute(job, train)
    except _Arrived:
        pass
    except bdb.BdbQuit:
        stopped = "debugger"
    except KeyboardInterrupt:
        code, stopped = 130, "interrupted"
    except BaseException as error:
        traceback.print_exception(error)
        code, stopped = 1, traceback.format_exception_only(error)[-1].strip()
    (path.parent / "verdict.json").write_bytes(msgspec.json.encode(replayer.verdict(stopped)))
    sys.exit(code)


class _Replayer:
    """The job's sink, which compares, and its probe, which stops."""

    def __init__(self, log: RunLog, request: Request) -> None:
        self._log = log
        self._request = request
        self._loss = ""
        self._difference: Compared | None = None
        self._digest: Compared | None = None
        self._values: dict[str, str] = {}
        self._step = 0
        self._printed_at = 0.0
        self.state_digest: Callable[[], str] = str

    def verdict(self, stopped: str) -> Verdict:
        return Verdict(
            step=self._step,
            loss=self._loss,
            first_difference=self._difference,
            digest=self._digest,
            values=self._values,
            stopped=stopped,
        )

    # ---- sink ----

    def step(self, *, step: int, epoch: int, values: Combined, seconds: float, samples: int, total: int) -> None:
        self._step, loss = step, step_loss(values)
        self._loss = repr(loss)
        difference = compare_loss(step, loss, self._log.losses.get(step))
        if difference is not None and self._difference is None:
            self._difference = difference
            self._print(f"step {step}: loss {difference.replayed}, but the log has {difference.logged}")
        if step == self._request.step and self._request.logical_rank is not None:
            by_name = {name: by_rank.get(self._request.logical_rank) for name, by_rank in values.by_rank.items()}
            self._values = {name: repr(value) for name, value in by_name.items() if value is not None}
        if time.monotonic() - self._printed_at >= _LINE_EVERY_S or step == self._request.step:
            verdict = "equal so far" if self._difference is None else f"differs since {self._difference.step}"
            self._print(f"step {step}/{self._request.step}  epoch {epoch}  loss {self._loss}  {verdict}")

    def logged(self, *, step: int, epoch: int, values: dict[str, Value]) -> None:
        pass

    def audited(self, *, step: int, digest: str) -> None:
        pass

    # ---- probe ----

    def before_step(self, step: int) -> None:
        if step == self._request.step + 1:
            self._compare_digest(self._log.audits.get(self._request.step))
            raise _Arrived

    def turn_begins(self, logical_rank: int, batch: Any) -> None:
        if (self._step + 1, logical_rank) != (self._request.step, self._request.logical_rank):
            return
        if env.has_breakpoint_hook():
            breakpoint()
        elif sys.stdin.isatty():
            self._print(f"before the turn of logical worker {logical_rank} in step {self._request.step}")
            # Nothing may be called after this: the next line that runs is the script's.
            pdb.Pdb(skip=["isoscale.*"]).set_trace(_script_frame())

    def turn_ends(self, logical_rank: int) -> None:
        pass

    def reduced(self, step: int) -> None:
        pass

    def after_step(self, step: int) -> None:
        finished = self._log.finished is not None and self._log.finished[0] == step
        if step == self._request.step and step not in self._log.audits and not finished:
            raise _Arrived

    def ended(self, step: int) -> None:
        if self._log.finished is not None and self._log.finished[0] == step == self._request.step:
            self._compare_digest(self._log.finished[1])

    def _compare_digest(self, logged: str | None) -> None:
        if logged is not None:
            self._digest = Compared(step=self._request.step, replayed=self.state_digest(), logged=logged)

    def _print(self, line: str) -> None:
        self._printed_at = time.monotonic()
        print(f"replay  {line}", flush=True)


def _script_frame() -> FrameType | None:
    """The innermost frame that is neither isoscale's nor torch's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
        frame = frame.f_back
    return frame

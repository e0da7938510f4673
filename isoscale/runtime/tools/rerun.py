"""The training half of a replay: all logical workers in this process, every loss held against the run's log.

Begins at the beginning, or where a checkpoint was taken: the script runs from the top to that place, to no effect, and
there gets the saved state, as in a job that is resumed. Stops after the step asked for, or at the next place for which
the run left a digest of the state; before the turn of a logical worker it can stop in a debugger, in the frame of the
script. Writes its verdict beside the request it was started with (`runtime.tools.replay`); what the script saves goes
there too, never into the run's own directory.
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
from typing import NoReturn, cast

import msgspec
import torch

from isoscale import env
from isoscale.core.encoding.digest import digest
from isoscale.core.numerics import determinism
from isoscale.core.reduction.exchange import LocalExchange
from isoscale.core.seal import Sealed
from isoscale.core.totals import Combined
from isoscale.runtime.checkpoint import state_file
from isoscale.runtime.tools.replay import Compared, ReplayResult, Request, RunLog, compare_loss, read_log, replayed_spec
from isoscale.runtime.training.batches import Rebatched, Wish
from isoscale.runtime.training.execute import code_of, execute
from isoscale.runtime.training.job import Job
from isoscale.runtime.training.loader import Loader, Place
from isoscale.runtime.training.loop import TrainingLoop
from isoscale.runtime.training.sink import Value, step_loss
from isoscale.runtime.training.snapshot import epoch_of, is_place_of, load_snapshot, models_of, position_of
from isoscale.runtime.training.state import Tree

__all__ = ["run_replay"]

_LINE_EVERY_S = 1.0
_LIBRARIES = (str(Path(__file__).resolve().parent.parent), str(Path(torch.__file__).parent))


class _Arrived(BaseException):
    """Leaves the training function once there is nothing more to compare; not an Exception, so scripts let it pass."""


def run_replay(train: Callable[[Job], object]) -> NoReturn:
    """Called by `isoscale.run` in the process that `isoscale replay` started. Ends the process."""
    path = env.replay()
    assert path is not None
    request = msgspec.json.decode(path.read_bytes(), type=Request)
    log = read_log(Path(request.directory))
    spec = replayed_spec(log, path.parent)
    determinism.apply(spec.determinism, spec.threads, spec.profile)
    replayer = _Replayer(log, request)
    loop = TrainingLoop(spec, LocalExchange(spec.workers), replayer, train_code=code_of(train))
    replayer.take_charge(loop)
    loop.main_objects.enabled = False
    code, stopped = 0, ""
    try:
        execute(loop, train)
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
    """The job's sink, which compares, its probe, which stops, and who brings it to the place where it begins."""

    def __init__(self, log: RunLog, request: Request) -> None:
        self._log = log
        self._request = request
        self._loss = ""
        self._difference: Compared | None = None
        self._digest: Compared | None = None
        self._values: dict[str, str] = {}
        self._step = request.start
        self._num_compared = 0
        self._staged = state_file.read(Path(request.checkpoint)) if request.checkpoint else None
        self._printed_at = 0.0
        self._loop: TrainingLoop | None = None

    def take_charge(self, loop: TrainingLoop) -> None:
        """Of a loop whose sink this is. On its way to a checkpoint's place it does everything to no effect."""
        self._loop, loop.elastic = loop, self
        loop.attach(self)
        loop.approaching = self._staged is not None

    def verdict(self, stopped: str) -> ReplayResult:
        return ReplayResult(
            step=self._step,
            num_compared=self._num_compared,
            loss=self._loss,
            first_difference=self._difference,
            digest=self._digest,
            values=self._values,
            stopped=stopped,
        )

    # ---- sink ----

    def step(
        self,
        *,
        step: int,
        epoch: int,
        values: Combined,
        seconds: float,
        samples: int,
        total: int,
        place: Place,
        noise_scale: float | None = None,
        noise_skipped: int = 0,
    ) -> None:
        self._step, loss = step, step_loss(values)
        self._loss = repr(loss)
        difference = None
        if step in self._log.losses:
            difference = compare_loss(step, loss, self._log.losses[step])
            self._num_compared += 1
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

    def streamed(self, *, event: str, stream: str, step: int, fields: dict[str, object]) -> None:
        pass

    def rebatched(self, change: Rebatched, /) -> None:
        pass

    def warned(self, *, message: str) -> None:
        self._print(message)

    # ---- arrival ----

    def hold(self, loop: TrainingLoop) -> int | None:
        return epoch_of(self._staged) if self._staged is not None else None

    def arrive(self, loop: TrainingLoop, loader: Loader) -> None:
        if self._staged is not None:
            if not is_place_of(self._staged, loader):
                loader.end_pass()
                return
            load_snapshot(loop, loader, self._staged)
            self._staged, loop.approaching = None, False
        if loop.step == self._request.step and self._request.saved:
            self._compare_saved(loop, loader)

    def ready(self, loop: TrainingLoop) -> bool:
        return False

    def wish(self, loop: TrainingLoop) -> Wish | None:
        return None

    def sealed(self, loop: TrainingLoop, sealed: Sealed) -> None:
        pass

    def _compare_saved(self, loop: TrainingLoop, loader: Loader) -> None:
        """With the checkpoint of this very place: at the end of an epoch there are two with the same step."""
        saved = state_file.read(Path(self._request.saved))
        if not is_place_of(saved, loader) or position_of(saved)["index"] != loader.index:
            return
        optimizers = [n for n, thing in loop.state.kept.items() if isinstance(thing, torch.optim.Optimizer)]
        self._compare_digest(digest(models_of(saved, "model"), {n: cast("Tree", saved[n]) for n in optimizers}))
        if not self._goes_on():
            raise _Arrived

    # ---- probe ----

    def before_step(self, step: int) -> None:
        if step == self._request.step + 1:
            self._compare_digest(self._log.audits.get(self._request.step))
            raise _Arrived

    def _goes_on(self) -> bool:
        """Will there be a digest of the state after the step, by an audit or at the end?"""
        step = self._request.step
        return step in self._log.audits or (self._log.finished is not None and self._log.finished[0] == step)

    def turn_begins(self, logical_rank: int, batch: object) -> None:
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
        if step == self._request.step and not self._request.saved and not self._goes_on():
            raise _Arrived

    def ended(self, step: int) -> None:
        if self._log.finished is not None and self._log.finished[0] == step == self._request.step:
            self._compare_digest(self._log.finished[1])

    def _compare_digest(self, logged: str | None) -> None:
        """One that differs stays, whatever comes after it."""
        differs = self._digest is not None and self._digest.replayed != self._digest.logged
        assert self._loop is not None
        if logged is not None and not differs:
            self._digest = Compared(step=self._request.step, replayed=self._loop.state.digest(), logged=logged)

    def _print(self, line: str) -> None:
        self._printed_at = time.monotonic()
        print(f"replay  {line}", flush=True)


def _script_frame() -> FrameType | None:
    """The innermost frame that is neither isoscale's nor torch's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
        frame = frame.f_back
    return frame

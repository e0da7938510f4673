"""All devices of the job are wanted back before the open step ends: its last sealed state, written beside the step.

The training thread may be in the middle of a kernel that lasts for seconds, and cannot be asked for anything. So
another thread copies the whole process (`fork`): in the copy nothing moves, the step is undone as after the loss of an
executor (`StepEngine.rewind`), and the state is written. The step itself goes on until the job is ended, for nothing.

A copy holds whatever lock another thread had at that moment, and may wait for it for ever: it gets a time, and is
made again. On a busy machine a copy may need longer than that to come to anything, so each one gets twice the time. A
job on CUDA devices cannot be copied so; there the newest checkpoint counts.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import asdict

import msgspec
import torch

from isoscale.runtime.checkpoint.files import Written
from isoscale.runtime.executor.checkpoint_writer import CheckpointWriter
from isoscale.runtime.training.loader import Loader
from isoscale.runtime.training.loop import TrainingLoop
from isoscale.runtime.training.snapshot import take_snapshot

__all__ = ["Abandonment"]

#: how often it is looked whether a step is open; how long the first copy may take before its first word
_LOOK_S, _STUCK_S = 0.005, 0.5
#: a copy that has begun to write may take as long as this; the coordinator ends the job sooner
_WRITE_S = 600.0


class Abandonment:
    def __init__(self, generation: Callable[[], int], writer: Callable[[], CheckpointWriter]) -> None:
        self.loop: TrainingLoop | None = None
        self._generation = generation
        self._writer = writer
        self._begun: set[int] = set()

    def begin(self, request: int) -> None:
        """Write the last sealed state as soon as a step is open. From any thread; once for a request."""
        if request not in self._begun:
            self._begun.add(request)
            threading.Thread(target=self._work, name="abandon", daemon=True).start()

    def _work(self) -> None:
        """Between steps there is nothing to give up: the training thread is about to write it all itself."""
        stuck_s = _STUCK_S
        while True:
            begun = time.monotonic()
            written = self._try_copy(stuck_s)
            if written is not None:
                self._writer().tell_final(written, self._generation())
                return
            if time.monotonic() - begun >= stuck_s:
                stuck_s *= 2
            time.sleep(_LOOK_S)

    def _try_copy(self, stuck_s: float) -> Written | None:
        loop = self.loop
        if loop is None or torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            return None
        generation = self._generation()  # which takes a lock that somebody else may have in the copy
        reader, writer = os.pipe()
        with loop.engine.opening:
            loader = next((one for one in loop.training_loaders.values() if one.is_open), None)
            if not loop.engine.is_open or loader is None or not loop.engine.contexts.can_rewind:
                os.close(reader)
                os.close(writer)
                return None
            copy = os.fork()
            if copy == 0:
                self._write_and_exit(loop, loader, generation, writer)
        os.close(writer)
        try:
            return _answer(reader, stuck_s)
        finally:
            os.close(reader)
            with contextlib.suppress(OSError):
                os.kill(copy, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(copy, 0)

    def _write_and_exit(self, loop: TrainingLoop, loader: Loader, generation: int, pipe: int) -> None:
        """In the copy, where this is the only thread."""
        try:
            engine = loop.engine
            engine.turn.logical_rank = None
            engine.turn.accumulating = False
            engine.rewind()
            snapshot = take_snapshot(loop, loader, copy=False)
            os.write(pipe, b"\n")
            written = self._writer().store(snapshot, loop.step, generation)
            os.write(pipe, msgspec.json.encode(asdict(written)))
            os._exit(0)
        except BaseException:
            os._exit(1)


def _answer(pipe: int, stuck_s: float) -> Written | None:
    """What the copy has written; None if it is stuck, or could not."""
    said, limit_s = b"", stuck_s
    while select.select([pipe], [], [], limit_s)[0]:
        piece = os.read(pipe, 65536)
        if not piece:
            break
        said, limit_s = said + piece, _WRITE_S
    with contextlib.suppress(msgspec.DecodeError, TypeError, ValueError):
        return Written(**msgspec.json.decode(said.strip())) if said.strip() else None
    return None

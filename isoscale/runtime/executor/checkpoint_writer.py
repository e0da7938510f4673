"""When an executor writes a checkpoint, and how training goes on beside it.

At `next()` of a training loader the first executor copies the state, which is all that training waits for; a
thread of low priority writes it. The coordinator, who knows which generation counts, gives it its name
(`runtime.checkpoint.files`). A final one is written before anything else happens: the job ends at it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from isoscale.core.encoding import codec
from isoscale.errors import CheckpointError
from isoscale.protocol import messages as m
from isoscale.runtime.checkpoint import files as checkpoint
from isoscale.runtime.training.loader import Loader
from isoscale.runtime.training.loop import TrainingLoop
from isoscale.runtime.training.snapshot import take_snapshot

__all__ = ["CheckpointWriter"]

_NICE = 10
#: a wish for a checkpoint is repeated every second; one that is not has been fulfilled, given up or forgotten
_WISH_S = 5.0


@dataclass(frozen=True, slots=True)
class _Wish:
    id: int
    final: bool
    heard_at: float


class CheckpointWriter:
    def __init__(
        self,
        directory: Callable[[], Path],
        identity: checkpoint.Identity,
        tag: str,
        every: int,
        send: Callable[[m.FromExecutor], None],
        hand_over: Callable[[Path, checkpoint.Written], None] | None = None,
    ) -> None:
        """`hand_over`: the directory is this machine's alone, and what was written there is brought elsewhere."""
        self._directory = directory
        self._identity = identity
        self._tag = tag
        self._every = every
        self._send = send
        self._hand_over = hand_over
        self._wish: _Wish | None = None
        #: the last request for which there was an outcome
        self._answered = -1
        self._last_step = -1
        self._thread: threading.Thread | None = None
        self._memory: torch.Tensor | None = None

    def ask(self, request: int, *, final: bool = False) -> None:
        """A checkpoint is wanted at the next place for one; a final one is waited at. From any thread."""
        self._wish = _Wish(request, final, time.monotonic())

    def wants(self, loop: TrainingLoop) -> bool:
        """Would `arrive` write one that was asked for?"""
        return loop.is_main and self._heard() is not None and not self._is_writing()

    def arrive(self, loop: TrainingLoop, loader: Loader, generation: int) -> bool:
        """At a place for a checkpoint. True if a final one was written: the job is to end here."""
        if not loop.is_main:
            return False
        due = self._every > 0 and loop.step > 0 and loop.step % self._every == 0 and loop.step != self._last_step
        wish = self._heard()
        if not due and wish is None:
            return False
        if wish is not None and wish.final:
            return self._write_final(loop, loader, generation, wish)
        if self._is_writing():
            if due:
                self._send(m.Warned(message=f"no checkpoint at step {loop.step}: the last one is still being written"))
            return False
        self._answered = self._answered if wish is None else wish.id
        self._begin(loop, loader, generation)
        return False

    def last(self, loop: TrainingLoop, loader: Loader, generation: int) -> None:
        """At the last place for a checkpoint before the end: from there the job can train on, if somebody wants that.
        Always at the command line's limit of steps; at another end if there are checkpoints at all."""
        if not loop.is_main or not loop.step or loop.step == self._last_step:
            return
        if self._every or (loop.spec.until and loop.step >= loop.spec.until):
            self.finish()
            self._begin(loop, loader, generation)

    def has(self, step: int) -> None:
        """There is a checkpoint of this step: the job goes on from it."""
        self._last_step = step

    def _begin(self, loop: TrainingLoop, loader: Loader, generation: int) -> None:
        begun = time.perf_counter()
        block = codec.pack(take_snapshot(loop, loader, copy=False), into=self._memory)
        blocked = time.perf_counter() - begun
        # Kept for the next one: asking the system for fresh pages costs more than the copy.
        self._memory = block if self._memory is None or block.numel() > self._memory.numel() else self._memory
        snapshot = codec.unpack(block, copy=False)
        self._last_step = loop.step
        self._thread = threading.Thread(
            target=self._write, args=(snapshot, loop.step, generation, blocked), name="checkpoint", daemon=True
        )
        self._thread.start()

    def silent_for(self) -> float:
        """Seconds since somebody last wanted one."""
        return time.monotonic() - self._wish.heard_at if self._wish is not None else float("inf")

    def _heard(self) -> _Wish | None:
        """What is wanted and was not answered yet."""
        wish = self._wish
        return wish if wish is not None and wish.id != self._answered and self.silent_for() < _WISH_S else None

    def _is_writing(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _write_final(self, loop: TrainingLoop, loader: Loader, generation: int, wish: _Wish) -> bool:
        self.finish()
        # All processes are ended as soon as the checkpoint is there. If they are not, it is made anew.
        loop.main_objects.close()
        self._answered, self._last_step = wish.id, loop.step
        return self._write(take_snapshot(loop, loader, copy=False), loop.step, generation, 0.0, final=True)

    def write_now(self, loop: TrainingLoop, loader: Loader, generation: int) -> None:
        """After a crash of the script, with the state as the step found it."""
        self.finish()
        if loop.step != self._last_step:
            self._write(take_snapshot(loop, loader, copy=False), loop.step, generation, 0.0)

    def store(self, snapshot: dict[str, Any], step: int, generation: int) -> checkpoint.Written:
        """Write it and nothing else, in a copy of this process, which talks to nobody. Raises CheckpointError."""
        tag = f"{self._tag}-{generation}-abandoned"
        return checkpoint.write(self._place(), snapshot, step=step, identity=self._identity, tag=tag)

    def tell_final(self, written: checkpoint.Written, generation: int) -> None:
        """A final one is whole on the disk, though the training thread knows nothing of it."""
        self._send(
            m.CheckpointWritten(
                generation=generation,
                step=written.step,
                written=asdict(written),
                blocked_s=0.0,
                seconds=round(written.seconds, 6),
                final=True,
            )
        )

    def finish(self) -> None:
        """Wait for what is being written."""
        if self._thread is not None:
            self._thread.join()

    def _place(self) -> Path:
        try:
            return self._directory()
        except OSError as error:
            remedy = "make room for a directory beside --out"
            problem = f"there is no place for it ({error.strerror})"
            raise CheckpointError(path="checkpoint", problem=problem, remedy=remedy) from error

    def _write(
        self, snapshot: dict[str, Any], step: int, generation: int, blocked: float, *, final: bool = False
    ) -> bool:
        """False if it could not be written, of which the coordinator is told."""
        if threading.current_thread() is self._thread:
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        try:
            place = self._place()
            written = checkpoint.write(
                place, snapshot, step=step, identity=self._identity, tag=f"{self._tag}-{generation}"
            )
            if self._hand_over is not None:
                self._hand_over(place, written)
        except CheckpointError as error:
            self._last_step = -1
            self._send(m.CheckpointFailed(step=step, reason=str(error)))
            return False
        self._send(
            m.CheckpointWritten(
                generation=generation,
                step=step,
                written=asdict(written),
                blocked_s=round(blocked, 6),
                seconds=round(written.seconds, 6),
                final=final,
            )
        )
        return True

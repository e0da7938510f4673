"""When an executor writes a checkpoint, and how training goes on beside it.

At `next()` of a training loader the first executor copies the state, which is all that training waits for; a
thread of low priority writes it. The coordinator, who knows which generation counts, gives it its name
(`runtime.checkpoint`).
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from isoscale.core import codec
from isoscale.errors import CheckpointError
from isoscale.protocol import messages as m
from isoscale.runtime import checkpoint
from isoscale.runtime.job import Job
from isoscale.runtime.loader import Loader
from isoscale.runtime.snapshot import take_snapshot

__all__ = ["CheckpointWriter"]

_NICE = 10


class CheckpointWriter:
    def __init__(
        self,
        directory: Callable[[], Path],
        identity: checkpoint.Identity,
        tag: str,
        every: int,
        send: Callable[[m.FromExecutor], None],
    ) -> None:
        self._directory = directory
        self._identity = identity
        self._tag = tag
        self._every = every
        self._send = send
        self._asked = False
        self._last_step = -1
        self._thread: threading.Thread | None = None
        self._memory: torch.Tensor | None = None

    def ask(self) -> None:
        """A checkpoint is wanted at the next place for one. From any thread."""
        self._asked = True

    def arrive(self, job: Job, loader: Loader, generation: int) -> None:
        if not job.is_main or job.step == self._last_step:
            return
        due = self._every > 0 and job.step > 0 and job.step % self._every == 0
        if not due and not self._asked:
            return
        if self._thread is not None and self._thread.is_alive():
            if due:
                self._send(m.Warned(message=f"no checkpoint at step {job.step}: the last one is still being written"))
            return
        begun = time.perf_counter()
        block = codec.pack(take_snapshot(job, loader, copy=False), into=self._memory)
        blocked = time.perf_counter() - begun
        # Kept for the next one: asking the system for fresh pages costs more than the copy.
        self._memory = block if self._memory is None or block.numel() > self._memory.numel() else self._memory
        snapshot = codec.unpack(block, copy=False)
        self._asked, self._last_step = False, job.step
        self._thread = threading.Thread(
            target=self._write, args=(snapshot, job.step, generation, blocked), name="checkpoint", daemon=True
        )
        self._thread.start()

    def write_now(self, job: Job, loader: Loader, generation: int) -> None:
        """After a crash of the script, with the state as the step found it."""
        self.finish()
        if job.step != self._last_step:
            self._write(take_snapshot(job, loader, copy=False), job.step, generation, 0.0)

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

    def _write(self, snapshot: dict[str, Any], step: int, generation: int, blocked: float) -> None:
        if threading.current_thread() is self._thread:
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        try:
            written = checkpoint.write(
                self._place(), snapshot, step=step, identity=self._identity, tag=f"{self._tag}-{generation}"
            )
        except CheckpointError as error:
            self._send(m.Warned(message=str(error)))
            return
        self._send(
            m.CheckpointWritten(
                generation=generation,
                step=step,
                written=asdict(written),
                blocked_s=round(blocked, 6),
                seconds=round(written.seconds, 6),
            )
        )

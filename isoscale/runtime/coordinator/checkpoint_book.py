"""The checkpoints of a job as its coordinator sees them: which is the newest, and which of those written count.

Only a coordinator gives checkpoints their names, so that no executor that was left behind can. What is in them is
`runtime.checkpoint.files`'s affair.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from isoscale.errors import CheckpointError, UserError
from isoscale.protocol import messages as m
from isoscale.runtime.checkpoint import files as checkpoint
from isoscale.runtime.checkpoint.manifest import Broken, steps_in, whole
from isoscale.types import JobSpec

__all__ = ["CheckpointBook"]


class CheckpointBook:
    def __init__(self, spec: JobSpec, keep: int, home: Callable[[], Path], warn: Callable[[str], None]) -> None:
        """`keep`: how many stay. `home`: the run's directory. `warn` is told of whatever cannot be used or done."""
        self._spec = spec
        self._keep = keep
        self._warn = warn
        self._home = home
        #: step and time of the last one that this coordinator has published
        self.last: tuple[int, float] | None = None
        #: the step that the job would go on from; 0 is the beginning
        self.saved = self._newest_step()

    def newest(self, *, required: bool) -> tuple[str, int]:
        """Path and step of the newest whole one that fits the job; ("", 0) if there is none, or UserError."""
        directory = self._home() / "checkpoints"
        with contextlib.suppress(OSError):
            checkpoint.clean_temporaries(directory)  # of those who died while they wrote
        found = checkpoint.newest(directory, self._warn) if directory.is_dir() else None
        if found is None:
            if required:
                raise UserError(
                    field="--resume",
                    value=self._spec.out,
                    problem="no whole checkpoint is left",
                    remedy="start anew in another directory",
                )
            self.saved = 0
            return "", 0
        self.saved = found.step
        for warning in checkpoint.check_identity(found.identity, checkpoint.Identity.of(self._spec)):
            self._warn(warning)
        return str(found.path.resolve()), found.step

    def publish(self, message: m.CheckpointWritten, now: float) -> dict[str, Any] | str:
        """Give one that was written its name: the fields of the event, or why it does not count."""
        try:
            written = checkpoint.Written(**message.written)
            path = checkpoint.publish(self._home() / "checkpoints", written, self._keep)
        except (CheckpointError, OSError, ValueError, TypeError) as error:
            self._warn(str(error))
            return str(error)
        self.last = (message.step, now)
        self.saved = max(self.saved, message.step)
        return {
            "step": message.step,
            "path": f"checkpoints/{path.name}",
            "seconds": message.seconds,
            "blocked_s": message.blocked_s,
        }

    def _newest_step(self) -> int:
        """Of what an earlier coordinator has published. Digests are compared when one is needed."""
        with contextlib.suppress(OSError):
            directory = self._home() / "checkpoints"
            for step in steps_in(directory):
                with contextlib.suppress(Broken):
                    return whole(directory, step, hashed=False).step
        return 0

    def last_with_age(self, now: float) -> tuple[int, float] | None:
        return None if self.last is None else (self.last[0], now - self.last[1])

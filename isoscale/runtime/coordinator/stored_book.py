"""The checkpoints of a job in its storage, as `checkpoint_book` has those of a directory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from isoscale.errors import CheckpointError, UserError
from isoscale.protocol import messages as m
from isoscale.runtime.checkpoint.files import Identity, Written, check_identity
from isoscale.runtime.coordinator.mirror import Mirror
from isoscale.types import JobSpec

__all__ = ["StoredBook"]


class StoredBook:
    def __init__(self, spec: JobSpec, mirror: Mirror, warn: Callable[[str], None]) -> None:
        self._spec = spec
        self._mirror = mirror
        self._warn = warn
        #: step and time of the last one that this coordinator has published
        self.last: tuple[int, float] | None = None
        #: the step that the job would go on from; 0 is the beginning
        self.saved = mirror.checkpoints.newest_step

    def newest(self, *, required: bool) -> tuple[str, int]:
        """For executors, and its step; ("", 0) if there is none, or UserError. Waits for the storage."""
        return self._choose(self._mirror.checkpoints.newest(self._warn, hashed=False), required=required)

    async def newest_checked(self, *, required: bool) -> tuple[str, int]:
        """As `newest`, and all of it has been read and compared. Beside the event loop: it may be large."""
        warnings: list[str] = []
        try:
            found = await self._mirror.call(lambda: self._mirror.checkpoints.newest(warnings.append, hashed=True))
        except OSError as error:  # to begin again from nothing would throw away what is there
            problem = f"its checkpoints cannot be read ({error.strerror or error})"
            remedy = "check address and credentials, then try again"
            raise UserError(field="storage", value=self._mirror.url, problem=problem, remedy=remedy) from None
        for warning in warnings:
            self._warn(warning)
        return self._choose(found, required=required)

    def _choose(self, found: Any, *, required: bool) -> tuple[str, int]:
        if found is None:
            if required:
                problem, remedy = "no whole checkpoint is left", "start anew in another storage"
                raise UserError(field="storage", value=self._mirror.url, problem=problem, remedy=remedy)
            self.saved = 0
            return "", 0
        reference, one = found
        self.saved = one.step
        for warning in check_identity(one.identity, Identity.of(self._spec)):
            self._warn(warning)
        return reference, one.step

    def publish(self, message: m.CheckpointWritten, now: float) -> dict[str, Any] | str:
        """In the thread that talks to the storage: the fields of the event, or why it does not count."""
        try:
            self._mirror.keep_events()
            key = self._mirror.checkpoints.publish(Written(**message.written))
        except (CheckpointError, OSError, ValueError, TypeError) as error:
            return str(error)
        self.last = (message.step, now)
        self.saved = max(self.saved, message.step)
        return {"step": message.step, "path": key, "seconds": message.seconds, "blocked_s": message.blocked_s}

    def last_with_age(self, now: float) -> tuple[int, float] | None:
        return None if self.last is None else (self.last[0], now - self.last[1])

"""The checkpoints of a job, in its directory or in its storage: which one it goes on from, and names for new ones."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from isoscale.clock import Clock
from isoscale.protocol import messages as m
from isoscale.runtime.coordinator.checkpoint_book import CheckpointBook
from isoscale.runtime.coordinator.mirror import Mirror
from isoscale.runtime.coordinator.stored_book import StoredBook
from isoscale.types import JobSpec

__all__ = ["Checkpoints", "Published"]

#: fields of the event, or why a checkpoint does not count
Published = dict[str, Any] | str


class Checkpoints:
    def __init__(
        self,
        book: CheckpointBook,
        clock: Clock,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        warn: Callable[[str], None],
    ) -> None:
        self._book: CheckpointBook | StoredBook = book
        #: where machines share no disk
        self._mirror: Mirror | None = None
        self._clock = clock
        self._spawn = spawn
        self._warn = warn
        #: what the last one took to write
        self.write_s = 0.0

    def use(self, mirror: Mirror, spec: JobSpec) -> None:
        """From now on they are in a storage."""
        self._mirror, self._book = mirror, StoredBook(spec, mirror, self._warn)

    @property
    def saved(self) -> int:
        """The step that the job would go on from; 0 is the beginning."""
        return self._book.saved

    def newest(self) -> tuple[str, int]:
        """Where it is, and its step; ("", 0) if there is none."""
        return self._book.newest(required=False)

    async def newest_checked(self, *, required: bool) -> tuple[str, int]:
        """As `newest`, and all of it has been read and compared. Raises UserError if it is `required` and missing."""
        if isinstance(self._book, StoredBook):
            return await self._book.newest_checked(required=required)
        return self._book.newest(required=required)

    def last_with_age(self) -> tuple[int, float] | None:
        return self._book.last_with_age(self._clock.monotonic())

    def publish(self, message: m.CheckpointWritten, then: Callable[[Published], None]) -> None:
        """Give one that was written its name; `then` hears of it, later where a storage has to be asked."""
        now = self._clock.monotonic()
        if self._mirror is None:
            self._told(message, self._book.publish(message, now), then)
        else:
            self._spawn(self._publish_stored(self._mirror, message, now, then))

    async def _publish_stored(
        self, mirror: Mirror, message: m.CheckpointWritten, now: float, then: Callable[[Published], None]
    ) -> None:
        published = await mirror.call(lambda: self._book.publish(message, now))
        if isinstance(published, str):
            self._warn(published)
        self._told(message, published, then)

    def _told(self, message: m.CheckpointWritten, published: Published, then: Callable[[Published], None]) -> None:
        if not isinstance(published, str):
            self.write_s = message.seconds
        then(published)

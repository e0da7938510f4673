"""The end of a job: who has come to it, who writes the result, and whether that is done. Pure bookkeeping."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from isoscale.protocol import messages as m
from isoscale.runtime.membership.instructions import Done, Instruction, Tell

__all__ = ["Completion"]


@dataclass(slots=True)
class Completion:
    #: one that came to the end proves that all steps are committed
    finished: dict[int, m.Finished] = field(default_factory=dict)
    #: the result is on disk
    saved: bool = False
    #: who was asked to write it
    saver: int = -1
    #: of these members, one that had not come to the end when somebody looked
    _members: tuple[int, ...] = ()
    _awaited: int = -1

    def __bool__(self) -> bool:
        """Has anybody come to the end?"""
        return bool(self.finished)

    def lose(self, executor: int) -> None:
        """Somebody is gone; with a result on disk that does not matter."""
        if not self.saved:
            self.finished.pop(executor, None)

    def found(self, digest: str) -> None:
        """There is a result on disk with this digest."""
        self.saved = any(finished.digest == digest for finished in self.finished.values())

    def waits_for(self, members: tuple[int, ...], counts: Callable[[int], bool]) -> bool:
        """Is there a member that `counts` and has not come to the end?

        Ten thousand come one after the other, and each time this is asked: all are looked at only when the one that was
        found last has come. The last of those who have not is remembered, since the first ones usually come first.
        """
        if self._members is not members or not self._is_awaited(self._awaited, counts):
            self._members = members
            self._awaited = next((e for e in reversed(members) if self._is_awaited(e, counts)), -1)
        return self._awaited >= 0

    def _is_awaited(self, executor: int, counts: Callable[[int], bool]) -> bool:
        return executor >= 0 and executor not in self.finished and counts(executor)

    def conclude(self) -> list[Instruction]:
        """The last steps, once nobody needs to be waited for any more. `Done` comes when the result is on disk."""
        if not self.finished:
            return []
        if not self.saved:
            # Whoever should have saved it is gone, or came to the end when it was not the first.
            if self.saver in self.finished:
                return []
            self.saver = next(iter(self.finished))
            return [Tell(self.saver, m.SaveResult())]
        first = next(iter(self.finished.values()))
        return [Done(step=first.step, digest=first.digest, stop_reason=first.stop_reason)]

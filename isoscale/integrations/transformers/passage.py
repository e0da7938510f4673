"""How far a pass has come, in batches of one rank, where its batch size may change on the way. Pure arithmetic.

A stock loop gives `state.epoch` as the number of the pass and the share of its batches that are done. A change of the
size changes how many there are; the share that is done stays what it was, and what is left goes evenly to the end.
"""

from __future__ import annotations

__all__ = ["Passage"]


class Passage:
    """Of `total` batches as long as nothing changes.

    >>> passage = Passage(10); passage.share(5)
    0.5
    >>> passage.cut(5, left=20); passage.total, passage.share(5), passage.share(15), passage.share(25)
    (25, 0.5, 0.75, 1.0)
    """

    def __init__(self, total: int) -> None:
        self.total = total
        #: the batch and the share with which the present size began
        self._at, self._before = 0, 0.0

    def share(self, done: int) -> float:
        """As the stock loop computes it, as long as nothing has changed."""
        if done == self._at:
            return self._before
        return self._before + (1 - self._before) * ((done - self._at) / (self.total - self._at))

    def cut(self, at: int, *, left: int) -> None:
        """So many batches are done, and so many are left with another size."""
        self._before, self._at, self.total = self.share(at), at, at + left

    def state(self) -> list[int | float]:
        return [self.total, self._at, self._before]

    def load(self, state: list[int | float]) -> None:
        self.total, self._at, self._before = int(state[0]), int(state[1]), float(state[2])

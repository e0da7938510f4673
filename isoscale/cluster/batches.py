"""Which batch sizes the service may choose for a running job, and how fast it is with each: learned size by size.

A job chooses for itself until it has said which sizes its script allows; of these, those count that its owner named at
submission (`--batch-sizes`). A size that the job does not take is not asked for again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

from isoscale.cluster.learning import ENOUGH, Learner
from isoscale.protocol.status import BatchStatus, JobStatus
from isoscale.scheduling.batched import BatchedSpeed, fit_turns

__all__ = ["Batches", "allowed_sizes"]

#: times that a size is asked for
_TRIES = 3
#: a model is told anew if it differs by so much
_WORTH_TELLING = 0.05
#: steps and seconds at a size before its turns are believed: what a coordinator tells is a mean that forgets by beats,
#: and would pass off turns of the old size as those of the new one
_SETTLED, _SETTLED_S = 5, 5.0


def allowed_sizes(wanted: tuple[int, ...], declared: BatchStatus | None) -> tuple[int, ...]:
    """Of one logical worker, ascending; () if there is no choice.

    >>> allowed_sizes((16, 32, 64), {"size": 32, "sizes": [8, 16, 32], "rule": "linear"})
    (16, 32)
    """
    if declared is None or not declared["rule"]:
        return ()
    return tuple(sorted({*wanted} & {*declared["sizes"]}))


@dataclass(slots=True)
class Batches:
    """Of one job."""

    workers: int
    kinds: tuple[str, ...]
    sizes: tuple[int, ...]
    #: as it was when the service first saw it, and now
    begun_with: int
    size: int
    noise_scale: float | None = None
    _by_size: dict[int, Learner] = field(default_factory=dict)
    _told: BatchedSpeed | None = None
    #: how often a size that the job does not have was asked for
    _tries: dict[int, int] = field(default_factory=dict)
    #: the size when it was last looked at, and step and time at which it was first seen
    _seen: int = 0
    _since: int = 0
    _since_s: float = 0.0

    @property
    def work_factor(self) -> float:
        """Of a step at the present size, in steps of the smallest."""
        return self.size / min(self.sizes)

    def look(self, status: JobStatus, now: float) -> None:
        declared = status.get("batch")
        if declared is None:
            return
        self.size, self.noise_scale = declared["size"], status.get("noise_scale") or self.noise_scale
        if self.size != self._seen:
            # Of the first size there is nothing older that its turns could be mixed with.
            self._since_s = now if self._seen else now - _SETTLED_S
            self._seen, self._since = self.size, status["step"]
        if status["step"] - self._since < _SETTLED or now - self._since_s < _SETTLED_S:
            return
        learner = self._by_size.setdefault(self.size, Learner(workers=self.workers, kinds=self.kinds))
        learner.look(status)

    def model(self) -> BatchedSpeed | None:
        """What is known, if that is something, and something new."""
        seconds: dict[str, dict[int, float]] = {}
        for size, learner in self._by_size.items():
            for kind, late in learner.turns.items():
                if len(late) >= ENOUGH:
                    seconds.setdefault(kind, {})[size] = median(late)
        if not seconds:
            return None
        known = {kind: fit_turns(by_size) for kind, by_size in seconds.items()}
        slowest = max(known.values(), key=lambda turn: turn[0] + turn[1] * self.size)
        model = BatchedSpeed(
            num_logical_workers=self.workers,
            turns={kind: known.get(kind, slowest) for kind in {*self.kinds, *known}},
            sizes=self.sizes,
            size=self.size,
            communication=self._by_size[max(self._by_size, key=self._looks)].communication(),
            noise_scale=self.noise_scale,
        )
        if self._told is not None and self._is_like(self._told, model):
            return None
        self._told = model
        return model

    def _looks(self, size: int) -> float:
        return sum(point.looks for point in self._by_size[size].points.values())

    def _is_like(self, one: BatchedSpeed, other: BatchedSpeed) -> bool:
        if (one.sizes, one.size) != (other.sizes, other.size):
            return False
        shapes = [((kind, count),) for kind in other.turns for count in (1, min(2, self.workers))]
        batches = [size * self.workers for size in self.sizes]
        pairs = [(one.rate(shape, batch), other.rate(shape, batch)) for shape in shapes for batch in batches]
        return all(abs(after - before) <= _WORTH_TELLING * before for before, after in pairs)

    def refused(self, size: int) -> bool:
        """It still has another size: ask again (True), or give that size up."""
        self._tries[size] = self._tries.get(size, 0) + 1
        if self._tries[size] < _TRIES:
            return True
        self.sizes = tuple(one for one in self.sizes if one != size) or (self.size,)
        return False

    def accepted(self, size: int) -> None:
        self._tries.pop(size, None)

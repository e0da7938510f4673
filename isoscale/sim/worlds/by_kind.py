"""A job made of one for each kind of device: measured apart, with nothing said about devices of several kinds.

Work is the same on all kinds; a job that changes kinds goes on where it was.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import numpy as np
from numpy.typing import NDArray

from isoscale.errors import UserError
from isoscale.scheduling.state import Shape, SpeedModel
from isoscale.scheduling.throughput import proven_devices
from isoscale.sim.job import Pace, Truth

__all__ = ["SpeedByKind", "TruthByKind"]


class SpeedByKind:
    """A `SpeedModel` that asks the one of the kind; on several kinds at once the job cannot run.

    `tried` are the kinds that a model was measured on, all unless it is given.
    """

    def __init__(self, models: Mapping[str, SpeedModel], tried: Collection[str] | None = None) -> None:
        self._models = dict(models)
        self._tried = set(self._models if tried is None else tried)

    def step_s(self, shape: Shape, batch: int = 0) -> float:
        model = self._of(shape)
        return model.step_s(shape, batch) if model else math.inf

    def rate(self, shape: Shape, batch: int = 0) -> float:
        model = self._of(shape)
        return model.rate(shape, batch) if model else 0.0

    def best_batch(self, shape: Shape) -> int:
        model = self._of(shape)
        return model.best_batch(shape) if model else 0

    def rates(self, kind: str, max_devices: int, node_size: int) -> NDArray[np.float64]:
        model = self._models.get(kind)
        return model.rates(kind, max_devices, node_size) if model else np.zeros(max_devices + 1)

    def proven_on(self, kind: str) -> int | None:
        return proven_devices(self._models[kind]) if kind in self._tried else 0

    @property
    def proven_devices(self) -> int | None:
        """Of the kind that was measured furthest; None if one is known throughout."""
        proven = [proven_devices(model) for model in self._models.values()]
        return None if None in proven else max((one or 0 for one in proven), default=0)

    def _of(self, shape: Shape) -> SpeedModel | None:
        kinds = {kind for kind, _ in shape}
        return self._models.get(next(iter(kinds))) if len(kinds) == 1 else None


class TruthByKind:
    """A `Truth` that asks the one of the kind that the job runs on."""

    def __init__(self, truths: Mapping[str, Truth]) -> None:
        self._truths = dict(truths)
        self._first = next(iter(self._truths.values()))
        self.total_work = self._first.total_work
        self._parts: dict[str, SpeedModel | None] = {}
        self._learned: SpeedByKind | None = None

    def fresh(self) -> TruthByKind:
        return TruthByKind({kind: truth.fresh() for kind, truth in self._truths.items()})

    def pace(self, shape: Shape, batch: int, done: float = 0.0, now: float = 0.0) -> Pace:
        return self._of(shape).pace(shape, batch, done, now)

    def step_s(self, shape: Shape, batch: int) -> float:
        return self._of(shape).step_s(shape, batch)

    def learned(self, done: float) -> SpeedModel | None:
        """Of each kind what was learned there; a kind not yet tried counts as the one that was measured furthest. None
        as long as nothing was learned."""
        parts = {kind: truth.learned(done) for kind, truth in self._truths.items()}
        known = {kind: model for kind, model in parts.items() if model is not None}
        if not known:
            return None
        if any(self._parts.get(kind) is not model for kind, model in parts.items()) or self._learned is None:
            self._parts = dict(parts)
            furthest = max(known, key=lambda kind: proven_devices(known[kind]) or 0)
            self._learned = SpeedByKind({kind: known.get(kind, known[furthest]) for kind in parts}, tried=known)
        return self._learned

    def remaining(self, done: float) -> float:
        return self._first.remaining(done)

    def _of(self, shape: Shape) -> Truth:
        kinds = {kind for kind, _ in shape}
        truth = self._truths.get(next(iter(kinds), "")) if len(kinds) == 1 else None
        if truth is None:
            raise UserError(
                field="devices", value=shape, problem="the job was not measured on them", remedy="give one of its kinds"
            )
        return truth

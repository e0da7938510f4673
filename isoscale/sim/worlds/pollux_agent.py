"""What a job of the Pollux simulator knows about itself: the points it has measured, a fit, the batch it would choose.

The counterpart of the agent that runs inside such a job. It sees step times only where the job has run, and gradient
noise only of the present epoch at the present batch.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from isoscale.scheduling.fit import StepPoint, fit_goodput
from isoscale.scheduling.state import Shape
from isoscale.scheduling.throughput import GoodputSpeed
from isoscale.sim.worlds.pollux_settings import Settings, Spread, counts_of

__all__ = ["PolluxAgent", "prior"]


class PolluxAgent:
    """One job's own knowledge."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._seen: dict[tuple[int, int, int], StepPoint] = {}
        self._fitted: GoodputSpeed | None = None
        self._models: dict[tuple[int, int, float], GoodputSpeed] = {}

    def model(self, epoch: int, batch: int) -> GoodputSpeed:
        """What measurements support, with the gradient noise of an epoch as it shows at a batch."""
        noise = float(self._settings.noise(batch)[epoch])
        key = (len(self._seen), epoch, noise)
        found = self._models.get(key)
        if found is None:
            found = self._models[key] = replace(self._fit(), noise_scale=noise)
        return found

    def choose(self, shape: Shape) -> list[Spread]:
        """How the job spreads the batch that it thinks best on these devices, in each epoch; it learns by doing so."""
        tables, counts = self._settings.tables, counts_of(shape)
        first = max(tables.min_batch, tables.min_local_batch * sum(counts))
        if not self._seen:
            self.observe(shape, self._settings.spread(counts, min(first, tables.max_batch), 0))
        # The first choice shows what devices like these cost; the second one knows it.
        for spread in dict.fromkeys(self._best(shape)):
            self.observe(shape, spread)
        return self._best(shape)

    def observe(self, shape: Shape, spread: Spread) -> None:
        counts = counts_of(shape)
        key = (len(counts), sum(counts), spread.atomic)
        if key not in self._seen and spread.step_s < math.inf:
            step_s, sync_s = self._settings.tables.step_times(counts, spread.atomic)
            self._seen[key] = StepPoint(
                num_nodes=key[0],
                num_devices=key[1],
                local_batch=spread.atomic,
                compute_s=step_s - sync_s,
                exchange_s=sync_s,
            )
            self._fitted = None

    def _fit(self) -> GoodputSpeed:
        if self._fitted is None:
            assumed = prior(self._settings)
            self._fitted = fit_goodput(list(self._seen.values()), assumed) if self._seen else assumed
        return self._fitted

    def _best(self, shape: Shape) -> list[Spread]:
        """The batch of the highest goodput by the fit, in each epoch at once."""
        counts, fitted, smallest = counts_of(shape), self._fit(), self._settings.tables.min_batch
        spreads = self._settings.candidates(counts)
        passes = np.array([spread.accumulate + 1 for spread in spreads])
        atomic = np.array([spread.atomic for spread in spreads])
        batches = np.array([spread.batch for spread in spreads], dtype=float)
        exchange_s = fitted.communication.seconds(sum(counts), len(counts))
        steps = passes * (fitted.fixed_s + fitted.per_sample_s * atomic) + exchange_s
        # (noise + smallest) / (noise + batch), written so that infinite noise gives 1.
        efficiency = 1.0 - (batches - smallest) / (self._settings.noise(smallest)[:, None] + batches)
        return [spreads[index] for index in np.argmax(batches / steps * efficiency, axis=1)]


def prior(settings: Settings) -> GoodputSpeed:
    """What is assumed before anything was measured: time in proportion to samples, no communication."""
    tables = settings.tables
    return GoodputSpeed(
        fixed_s=0.0,
        per_sample_s=1.0 / tables.min_batch,
        noise_scale=float(settings.noise(tables.min_batch)[0]),
        initial_batch=tables.min_batch,
        max_batch=tables.max_batch,
        min_local_batch=tables.min_local_batch,
        max_local_batch=tables.max_local_batch,
    )

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
from isoscale.sim.worlds.pollux_tables import PolluxTables

__all__ = ["PolluxAgent", "prior"]

_NUM_BATCHES = 50


class PolluxAgent:
    """One job's own knowledge."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._seen: dict[tuple[int, int, int], StepPoint] = {}
        self._fitted: GoodputSpeed | None = None
        self._models: dict[tuple[int, int, float], GoodputSpeed] = {}

    def model(self, epoch: int, batch: int) -> GoodputSpeed:
        """What measurements support, with the gradient noise of an epoch as it shows at a batch."""
        noise = _noise(self._settings.tables, epoch, batch)
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
            assumed = prior(self._settings.tables)
            self._fitted = fit_goodput(list(self._seen.values()), assumed) if self._seen else assumed
        return self._fitted

    def _best(self, shape: Shape) -> list[Spread]:
        """The batch of the highest goodput by the fit, in each epoch at once."""
        tables, counts, fitted = self._settings.tables, counts_of(shape), self._fit()
        least = min(max(tables.min_batch, tables.min_local_batch * sum(counts)), tables.max_batch)
        tried = sorted({math.ceil(one - 1e-8) for one in np.geomspace(least, tables.max_batch, _NUM_BATCHES)})
        spreads = [self._settings.spread(counts, batch, 0) for batch in tried]
        possible = [spread for spread in spreads if spread.step_s < math.inf]
        batches = np.array([spread.batch for spread in possible], dtype=float)
        steps = np.array([fitted.step_s(shape, spread.batch) for spread in possible])
        noise = np.array([_noise(tables, epoch, tables.min_batch) for epoch in range(tables.epochs)])
        efficiency = (noise[:, None] + tables.min_batch) / (noise[:, None] + batches)
        goodput = batches / steps * np.nan_to_num(efficiency, nan=1.0)
        return [possible[index] for index in np.argmax(goodput, axis=1)]


def prior(tables: PolluxTables) -> GoodputSpeed:
    """What is assumed before anything was measured: time in proportion to samples, no communication."""
    return GoodputSpeed(
        fixed_s=0.0,
        per_sample_s=1.0 / tables.min_batch,
        noise_scale=_noise(tables, 0, tables.min_batch),
        initial_batch=tables.min_batch,
        max_batch=tables.max_batch,
        min_local_batch=tables.min_local_batch,
        max_local_batch=tables.max_local_batch,
    )


def _noise(tables: PolluxTables, epoch: int, batch: int) -> float:
    """Gradient noise scale in samples: variance over squared norm, times the smallest batch."""
    sqr, var = tables.gradient(batch)
    return float(var[epoch] / sqr[epoch]) * tables.min_batch if sqr[epoch] > 0 else math.inf

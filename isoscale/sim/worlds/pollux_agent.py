"""What a job of the Pollux simulator knows about itself: the points it has measured, a fit, the batch it would choose.

The counterpart of the agent that runs inside such a job. It sees step times only where and with what batch the job has
run, and gradient noise only of the present epoch. At a new placement it looks ahead: in each epoch the job runs at the
batch that the fit thinks best, measures that, fits again, and so on. What it will measure in an epoch is known from
that epoch on, and forgotten if its devices change before.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from isoscale.scheduling.fit import StepPoint, fit_goodput
from isoscale.scheduling.state import Shape
from isoscale.scheduling.throughput import GoodputSpeed
from isoscale.sim.worlds.pollux_settings import Settings, Spread, counts_of

__all__ = ["PolluxAgent", "prior"]

_Key = tuple[int, int, int]
# Choosing, measuring and fitting settle after a few turns; within an epoch there is time for that.
_TRIES = 6


class PolluxAgent:
    """One job's own knowledge."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        #: measured so far, in order, and from which epoch on it is known
        self._points: dict[_Key, tuple[int, StepPoint]] = {}
        self._fits: dict[tuple[_Key, ...], GoodputSpeed] = {}
        self._models: dict[tuple[int, int, float], GoodputSpeed] = {}

    def model(self, epoch: int, batch: int) -> GoodputSpeed:
        """What measurements up to an epoch support, with its gradient noise as it shows at a batch."""
        noise = float(self._settings.noise(batch)[epoch])
        keys = tuple(key for key, (since, _) in self._points.items() if since <= epoch)
        # Fits are few and kept, so what is fitted from the same points is the same object.
        fitted = self._fit(keys)
        found = self._models.get((id(fitted), epoch, noise))
        if found is None:
            found = self._models[id(fitted), epoch, noise] = replace(fitted, noise_scale=noise)
        return found

    def choose(self, shape: Shape, epoch: int) -> list[Spread]:
        """How the job spreads the batch that it thinks best on these devices, in each epoch from this one on."""
        self._points = {key: (0, point) for key, (since, point) in self._points.items() if since <= epoch}
        epochs, tries = self._settings.tables.epochs, 0
        chosen: list[Spread] = []
        while len(chosen) < epochs - epoch:
            now = epoch + len(chosen)
            for spread in self._best(shape, now):
                if tries < _TRIES and self._observe(shape, spread, now):
                    tries += 1
                    break
                chosen.append(spread)
                now, tries = now + 1, 0
        return chosen

    def observe(self, shape: Shape, spread: Spread, epoch: int) -> None:
        """The job runs with a batch that it did not choose."""
        self._points = {key: (0, point) for key, (since, point) in self._points.items() if since <= epoch}
        self._observe(shape, spread, epoch)

    def _observe(self, shape: Shape, spread: Spread, epoch: int) -> bool:
        """Whether there was anything new to measure."""
        counts = counts_of(shape)
        key = (len(counts), sum(counts), spread.atomic)
        if key in self._points:
            return False
        step_s, sync_s = self._settings.tables.step_times(counts, spread.atomic)
        point = StepPoint(
            num_nodes=key[0],
            num_devices=key[1],
            local_batch=spread.atomic,
            compute_s=step_s - sync_s,
            exchange_s=sync_s,
        )
        self._points[key] = (epoch, point)
        return True

    def _fit(self, keys: tuple[_Key, ...]) -> GoodputSpeed:
        found = self._fits.get(keys)
        if found is None:
            assumed = prior(self._settings)
            found = fit_goodput([self._points[key][1] for key in keys], assumed) if keys else assumed
            self._fits[keys] = found
        return found

    def _best(self, shape: Shape, epoch: int) -> list[Spread]:
        """The batch of the highest goodput by the fit, in this epoch and all later ones at once."""
        counts, smallest = counts_of(shape), self._settings.tables.min_batch
        spreads = self._settings.candidates(counts)
        if not self._points:
            # Nothing is known yet: the smallest batch that these devices can share.
            return spreads[:1] * (self._settings.tables.epochs - epoch)
        fitted = self._fit(tuple(self._points))
        passes, atomic, batches = self._settings.candidate_arrays(counts)
        exchange_s = fitted.communication.seconds(sum(counts), len(counts))
        steps = passes * (fitted.fixed_s + fitted.per_sample_s * atomic) + exchange_s
        # (noise + smallest) / (noise + batch), written so that infinite noise gives 1.
        noise = self._settings.noise(smallest)[epoch:, None]
        efficiency = 1.0 - (batches - smallest) / (noise + batches)
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

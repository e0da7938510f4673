"""How an application of the Pollux simulator runs on given devices at given batches: times and progress, cached.

Work is *progress*: steps that a run at the smallest batch would need. A step at batch B with gradient noise moves
`gain = (var + sqr) / (var / s + sqr)` of them, s = B / smallest batch; sqr and var are measured by epoch. A batch too
large for the devices is accumulated: a + 1 passes of `atomic` samples per device, of which the last synchronises.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from isoscale.sim.worlds.pollux_tables import PolluxTables

__all__ = ["Counts", "Settings", "Spread", "counts_of"]

Array = NDArray[np.float64]
#: devices per node, descending
Counts = tuple[int, ...]
_EPS = 1e-8
_NUM_BATCHES = 50


class Spread:
    """How a global batch is spread over devices: `atomic` samples at a time, `accumulate` times before the last."""

    __slots__ = ("accumulate", "atomic", "batch", "busy", "step_s")

    def __init__(self, tables: PolluxTables, counts: Counts, batch: int) -> None:
        devices = sum(counts)
        local = math.ceil(batch / devices - _EPS)
        accumulate = math.ceil(local / tables.max_local_batch - _EPS) - 1
        # One device cannot measure the noise of its gradients from one pass.
        if devices == 1 and batch > tables.min_batch:
            accumulate = max(1, accumulate)
        atomic = math.ceil(local / (accumulate + 1) - _EPS)
        self.atomic = min(atomic, int(tables.max_batch / (devices * (accumulate + 1))))
        self.accumulate = accumulate
        self.batch = devices * self.atomic * (accumulate + 1)
        self.step_s, self.busy = math.inf, 0.0
        if self.atomic >= tables.min_local_batch:
            step_s, sync_s = tables.step_times(counts, self.atomic)
            self.step_s = step_s + accumulate * (step_s - sync_s)
            self.busy = (step_s - sync_s) * (accumulate + 1) / self.step_s


class Settings:
    """One application: what a batch gives on devices, and the best batch. Shared by all its jobs."""

    def __init__(self, tables: PolluxTables, fixed_batch: int = 0) -> None:
        self.tables = tables
        #: the batch where none is asked for; 0: the best one
        self.fixed_batch = fixed_batch
        self._spreads: dict[tuple[Counts, int], Spread] = {}
        self._gains: dict[int, Array] = {}
        self._noise: dict[int, Array] = {}
        self._candidates: dict[Counts, list[Spread]] = {}
        self._arrays: dict[Counts, tuple[Array, Array, Array]] = {}
        self._best: dict[Counts, tuple[list[Spread], Array]] = {}
        self._rates: dict[tuple[Counts, int], Array] = {}

    def spread(self, counts: Counts, batch: int, epoch: int) -> Spread:
        """With batch 0, the best in that epoch."""
        batch = batch or self.fixed_batch
        if not batch:
            return self._choices(counts)[0][epoch]
        found = self._spreads.get((counts, batch))
        if found is None:
            found = self._spreads[counts, batch] = Spread(self.tables, counts, batch)
        return found

    def rates(self, counts: Counts, batch: int) -> Array:
        """Progress per second in each epoch; zeros if the job cannot run so."""
        batch = batch or self.fixed_batch
        if not batch:
            return self._choices(counts)[1]
        found = self._rates.get((counts, batch))
        if found is None:
            spread = self.spread(counts, batch, 0)
            possible = spread.step_s < math.inf
            found = self.gains(spread.batch) / spread.step_s if possible else np.zeros(self.tables.epochs)
            self._rates[counts, batch] = found
        return found

    def gains(self, batch: int) -> Array:
        """Progress of one step in each epoch."""
        found = self._gains.get(batch)
        if found is None:
            sqr, var = self.tables.gradient(batch)
            scale = batch / self.tables.min_batch
            found = self._gains[batch] = (var + sqr) / (var / scale + sqr)
        return found

    def noise(self, batch: int) -> Array:
        """Gradient noise scale in samples, in each epoch as it shows at a batch; infinite where there is no signal."""
        found = self._noise.get(batch)
        if found is None:
            sqr, var = self.tables.gradient(batch)
            signal = np.where(sqr > 0, sqr, 1.0)
            found = self._noise[batch] = np.where(sqr > 0, var / signal * self.tables.min_batch, math.inf)
        return found

    def candidates(self, counts: Counts) -> list[Spread]:
        """50 batches in geometric steps that fit these devices, as the Pollux agent looks at them; ascending."""
        found = self._candidates.get(counts)
        if found is None:
            tables = self.tables
            least = max(tables.min_batch, tables.min_local_batch * sum(counts))
            steps = np.geomspace(least, tables.max_batch, _NUM_BATCHES) if least <= tables.max_batch else ()
            spreads = [Spread(tables, counts, batch) for batch in sorted({math.ceil(one - _EPS) for one in steps})]
            found = self._candidates[counts] = [spread for spread in spreads if spread.step_s < math.inf]
        return found

    def candidate_arrays(self, counts: Counts) -> tuple[Array, Array, Array]:
        """Passes, samples of a pass and batch of each candidate."""
        found = self._arrays.get(counts)
        if found is None:
            spreads = self.candidates(counts)
            rows = [(spread.accumulate + 1, spread.atomic, spread.batch) for spread in spreads]
            passes, atomic, batches = np.array(rows, dtype=float).T
            found = self._arrays[counts] = passes, atomic, batches
        return found

    def _choices(self, counts: Counts) -> tuple[list[Spread], Array]:
        """In each epoch the best of the candidates, and its rate."""
        found = self._best.get(counts)
        if found is None:
            found = self._best[counts] = self._search(counts)
        return found

    def _search(self, counts: Counts) -> tuple[list[Spread], Array]:
        tables, spreads = self.tables, self.candidates(counts)
        if not spreads:
            return [Spread(tables, counts, tables.max_batch)] * tables.epochs, np.zeros(tables.epochs)
        rates = np.stack([self.gains(spread.batch) / spread.step_s for spread in spreads])
        best = np.argmax(rates, axis=0)
        return [spreads[index] for index in best], rates[best, np.arange(tables.epochs)]


def counts_of(shape: Sequence[tuple[str, int]]) -> Counts:
    return tuple(sorted([count for _, count in shape], reverse=True))

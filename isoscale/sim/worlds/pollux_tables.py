"""Measurements of one application on T4 devices, as the Pollux simulator's authors published them.

A directory per application holds `placements.csv` (step and synchronisation time by placement and batch per device),
`scalability.csv` (the same by number of nodes and devices) and `validation-BATCH.csv` (progress and gradient statistics
by epoch for each global batch). Times between measured points are interpolated: by batch where the placement was
measured, linearly over a Delaunay triangulation of (nodes, devices, batch) where it was not.

Both tables of times may have a column `kind`, as tables of several kinds of devices do; then one `PolluxTables` holds
the lines of one kind. Gradient statistics are the same on all.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isoscale.errors import UserError
from isoscale.sim.traces.record import numbers, table

__all__ = ["PolluxTables", "kinds_in"]

Array = NDArray[np.float64]
# Variances of a model's gradients at its start: published ones reach 7e15, products of them must stay finite.
_LARGEST_GRADIENT = 1e100
# The published measurements go no further.
_MAX_NODES = 16
# More batches than this are looked up one by one.
_MANY = 2048


class PolluxTables:
    """One application's tables. `step_times` is the only method that is called often, and caches.

    `kind` is the kind whose lines are read; "" where the tables have no such column.
    """

    def __init__(self, directory: Path, *, max_epochs: int = 0, max_local_batch: int = 0, kind: str = "") -> None:
        self.name = directory.name
        self._kind = kind
        self._placements = _read_placements(directory / "placements.csv", kind)
        self._scalability = directory / "scalability.csv"
        self._interpolator: Any = None
        self._cache: dict[tuple[tuple[int, ...], int], tuple[float, float]] = {}
        validation = {
            int(path.stem.rpartition("-")[2]): _read_validation(path) for path in directory.glob("validation-*.csv")
        }
        if not validation:
            raise UserError(
                field="--speeds",
                value=directory,
                problem="has no validation-*.csv",
                remedy="give the directory of the Pollux simulator's traces",
            )
        self.batches = sorted(validation)
        self._validation = [validation[batch] for batch in self.batches]
        self.min_batch, self.max_batch = self.batches[0], self.batches[-1]
        measured = np.concatenate([points[0] for points in self._placements.values()])
        self.min_local_batch = int(measured.min())
        self.max_local_batch = max_local_batch or int(measured.max())
        self.epochs = min([max_epochs or 10**9, *(len(one) for one in self._validation)])
        #: progress at which each epoch begins, and the one at which the last ends
        ends = np.min([one[: self.epochs, 0] for one in self._validation], axis=0)
        self.progress = np.concatenate([[0.0], ends])

    def step_times(self, counts: Sequence[int], local_batch: int) -> tuple[float, float]:
        """(seconds of a step, of them spent synchronising) for devices per node and a batch per device."""
        key = (tuple(sorted(counts, reverse=True)), local_batch)
        if key not in self._cache:
            self._look_up(*key)
        return self._cache[key]

    def gradient(self, batch: float) -> tuple[Array, Array]:
        """Squared norm and variance of the gradient in each epoch at a global batch, between the measured ones."""
        upper = int(np.searchsorted(self.batches, batch))
        upper = min(upper, len(self.batches) - 1)
        lower = upper if self.batches[upper] <= batch else max(0, upper - 1)
        low, high = self._validation[lower], self._validation[upper]
        share = 0.0 if lower == upper else (batch - self.batches[lower]) / (self.batches[upper] - self.batches[lower])
        mixed = (1 - share) * low[: self.epochs, 2:4] + share * high[: self.epochs, 2:4]
        return mixed[:, 0], mixed[:, 1]

    def iterations(self, batch: float) -> Array:
        """Steps at a global batch that have been made by the end of each epoch."""
        columns = np.array([one[: self.epochs, 1] for one in self._validation])
        clipped = min(max(batch, self.min_batch), self.max_batch)
        result: Array = np.array([np.interp(clipped, self.batches, column) for column in columns.T])
        return result

    def _look_up(self, counts: tuple[int, ...], local_batch: int) -> None:
        """Fills the cache for all batches of a placement at once: one call of the interpolator costs like a hundred."""
        rotations = [counts[i:] + counts[:i] for i in range(len(counts))]
        points = self._placements.get(min(rotations))
        batches = np.arange(self.min_local_batch, self.max_local_batch + 1)
        if len(batches) > _MANY:
            batches = np.array([local_batch])
        if points is not None:
            known, times = points
            found = np.stack([np.interp(batches, known, times[:, column]) for column in (0, 1)], axis=1)
        else:
            if self._interpolator is None:
                self._interpolator = self._make_interpolator()
            at = np.empty((len(batches), 3))
            at[:] = min(len(counts), _MAX_NODES), sum(counts), 0
            at[:, 2] = batches
            found = self._interpolator(at)
        for batch, (step_s, sync_s) in zip(batches.tolist(), found.tolist(), strict=True):
            self._cache[counts, batch] = step_s, sync_s

    def _make_interpolator(self) -> Any:
        try:
            from scipy.interpolate import LinearNDInterpolator
        except ImportError:
            raise UserError(
                field="--speeds",
                value=self._scalability.parent,
                problem="needs SciPy to interpolate between measurements",
                remedy="pip install scipy",
            ) from None
        groups: dict[tuple[float, float, float], list[Array]] = {}
        for placement, (batches, times) in self._placements.items():
            for batch, time in zip(batches, times, strict=True):
                groups.setdefault((len(placement), sum(placement), float(batch)), []).append(time)
        points = [list(key) for key in sorted(groups)]
        values = [list(np.mean(groups[key], axis=0)) for key in sorted(groups)]
        columns = ("num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time")
        for row in _lines_of(self._scalability, columns, self._kind):
            points.append(row[:3])
            values.append(row[3:])
        return LinearNDInterpolator(np.array(points), np.array(values))


def kinds_in(directory: Path) -> tuple[str, ...]:
    """The kinds that an application's times were measured on, in the table's order; () if it does not say."""
    rows = table(directory / "placements.csv", ("placement", "local_bsz", "step_time", "sync_time"))
    return tuple(dict.fromkeys(row.text("kind") for row in rows if row.has("kind")))


def _lines_of(path: Path, columns: Sequence[str], kind: str) -> list[list[float]]:
    """The lines of a kind; all where it is ""."""
    if not kind:
        return numbers(path, columns)
    rows = table(path, (*columns, "kind"))
    return [[row.number(column) for column in columns] for row in rows if row.text("kind") == kind]


def _read_placements(path: Path, kind: str) -> dict[tuple[int, ...], tuple[Array, Array]]:
    """Devices per node -> (batches per device, [step, sync] times); a placement is written as a digit per node."""
    found: dict[tuple[int, ...], list[list[float]]] = {}
    for placement, *values in _lines_of(path, ("placement", "local_bsz", "step_time", "sync_time"), kind):
        found.setdefault(tuple(map(int, str(int(placement)))), []).append(values)
    arrays = {counts: np.array(sorted(rows)) for counts, rows in found.items()}
    return {counts: (rows[:, 0], rows[:, 1:]) for counts, rows in arrays.items()}


def _read_validation(path: Path) -> Array:
    """Columns progress, iteration, grad_sqr, grad_var, a row per epoch."""
    columns = ("progress", "iteration", "grad_sqr", "grad_var")
    return np.array(numbers(path, columns, most=_LARGEST_GRADIENT))

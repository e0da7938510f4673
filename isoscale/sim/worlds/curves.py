"""Speeds by number of devices: measured curves, and how a job without one is given one.

Curves are measured at a few sizes; between them the logarithm of the rate is linear in the logarithm of the size, and
beyond the last one the rate stays. A job that states only how long it ran on what it asked for gets a curve drawn by
seed, and as many steps as take exactly that long there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path

import numpy as np

from isoscale import limits
from isoscale.errors import UserError
from isoscale.scheduling.throughput import TableSpeed
from isoscale.sim.traces.record import Row, table

__all__ = ["Curve", "read_elasticflow_curves", "read_gavel_curves", "shipped_curves", "speed_of"]

_SIZES = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Steps per second of one application and global batch on a kind, by number of devices; sizes ascend."""

    application: str
    kind: str
    batch: int
    sizes: tuple[int, ...]
    rates: tuple[float, ...]

    @property
    def most_devices(self) -> int:
        """The size at which it is fastest; more devices would slow it down."""
        return self.sizes[int(np.argmax(self.rates))]

    def dense(self, most: int) -> tuple[float, ...]:
        """Rates for 0..most devices, entry 0 being 0.

        >>> curve = Curve(application="a", kind="T4", batch=8, sizes=(1, 4), rates=(1.0, 2.0))
        >>> [round(rate, 3) for rate in curve.dense(5)]
        [0.0, 1.0, 1.414, 1.732, 2.0, 2.0]
        """
        counts = np.arange(1, most + 1)
        rates = np.exp(np.interp(np.log(counts), np.log(self.sizes), np.log(self.rates)))
        # A curve that begins at several devices: fewer are slower in proportion, the best they could be.
        rates = np.where(counts < self.sizes[0], self.rates[0] * counts / self.sizes[0], rates)
        return (0.0, *rates.tolist())


def speed_of(curve: Curve, kinds: Mapping[str, float], *, most: int = 64) -> TableSpeed:
    """A speed model of the curve for kinds with these relative speeds."""
    dense = curve.dense(most)
    tables = {kind: tuple(factor * rate for rate in dense) for kind, factor in kinds.items()}
    return TableSpeed(tables=tables, batch=curve.batch)


@lru_cache(maxsize=1)
def shipped_curves() -> tuple[Curve, ...]:
    """The measured curves that the package ships; the file's first lines say whose they are."""
    with resources.as_file(resources.files("isoscale.sim") / "data" / "scaling.csv") as path:
        rows = table(path, ("application", "kind", "batch", *map(str, _SIZES)))
        return tuple(
            _curve(row, row.text("application"), row.text("kind"), row.count("batch", most=limits.MAX_NUMBER))
            for row in rows
        )


def read_elasticflow_curves(directory: Path, kind: str) -> dict[tuple[str, int], Curve]:
    """ElasticFlow's `APPLICATION.csv`, one line per global batch, keyed by both."""
    found = {}
    for path in sorted(directory.glob("*.csv")):
        for row in table(path, ("global_batch_size", *map(str, _SIZES))):
            batch = row.count("global_batch_size", most=limits.MAX_NUMBER)
            found[path.stem, batch] = _curve(row, path.stem, kind, batch)
    return found


def read_gavel_curves(path: Path) -> dict[str, dict[str, Curve]]:
    """Gavel's throughputs: job type -> kind (as the file writes it) -> curve over its scale factors."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        points: dict[tuple[str, str], dict[int, float]] = {}
        for kind, entries in document.items():
            for key, values in entries.items():
                job_type, _, scale = key[2:-1].rpartition("', ")
                if 0 < values["null"] <= limits.MAX_NUMBER and limits.whole(scale, "--speeds", limits.CLUSTER_DEVICES):
                    points.setdefault((job_type, kind), {})[int(scale)] = float(values["null"])
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise UserError(
            field="--speeds", value=path, problem=f"is no table of throughputs ({error})", remedy="give Gavel's JSON"
        ) from None
    found: dict[str, dict[str, Curve]] = {}
    for (job_type, kind), rates in points.items():
        sizes = tuple(sorted(rates))
        curve = Curve(application=job_type, kind=kind, batch=0, sizes=sizes, rates=tuple(rates[s] for s in sizes))
        found.setdefault(job_type, {})[kind] = curve
    return found


def _curve(row: Row, application: str, kind: str, batch: int) -> Curve:
    """What was measured; `nan`, 0 and nothing are ways of saying that it was not."""
    rates = {size: _measured(row.text(str(size), "")) for size in _SIZES}
    sizes = tuple(size for size, rate in rates.items() if rate > 0)
    if not sizes:
        raise row.bad("1", "", "no size was measured", "give at least one rate")
    return Curve(application=application, kind=kind, batch=batch, sizes=sizes, rates=_values(rates, sizes))


def _measured(text: str) -> float:
    value = float(text) if limits.is_decimal(text) else 0.0
    return value if value <= limits.MAX_NUMBER else 0.0


def _values(rates: Mapping[int, float], sizes: Sequence[int]) -> tuple[float, ...]:
    return tuple(rates[size] for size in sizes)

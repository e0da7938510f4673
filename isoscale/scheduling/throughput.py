"""How fast a job runs on a shape: three models, each with its equation beside its parameters.

    TableSpeed          measured rates by number of devices
    LogicalWorkerSpeed  N logical workers, constant batch: slowest executor's turns + communication
    GoodputSpeed        batch divided anew at every size and chosen within a range: throughput x statistical efficiency

All are values. Fitting them to measurements is in `fit`; nothing here measures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from isoscale.scheduling.planner import best_split
from isoscale.scheduling.state import Shape, SpeedModel

__all__ = ["Communication", "GoodputSpeed", "LogicalWorkerSpeed", "TableSpeed", "proven_devices", "trusted_devices"]

_NUM_BATCHES = 50


def proven_devices(model: SpeedModel, kind: str = "") -> int | None:
    """The most devices that a model was measured on, of a kind if one is named and the model knows kinds apart
    (`proven_on`); None for models that do not say: they are taken at their word."""
    by_kind: Callable[[str], int | None] | None = getattr(model, "proven_on", None)
    if kind and by_kind is not None:
        return by_kind(kind)
    proven: int | None = getattr(model, "proven_devices", None)
    return proven


def trusted_devices(model: SpeedModel, factor: float = 2.0, kind: str = "") -> int:
    """How many devices a scheduler may try: `factor` times what has been measured, at least 1; 0 means any number."""
    proven = proven_devices(model, kind)
    return 0 if proven is None else max(1, int(proven * factor))


@dataclass(frozen=True, slots=True, kw_only=True)
class Communication:
    """Seconds of one exchange among E > 1 devices: fixed_s + per_device_s * max(E - 2, 0), as for a ring.

    One pair of coefficients for devices that share a node, one for those that do not; 0 for a single device.
    """

    local_fixed_s: float = 0.0
    local_per_device_s: float = 0.0
    cross_fixed_s: float = 0.0
    cross_per_device_s: float = 0.0

    def seconds(self, num_devices: int, num_nodes: int) -> float:
        if num_devices < 2:
            return 0.0
        if num_nodes > 1:
            return self.cross_fixed_s + self.cross_per_device_s * max(num_devices - 2, 0)
        return self.local_fixed_s + self.local_per_device_s * max(num_devices - 2, 0)

    def packed_seconds(self, max_devices: int, node_size: int) -> NDArray[np.float64]:
        """`seconds` of 0..max_devices devices on as few nodes as possible."""
        devices = np.arange(max_devices + 1, dtype=np.float64)
        beyond_two = np.maximum(devices - 2, 0)
        local = self.local_fixed_s + self.local_per_device_s * beyond_two
        cross = self.cross_fixed_s + self.cross_per_device_s * beyond_two
        return np.where(devices < 2, 0.0, np.where(devices > node_size, cross, local))


@dataclass(frozen=True, kw_only=True)
class TableSpeed:
    """Measured rates: `tables[kind][k]` is the work per second on k devices of one kind; entry 0 is 0.

    Off the table's end the last entry holds: more devices do not help, nor hurt. Devices of several kinds run as if
    all were the slowest. `spread` multiplies the rate of a shape that uses more nodes than it needs.
    """

    tables: Mapping[str, tuple[float, ...]]
    spread: float = 1.0
    node_size: int = 0
    batch: int = 0

    def rate(self, shape: Shape, batch: int = 0) -> float:
        if len(shape) == 1:  # the one node that most jobs use; asked for more often than anything else
            [(kind, count)] = shape
            table = self.tables.get(kind, (0.0,))
            return table[min(count, len(table) - 1)]
        count = sum(n for _, n in shape)
        if not count or any(kind not in self.tables for kind, _ in shape):
            return 0.0
        rate = min(table[min(count, len(table) - 1)] for table in (self.tables[kind] for kind, _ in shape))
        scattered = self.node_size and len(shape) > -(-count // self.node_size)
        return rate * self.spread if scattered else rate

    def step_s(self, shape: Shape, batch: int = 0) -> float:
        rate = self.rate(shape, batch)
        return 1.0 / rate if rate > 0 else math.inf

    def best_batch(self, shape: Shape) -> int:
        return self.batch

    def rates(self, kind: str, max_devices: int, node_size: int) -> NDArray[np.float64]:
        table = np.asarray(self.tables.get(kind, (0.0,)))
        return table[np.minimum(np.arange(max_devices + 1), len(table) - 1)]


@dataclass(frozen=True, kw_only=True)
class LogicalWorkerSpeed:
    """A job of N logical workers on any devices; work is counted in steps.

    step_s = max over executors of share * turn_s[kind], with the best split, + communication(E, nodes)
    """

    num_logical_workers: int
    #: seconds of one logical worker's turn, by kind
    turn_s: Mapping[str, float]
    communication: Communication = field(default_factory=Communication)
    #: global batch, which no placement changes
    batch: int = 0
    _cache: dict[tuple[tuple[str, int], ...], float] = field(default_factory=dict, repr=False, compare=False)

    def step_s(self, shape: Shape, batch: int = 0) -> float:
        count = sum(n for _, n in shape)
        if not 0 < count <= self.num_logical_workers:
            return math.inf
        return self._turns_s(shape) + self.communication.seconds(count, len(shape))

    def rate(self, shape: Shape, batch: int = 0) -> float:
        return 1.0 / self.step_s(shape)

    def best_batch(self, shape: Shape) -> int:
        return self.batch

    def rates(self, kind: str, max_devices: int, node_size: int) -> NDArray[np.float64]:
        devices = np.arange(max_devices + 1)
        turns = -(-self.num_logical_workers // np.maximum(devices, 1)) * self.turn_s.get(kind, math.inf)
        steps = turns + self.communication.packed_seconds(max_devices, node_size)
        return np.where((devices > 0) & (devices <= self.num_logical_workers), 1.0 / steps, 0.0)

    def split(self, shape: Shape) -> tuple[int, ...]:
        """Logical workers per device, in the order of the shape."""
        return best_split(self.num_logical_workers, [self.turn_s[kind] for kind, n in shape for _ in range(n)])

    def _turns_s(self, shape: Shape) -> float:
        counts: dict[str, int] = {}
        for kind, n in shape:
            counts[kind] = counts.get(kind, 0) + n
        if any(kind not in self.turn_s for kind in counts):
            return math.inf
        if len(counts) == 1:
            [(kind, n)] = counts.items()
            return -(-self.num_logical_workers // n) * self.turn_s[kind]
        key = tuple(sorted(counts.items()))
        if key not in self._cache:
            self._cache[key] = _slowest_s(self.num_logical_workers, [(self.turn_s[kind], n) for kind, n in key])
        return self._cache[key]


def _slowest_s(num_logical_workers: int, groups: Sequence[tuple[float, int]]) -> float:
    """Seconds of the slowest executor under the best split over (seconds of a turn, devices) groups.

    As `planner.best_split` would have it, without dealing out the workers: the first time at which all devices together
    have had room for all turns. It begins where they would be done if turns could be divided, and where each has had
    one: no device goes without a worker.
    """
    at = max(num_logical_workers / sum(n / turn for turn, n in groups), *(turn for turn, _ in groups))
    # A hair more, so that share * turn / turn is not rounded below share.
    shares = [int(at * (1 + 1e-12) / turn) for turn, _ in groups]
    while sum(share * n for share, (_, n) in zip(shares, groups, strict=True)) < num_logical_workers:
        at = min((share + 1) * turn for share, (turn, _) in zip(shares, groups, strict=True))
        shares = [
            share + ((share + 1) * turn <= at * (1 + 1e-12)) for share, (turn, _) in zip(shares, groups, strict=True)
        ]
    return max(share * turn for share, (turn, _) in zip(shares, groups, strict=True))


@dataclass(frozen=True, kw_only=True)
class GoodputSpeed:
    """A job whose batch may change: Pollux's goodput. Work is counted in steps of the initial batch M0.

    gradient_s(m)  = fixed_s + per_sample_s * m                    one pass over m samples on one device
    step_s(M, E)   = passes * gradient_s(m) + communication(E)     m = M / (E * passes), at most `max_local_batch`
    efficiency(M)  = (noise_scale + M0) / (noise_scale + M)        progress per sample, relative to M0
    rate           = M / step_s * efficiency / M0
    """

    fixed_s: float
    per_sample_s: float
    communication: Communication = field(default_factory=Communication)
    #: gradient noise scale, in samples; infinite: every batch is as efficient, 0: a larger batch is wasted
    noise_scale: float = math.inf
    initial_batch: int
    min_batch: int = 0
    max_batch: int
    min_local_batch: int = 1
    max_local_batch: int
    #: False: a batch that does not fit the devices at once cannot run on them
    accumulates: bool = True
    #: relative speed by kind; kinds not named run at 1
    kind_factor: Mapping[str, float] = field(default_factory=dict)
    #: the most devices that costs were measured on; None if they are known throughout
    proven_devices: int | None = 0

    def step_s(self, shape: Shape, batch: int = 0) -> float:
        count = sum(n for _, n in shape)
        if not count:
            return math.inf
        total = batch or self.best_batch(shape)
        passes, local = self._division(np.array([float(total)]), np.array([count]))
        if passes[0] > 1 and not self.accumulates:
            return math.inf
        slowest = min(self.kind_factor.get(kind, 1.0) for kind, _ in shape)
        gradient_s = (self.fixed_s + self.per_sample_s * float(local[0])) / slowest
        return float(passes[0]) * gradient_s + self.communication.seconds(count, len(shape))

    def rate(self, shape: Shape, batch: int = 0) -> float:
        if not shape:
            return 0.0
        total = batch or self.best_batch(shape)
        if not total:
            return 0.0
        return total / self.step_s(shape, total) * float(self._efficiency(total)) / self.initial_batch

    def best_batch(self, shape: Shape) -> int:
        count = sum(n for _, n in shape)
        sync = np.array([self.communication.seconds(count, len(shape))])
        _, batches = self._optimise(np.array([count]), sync, min(self.kind_factor.get(kind, 1.0) for kind, _ in shape))
        return int(batches[0])

    def rates(self, kind: str, max_devices: int, node_size: int) -> NDArray[np.float64]:
        key = (kind, max_devices, node_size)
        if key not in self._rates:
            sync = self.communication.packed_seconds(max_devices, node_size)[1:]
            devices = np.arange(1, max_devices + 1)
            rates, _ = self._optimise(devices, sync, self.kind_factor.get(kind, 1.0))
            self._rates[key] = np.concatenate([[0.0], rates])
        return self._rates[key]

    @cached_property
    def _rates(self) -> dict[tuple[str, int, int], NDArray[np.float64]]:
        return {}

    def _optimise(
        self, devices: NDArray[np.int64], sync: NDArray[np.float64], factor: float
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Best rate and batch for each number of devices, over batches spaced evenly on a logarithmic scale."""
        low = np.maximum(self.min_batch or self.initial_batch, self.min_local_batch * devices)
        possible = low <= self.max_batch
        low = np.minimum(low, self.max_batch).astype(np.float64)
        batches = np.round(low * (self.max_batch / low) ** np.linspace(0, 1, _NUM_BATCHES)[:, None])
        passes, local = self._division(batches, devices)
        total = devices * passes * local
        step = passes * (self.fixed_s + self.per_sample_s * local) / factor + sync
        possible = possible & (total <= self.max_batch * 1.01) & (self.accumulates | (passes <= 1))
        goodput = np.where(possible, total / step * self._efficiency(total), 0.0)
        best = np.argmax(goodput, axis=0)
        columns = np.arange(len(devices))
        rates = goodput[best, columns] / self.initial_batch
        return rates, np.where(rates > 0, total[best, columns], 0).astype(np.int64)

    def _division(
        self, batch: NDArray[np.float64], devices: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Passes per device and samples per pass; samples are whole, so the batch is rounded up to a multiple."""
        share = np.ceil(batch / devices - 1e-8)
        passes = np.maximum(np.ceil(share / self.max_local_batch - 1e-8), 1.0)
        # The noise scale is measured between gradients: a single one cannot tell it, so one device accumulates two.
        if self.accumulates:
            passes = np.where((devices == 1) & (batch > self.initial_batch), np.maximum(passes, 2.0), passes)
        return passes, np.ceil(share / passes - 1e-8)

    def _efficiency(self, batch: float | NDArray[np.float64]) -> NDArray[np.float64]:
        if math.isinf(self.noise_scale):
            return np.ones_like(np.asarray(batch, dtype=np.float64))
        return np.asarray((self.noise_scale + self.initial_batch) / (self.noise_scale + np.asarray(batch)))

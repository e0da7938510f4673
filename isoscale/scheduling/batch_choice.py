"""Devices and batch size for one job, from measured speeds: what Effective Elastic Scaling's autoscaler would choose.

The value of k devices is the scaling factor T(k) = max over batches b of rate(k, b) / max over b of rate(1, b), the
table that the dynamic program (`scheduling.autoscaler`) takes. A rate is samples per second; with a noise scale phi it
is Pollux's goodput, samples times (phi + B0) / (phi + B), where B0 is the smallest batch of all logical workers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from isoscale.errors import UserError
from isoscale.scheduling.autoscaler import allocate
from isoscale.scheduling.fit import checked_profile

__all__ = ["BatchOption", "choice_of", "options_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOption:
    devices: int
    #: of one logical worker
    batch: int
    samples_per_s: float
    #: samples per second, times what a sample is worth at this batch
    rate: float
    #: T of this option: its rate over the best one of a single device
    factor: float


def options_of(profile: Mapping[str, Any], kind: str, most: int, noise_scale: float | None = None) -> list[BatchOption]:
    """Every measured pair of up to `most` devices of one kind and a batch size. Raises UserError."""
    workers, points = checked_profile(profile, "PROFILE")
    rates: dict[tuple[int, int], float] = {}
    for point in points:
        if set(point["devices"]) == {kind} and sum(point["devices"].values()) <= most:
            key = (sum(point["devices"].values()), int(point["batch"]))
            rates[key] = max(rates.get(key, 0.0), float(point["samples_per_s"]))
    if not any(count == 1 for count, _ in rates):
        raise UserError(
            field="--devices",
            value=f"{kind}*{most}",
            problem=f"the profile has no point of one {kind}, which others are held against",
            remedy="measure it: isoscale profile SCRIPT --workers N --batches ...",
        )
    least = min(batch for _, batch in rates) * workers
    worth = {key: rate * _efficiency(key[1] * workers, least, noise_scale) for key, rate in rates.items()}
    alone = max(rate for (count, _), rate in worth.items() if count == 1)
    return [
        BatchOption(devices=key[0], batch=key[1], samples_per_s=rates[key], rate=rate, factor=rate / alone)
        for key, rate in sorted(worth.items())
    ]


def choice_of(options: Sequence[BatchOption], most: int) -> BatchOption:
    """The option with the highest factor on at most so many devices; of equal ones that with the fewest."""
    table = np.full(most + 1, -np.inf)
    for option in options:
        table[option.devices] = max(table[option.devices], option.factor)
    chosen = allocate([table], most)
    assert chosen is not None
    return max((one for one in options if one.devices == chosen[0]), key=lambda one: (one.factor, -one.batch))


def _efficiency(batch: int, least: int, noise_scale: float | None) -> float:
    return 1.0 if noise_scale is None else (noise_scale + least) / (noise_scale + batch)

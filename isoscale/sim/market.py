"""Devices that are rented by the hour: prices that wander, and devices that are taken back when many want them.

Of each kind, every `step_s` seconds:

    x   a mean-reverting walk (Ornstein-Uhlenbeck) of standard deviation `volatility`, forgotten over `relax_s`
    price  = min(on demand, discount * on demand * exp(x - volatility^2 / 2))         dollars for a device and an hour
    taken  = nodes, the last first, in proportion to how far x lies above `scarce` standard deviations; all at one more

so devices are taken when prices are high. Whoever rents them is told `notice_s` before. Devices that no job holds are
not rented and cost nothing. Generated, not recorded: the shape of public spot histories, no provider's prices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from isoscale import limits
from isoscale.errors import UserError
from isoscale.scheduling.state import Cluster
from isoscale.sim.disturbances import Lending

__all__ = ["PriceStep", "SpotMarket", "dollars", "parse_market", "price_steps", "takings"]

#: from this time on, dollars for a device of each kind and an hour
PriceStep = tuple[float, Mapping[str, float]]

_NUMBERS = limits.Range(0.0, 1e9)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotMarket:
    #: dollars for a device of each kind and an hour, on demand; the ceiling
    on_demand: Mapping[str, float]
    discount: float = 0.35
    volatility: float = 0.4
    relax_s: float = 4 * 3600.0
    scarce: float = 1.5
    notice_s: float = 120.0
    step_s: float = 300.0
    seed: int = 0


def parse_market(text: str, *, field: str = "--market") -> SpotMarket:
    """`V100=2.5,T4=0.5`, with changes if wanted: `V100=2.5,T4=0.5:volatility=0.6,notice_s=30`."""
    kinds, _, rest = text.partition(":")
    made = SpotMarket(on_demand=_numbers(kinds, text, field))
    if not made.on_demand:
        raise UserError(field=field, value=text, problem="names no kind", remedy="give KIND=DOLLARS,KIND=DOLLARS")
    names = [one.name for one in fields(SpotMarket) if one.name not in ("on_demand", "seed")]
    changes = _numbers(rest, text, field)
    for name, value in changes.items():
        if name not in names or (name.endswith("_s") and name != "notice_s" and value <= 0):
            known = f"it has {', '.join(names)}; times above 0"
            raise UserError(field=field, value=text, problem=f"{name}={value:g} is no setting", remedy=known)
    # Keywords of a frozen dataclass: mypy cannot see that the keys were checked above.
    return replace(made, **changes)  # type: ignore[arg-type]


def _numbers(text: str, whole: str, field: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for part in filter(None, text.split(",")):
        name, equals, value = part.partition("=")
        if not equals or not name:
            raise UserError(field=field, value=whole, problem=f"{part!r} is not NAME=NUMBER", remedy="give T4=0.5")
        found[name.strip()] = limits.decimal(value, field, _NUMBERS, part_of=whole)
    return found


def price_steps(market: SpotMarket, cluster: Cluster, until_s: float) -> list[PriceStep]:
    """Prices of the cluster's kinds from 0 to `until_s`. Raises UserError if a kind has none."""
    missing = [kind for kind in cluster.kinds if kind not in market.on_demand]
    if missing:
        raise UserError(
            field="--market", value=missing[0], problem="the cluster has this kind", remedy="give its price, too"
        )
    walks = _walks(market, cluster, until_s)
    level = np.minimum(1.0, market.discount * np.exp(walks - market.volatility**2 / 2))
    prices = level * np.array([[market.on_demand[kind]] for kind in cluster.kinds])
    return [
        (number * market.step_s, dict(zip(cluster.kinds, now.tolist(), strict=True)))
        for number, now in enumerate(prices.T)
    ]


def takings(market: SpotMarket, cluster: Cluster, until_s: float) -> list[Lending]:
    """Whole nodes that are taken and come back: changes only."""
    walks = _walks(market, cluster, until_s)
    above = walks / max(market.volatility, 1e-9) - market.scarce
    share = np.clip(above, 0.0, 1.0) if market.volatility else np.zeros_like(walks)
    found: list[Lending] = []
    for kind, shares in zip(cluster.kinds, share, strict=True):
        nodes = cluster.nodes_of[kind]
        kept = (len(nodes) - np.ceil(shares * len(nodes))).astype(int).tolist()
        before = len(nodes)
        for number, count in enumerate(kept):
            for place in range(min(before, count), max(before, count)):
                node = nodes[place]
                devices = cluster.nodes[node].num_devices if count > before else 0
                found.append(Lending(number * market.step_s, node, devices))
            before = count
    return sorted(found, key=lambda one: one.t)


def _walks(market: SpotMarket, cluster: Cluster, until_s: float) -> NDArray[np.float64]:
    """[kind, step]; each kind has draws of its own, whatever other kinds there are."""
    steps = math.ceil(until_s / market.step_s) + 1
    keep = math.exp(-market.step_s / market.relax_s)
    walks = np.zeros((len(cluster.kinds), steps))
    for row, kind in zip(walks, cluster.kinds, strict=True):
        draws = np.random.default_rng([market.seed, 23, *kind.encode()]).normal(size=steps)
        at = market.volatility * draws[0]
        for number, draw in enumerate(draws.tolist()):
            row[number] = at
            at = keep * at + market.volatility * math.sqrt(1.0 - keep * keep) * draw
    return walks


def dollars(rented: Sequence[tuple[int, float, float, str, int]], prices: Sequence[PriceStep]) -> dict[int, float]:
    """What each job paid: (job, from, to, kind, devices) at the prices of the time.

    >>> dollars([(7, 0.0, 5400.0, "T4", 2)], [(0.0, {"T4": 1.0}), (3600.0, {"T4": 3.0})])
    {7: 5.0}
    """
    if not prices:
        return {}
    times = np.array([at for at, _ in prices])
    paid: dict[int, float] = {}
    # Dollars for one device from the first price to each later one, and on beyond the last at its price.
    sums = {
        kind: np.concatenate([[0.0], np.cumsum(np.diff(times) * [now[kind] for _, now in prices[:-1]])])
        for kind in prices[0][1]
    }

    def until(kind: str, at: float) -> float:
        step = max(0, int(np.searchsorted(times, at, side="right")) - 1)
        return float(sums[kind][step] + (at - times[step]) * prices[step][1][kind])

    for job, begin, end, kind, count in rented:
        paid[job] = paid.get(job, 0.0) + count * (until(kind, end) - until(kind, begin)) / 3600.0
    return paid

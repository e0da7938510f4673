"""What a job's work is worth when the sum of completion times is to be smallest.

Malleable jobs j = 1..J with remaining work r_j and rates s_j(k) share K devices. Charging one unit per unfinished job
and second, optimal control (Pontryagin) says: at every moment devices maximise

    sum_j w_j s_j(k_j)                                  with constant weights w_j, one per job, and
    max_k sum over unfinished j of w_j s_j(k_j) = number of unfinished jobs.

So if jobs finish in the order J, ..., 1, the weights follow one by one, from the last to finish:

    w_m = min_k (m - F_{m-1}(K - k)) / s_m(k),          F_m(k) = max_g F_{m-1}(k - g) + w_m s_m(g),  F_0 = 0.

For s(k) = k^p this is heSRPT (Berg, Vesilo, Harchol-Balter 2020), which is optimal; for one device it is SRPT. The
order is assumed to be that of the time each job would need alone. Arrivals are not foreseen: weights are worked out
anew whenever the set of jobs changes. Where F has too many entries, its slope at K, the price of a device, stands in:
w_m = min_k (1 + price * k) / s_m(k).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["flow_weights", "flow_weights_by_price"]

Table = NDArray[np.float64]

# Entries of all F together beyond which prices stand in for them: some 10 ms of work.
_EXACT_ENTRIES = 4_000_000


def flow_weights(tables: Sequence[Table], remaining: Sequence[float], num_devices: int) -> NDArray[np.float64]:
    """The weight of each job; 0 for one that cannot run. `tables[j][k]` is its rate on k devices, entry 0 is 0.

    >>> root = np.sqrt(np.arange(5))
    >>> flow_weights([root, root], [1.0, 9.0], 4).round(3).tolist()   # heSRPT: 3 devices and 1
    [0.866, 0.5]
    """
    widest = max((len(table) for table in tables), default=0)
    if len(tables) * num_devices * widest > _EXACT_ENTRIES:
        return flow_weights_by_price(tables, remaining, num_devices)
    weights = np.zeros(len(tables))
    best = np.zeros(num_devices + 1)
    for rank, j in enumerate(_last_first(tables, remaining), start=1):
        table = tables[j][: num_devices + 1]
        able = np.flatnonzero(table > 0)
        weights[j] = ((rank - best[num_devices - able]) / table[able]).min()
        padded = np.concatenate([np.full(len(table) - 1, -np.inf), best])
        shifted = np.lib.stride_tricks.sliding_window_view(padded, num_devices + 1)[::-1]
        best = (shifted + (weights[j] * table)[:, None]).max(axis=0)
    return weights


def flow_weights_by_price(tables: Sequence[Table], remaining: Sequence[float], num_devices: int) -> NDArray[np.float64]:
    """The same by prices: exact while devices are plenty, near it while no job holds a large part of them."""
    weights = np.zeros(len(tables))
    gains: list[float] = []  # a heap of the `num_devices` largest gains of one more device so far
    for j in _last_first(tables, remaining):
        table = tables[j][: num_devices + 1]
        able = np.flatnonzero(table > 0)
        price = max(0.0, gains[0]) if len(gains) >= num_devices else 0.0
        weights[j] = ((1.0 + price * able) / table[able]).min()
        # Sizes that no set of devices has (several kinds) are worth what the next smaller one is.
        own = np.diff(np.maximum.accumulate(table[: int(table.argmax()) + 1])) * weights[j]
        own = np.minimum.accumulate(np.cumsum(own) / np.arange(1, len(own) + 1)) if own[0] <= 0 else own
        for gain in own.tolist():
            if len(gains) < num_devices:
                heapq.heappush(gains, gain)
            elif gain > gains[0]:
                heapq.heapreplace(gains, gain)
    return weights


def _last_first(tables: Sequence[Table], remaining: Sequence[float]) -> list[int]:
    """Jobs that can run, the one that would take longest alone first; ties in the order given."""
    fastest = [float(table.max(initial=0.0)) for table in tables]
    able = [j for j in range(len(tables)) if fastest[j] > 0]
    return sorted(able, key=lambda j: -remaining[j] / fastest[j])

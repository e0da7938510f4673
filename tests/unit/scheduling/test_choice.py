"""Mixed kinds: options against all device sets, the exact choice against all choices, weights against theory."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isoscale.scheduling.choice import Choices, choose
from isoscale.scheduling.flowtime import flow_weights, flow_weights_by_price
from isoscale.scheduling.objectives import efficient_only, option_values, sizes_of
from isoscale.scheduling.options import DeviceOptions, device_options
from isoscale.scheduling.state import JobRequest
from isoscale.scheduling.throughput import Communication, LogicalWorkerSpeed
from tests.unit.scheduling.rounds import cluster_of

CLUSTER = cluster_of(("V100", 1, 4), ("T4", 1, 3))
CAPACITY = {"V100": 4, "T4": 3}


@given(st.integers(1, 7), st.floats(0.2, 2), st.floats(0.2, 2), st.sampled_from([0.0, 0.05]), st.booleans())
def test_no_set_that_was_left_out_is_better(
    workers: int, fast: float, slow: float, exchange: float, mixes: bool
) -> None:
    speed = LogicalWorkerSpeed(
        num_logical_workers=workers,
        turn_s={"V100": fast, "T4": slow},
        communication=Communication(local_fixed_s=exchange, cross_fixed_s=2 * exchange),
    )
    request = JobRequest(
        name="a", submitted_s=0, requested_devices=1, max_devices=workers, kinds=("V100", "T4"), mixes_kinds=mixes
    )
    options = device_options(CLUSTER, CAPACITY, request, speed)
    assert options.counts[0].tolist() == [0, 0]
    assert options.index_of([9, 9]) == -1
    for v, t in itertools.product(range(5), range(4)):
        if not 0 < v + t <= workers or (v and t and not mixes):
            continue
        shape = tuple((kind, n) for kind, n in (("V100", v), ("T4", t)) if n)
        within = (options.counts <= [v, t]).all(axis=1)
        assert options.rates[within].max() >= speed.rate(shape) * (1 - 1e-9)
    for counts, rate in zip(options.counts[1:].tolist(), options.rates[1:].tolist(), strict=True):
        shape = tuple((kind, n) for kind, n in zip(("V100", "T4"), counts, strict=True) if n)
        assert speed.rate(shape) == pytest.approx(rate)


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_the_choice_is_the_best_of_all(seed: int) -> None:
    rng = np.random.default_rng(seed)
    capacity = rng.integers(1, 5, size=2)
    jobs = []
    for _ in range(int(rng.integers(1, 5))):
        counts = np.concatenate([[[0, 0]], rng.integers(0, 4, size=(int(rng.integers(1, 5)), 2))])
        jobs.append(Choices(counts, np.concatenate([[0.0], rng.integers(0, 9, size=len(counts) - 1).astype(float)])))
    chosen, exact = choose(jobs, capacity.tolist())
    best = max(
        sum(job.values[i] for job, i in zip(jobs, rows, strict=True))
        for rows in itertools.product(*(range(len(job.values)) for job in jobs))
        if (sum(job.counts[i] for job, i in zip(jobs, rows, strict=True)) <= capacity).all()
    )
    assert exact
    assert (sum(job.counts[i] for job, i in zip(jobs, chosen, strict=True)) <= capacity).all()
    assert sum(job.values[i] for job, i in zip(jobs, chosen, strict=True)) == pytest.approx(best)
    rough, proven = choose(jobs, capacity.tolist(), budget=0)
    assert (sum(job.counts[i] for job, i in zip(jobs, rough, strict=True)) <= capacity).all()
    assert not proven or sum(job.values[i] for job, i in zip(jobs, rough, strict=True)) == pytest.approx(best)


def crowded(seed: int) -> tuple[list[Choices], list[int]]:
    """Twenty jobs like each other on three kinds that have room for half of them."""
    rng = np.random.default_rng(seed)
    rows = np.concatenate(
        [[[0, 0, 0]], *(np.eye(3, dtype=np.int64)[kind] * np.arange(1, 5)[:, None] for kind in range(3))]
    )
    speeds = np.array([3.0, 2.0, 1.0]) * rng.uniform(0.9, 1.1, size=(20, 3))
    return [Choices(rows, (rows**0.7) @ speed) for speed in speeds], [8, 10, 12]


def worth(jobs: list[Choices], rows: Sequence[int]) -> float:
    return float(sum(job.values[row] for job, row in zip(jobs, rows, strict=True)))


def test_where_it_is_not_exact_few_jobs_move() -> None:
    """In the next round jobs are worth up to a fifth more or less, and changing costs a twentieth."""
    moved_anew = moved = 0
    for seed in range(8):
        jobs, capacity = crowded(seed)
        held, exact = choose(jobs, capacity, budget=0)
        assert not exact
        rng = np.random.default_rng(seed + 100)
        later = []
        for job, row in zip(jobs, held, strict=True):
            values = job.values * rng.uniform(0.8, 1.2) * np.where(np.arange(len(job.values)) == row, 1.0, 0.95)
            later.append(Choices(job.counts, values, row or -1))
        anew, _ = choose([Choices(job.counts, job.values) for job in later], capacity, budget=0)
        kept, _ = choose(later, capacity, budget=0)
        assert (sum(job.counts[row] for job, row in zip(later, kept, strict=True)) <= capacity).all()
        assert worth(later, kept) >= max(worth(later, anew), worth(later, held)) - 1e-9
        moved_anew += sum(a != b for a, b in zip(anew, held, strict=True))
        moved += sum(a != b for a, b in zip(kept, held, strict=True))
    assert moved < moved_anew / 2, (moved, moved_anew)


def test_what_jobs_hold_and_no_longer_fits_is_no_beginning() -> None:
    jobs, capacity = crowded(0)
    held, _ = choose(jobs, capacity, budget=0)
    fewer = [capacity[0] - 5, *capacity[1:]]
    kept, _ = choose(
        [Choices(job.counts, job.values, row) for job, row in zip(jobs, held, strict=True)], fewer, budget=0
    )
    assert kept == choose(jobs, fewer, budget=0)[0]


def test_weights_reproduce_hesrpt() -> None:
    """Berg et al.: with s(k) = k^p the m-th largest of M jobs gets (m/M)^(1/(1-p)) - ((m-1)/M)^(1/(1-p)) of all."""
    num_devices, num_jobs, p = 400, 4, 0.5
    table = np.arange(num_devices + 1) ** p
    weights = flow_weights([table] * num_jobs, [8.0, 4.0, 2.0, 1.0], num_devices)
    shares = weights ** (1 / (1 - p)) / (weights ** (1 / (1 - p))).sum()
    theory = np.diff((np.arange(num_jobs + 1) / num_jobs) ** (1 / (1 - p)))
    assert shares == pytest.approx(theory, rel=0.01)


def test_weights_of_one_device_are_shortest_first() -> None:
    table = np.array([0.0, 1.0])
    weights = flow_weights([table] * 3, [5.0, 1.0, 3.0], 1)
    assert weights[1] > weights[2] > weights[0] > 0


def test_prices_come_near_the_exact_weights() -> None:
    rng = np.random.default_rng(1)
    tables = [np.arange(17.0) ** rng.uniform(0.5, 0.9) for _ in range(40)]
    remaining = rng.exponential(100, size=40).tolist()
    exact = flow_weights(tables, remaining, 64)
    rough = flow_weights_by_price(tables, remaining, 64)
    assert np.corrcoef(np.log(exact), np.log(rough))[0, 1] > 0.98
    assert np.median(np.abs(rough / exact - 1)) < 0.2


def test_a_job_that_cannot_run_is_worth_nothing() -> None:
    weights = flow_weights([np.zeros(1), np.array([0.0, 2.0])], [1.0, 1.0], 4)
    assert weights.tolist() == [0.0, 0.5]


def one_kind(*rates: float) -> DeviceOptions:
    return DeviceOptions(counts=np.arange(len(rates) + 1)[:, None], rates=np.array([0.0, *rates]))


def test_objectives_prefer_different_options() -> None:
    short, long = one_kind(1.0, 1.5, 1.8), one_kind(1.0, 1.9, 2.7)
    sizes = sizes_of([short, long])

    def best(objective: str) -> tuple[int, int]:
        values, _ = option_values(objective, [short, long], sizes, [10.0, 300.0], 3)  # type: ignore[arg-type]
        pairs = [(a, b) for a in range(4) for b in range(4) if a + b <= 3]
        return max(pairs, key=lambda pair: values[0][pair[0]] + values[1][pair[1]])

    assert best("jct") == (2, 1)
    assert best("makespan") in [(0, 3), (1, 2)]
    assert best("throughput") == (1, 2)
    assert efficient_only(short, sizes[0]).counts[:, 0].tolist() == [0, 1]
    assert efficient_only(long, sizes[1]).counts[:, 0].tolist() == [0, 1, 2, 3]


def test_sizes_exchange_kinds_by_their_speed() -> None:
    mixed = DeviceOptions(counts=np.array([[0, 0], [1, 0], [0, 1], [1, 1]]), rates=np.array([0, 2.0, 1.0, 2.5]))
    assert sizes_of([mixed])[0].tolist() == [0.0, 1.0, 0.5, 1.5]

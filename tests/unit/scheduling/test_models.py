"""Speed models against their equations, and fits that must find the numbers they were made from."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isoscale.errors import UserError
from isoscale.scheduling.fit import StepPoint, fit_communication, fit_goodput, from_live_speeds, from_profile
from isoscale.scheduling.planner import best_split, split_seconds
from isoscale.scheduling.state import packed_shape
from isoscale.scheduling.throughput import (
    Communication,
    GoodputSpeed,
    LogicalWorkerSpeed,
    TableSpeed,
    trusted_devices,
)

RING = Communication(local_fixed_s=0.1, local_per_device_s=0.01, cross_fixed_s=0.3, cross_per_device_s=0.02)
WORKERS = LogicalWorkerSpeed(num_logical_workers=8, turn_s={"V100": 0.5, "T4": 1.0}, communication=RING)
GOODPUT = GoodputSpeed(
    fixed_s=0.1,
    per_sample_s=0.01,
    communication=RING,
    noise_scale=256.0,
    initial_batch=32,
    max_batch=1024,
    max_local_batch=64,
)


def test_communication_by_size_and_locality() -> None:
    assert [RING.seconds(n, 1) for n in (0, 1, 2, 4)] == [0, 0, 0.1, pytest.approx(0.12)]
    assert RING.seconds(6, 2) == pytest.approx(0.3 + 0.02 * 4)
    packed = RING.packed_seconds(6, 4)
    assert packed.tolist() == pytest.approx([RING.seconds(n, -(-n // 4)) for n in range(7)])


def test_logical_workers_step_is_slowest_share_plus_exchange() -> None:
    assert WORKERS.step_s((("T4", 3),)) == pytest.approx(3 * 1.0 + RING.seconds(3, 1))
    mixed = WORKERS.step_s((("V100", 2), ("T4", 1)))
    turns = [0.5, 0.5, 1.0]
    assert mixed == pytest.approx(split_seconds(best_split(8, turns), turns) + RING.seconds(3, 2))
    assert sorted(WORKERS.split((("V100", 2), ("T4", 1)))) == [2, 3, 3]
    assert WORKERS.rate((("T4", 9),)) == 0.0
    assert WORKERS.rate(()) == 0.0
    assert WORKERS.rate((("K80", 1),)) == 0.0


@given(st.sampled_from(["V100", "T4"]), st.integers(0, 12), st.integers(1, 5))
def test_rate_tables_agree_with_single_rates(kind: str, most: int, node_size: int) -> None:
    for model in (WORKERS, GOODPUT):
        table = model.rates(kind, most, node_size)
        single = [model.rate(packed_shape(kind, k, node_size)) for k in range(most + 1)]
        assert table.tolist() == pytest.approx(single)


def test_goodput_is_throughput_times_efficiency() -> None:
    shape = (("T4", 2),)
    step_s = 0.1 + 0.01 * 32 + RING.seconds(2, 1)
    assert GOODPUT.step_s(shape, 64) == pytest.approx(step_s)
    assert GOODPUT.rate(shape, 64) == pytest.approx(64 / step_s * (256 + 32) / (256 + 64) / 32)
    # 256 samples on two devices are two passes of 64 each.
    assert GOODPUT.step_s(shape, 256) == pytest.approx(2 * (0.1 + 0.64) + RING.seconds(2, 1))
    best = GOODPUT.best_batch(shape)
    assert all(GOODPUT.rate(shape, best) >= 0.98 * GOODPUT.rate(shape, b) for b in range(32, 1024, 16))


def test_noise_decides_the_batch() -> None:
    quiet = GoodputSpeed(fixed_s=0.1, per_sample_s=0.01, noise_scale=0.0, initial_batch=32, max_batch=1024,
                         max_local_batch=64)  # fmt: skip
    noisy = GoodputSpeed(fixed_s=0.1, per_sample_s=0.01, noise_scale=1e9, initial_batch=32, max_batch=1024,
                         max_local_batch=64)  # fmt: skip
    shape = (("T4", 8),)
    assert quiet.best_batch(shape) == 32
    assert noisy.best_batch(shape) > 256


def test_tables_end_where_they_were_measured() -> None:
    model = TableSpeed(tables={"T4": (0.0, 1.0, 1.8), "V100": (0.0, 3.0)}, spread=0.5, node_size=2)
    assert model.rate((("T4", 2),)) == 1.8
    assert model.rate((("T4", 1), ("T4", 1))) == 0.9
    assert model.rate((("T4", 2), ("T4", 2))) == 1.8
    assert model.rate((("T4", 1), ("V100", 1))) == 0.9
    assert model.rate((("K80", 1),)) == 0.0
    assert math.isinf(model.step_s(()))
    assert model.rates("T4", 4, 2).tolist() == [0.0, 1.0, 1.8, 1.8, 1.8]


def test_how_far_a_model_is_trusted() -> None:
    assert trusted_devices(WORKERS) == 0
    assert trusted_devices(GOODPUT) == 1
    point = StepPoint(num_nodes=2, num_devices=5, local_batch=8, compute_s=1.0, exchange_s=0.1)
    assert trusted_devices(fit_goodput([point], GOODPUT)) == 10


def test_fits_find_what_made_the_points() -> None:
    points = [
        StepPoint(
            num_nodes=nodes,
            num_devices=devices,
            local_batch=batch,
            compute_s=GOODPUT.fixed_s + GOODPUT.per_sample_s * batch,
            exchange_s=RING.seconds(devices, nodes),
        )
        for nodes, devices, batch in [(1, 1, 16), (1, 2, 32), (1, 4, 64), (2, 6, 16), (4, 16, 32)]
    ]
    fitted = fit_goodput(points, GOODPUT)
    assert (fitted.fixed_s, fitted.per_sample_s) == (pytest.approx(0.1), pytest.approx(0.01))
    for devices, nodes in [(3, 1), (8, 2), (12, 3)]:
        assert fitted.communication.seconds(devices, nodes) == pytest.approx(RING.seconds(devices, nodes))


@given(st.lists(st.tuples(st.integers(2, 16), st.floats(0.001, 10)), min_size=1, max_size=6))
def test_fits_are_never_negative(points: list[tuple[int, float]]) -> None:
    fitted = fit_communication(
        [StepPoint(num_nodes=1, num_devices=n, local_batch=1, compute_s=1.0, exchange_s=s) for n, s in points]
    )
    assert min(fitted.local_fixed_s, fitted.local_per_device_s) >= 0
    assert fitted.seconds(4, 2) >= fitted.seconds(4, 1)


def profile(*points: dict[str, object]) -> dict[str, object]:
    return {"format": 1, "workers": 8, "points": list(points)}


def test_a_profile_becomes_a_model() -> None:
    model = from_profile(
        profile(
            {"devices": {"cpu": 1}, "split": [8], "batch": 4, "step_s": 8.0, "exchange_s": 0.0},
            {"devices": {"cpu": 2}, "split": [4, 4], "batch": 4, "step_s": 4.2, "exchange_s": 0.2},
            {"devices": {"cpu": 4}, "split": [2] * 4, "batch": 4, "step_s": 2.4, "exchange_s": 0.4},
            {"devices": {"cpu": 1, "slow": 1}, "split": [6, 2], "batch": 4, "step_s": 6.2, "exchange_s": 0.2},
        )
    )
    assert model.turn_s["cpu"] == pytest.approx(1.0)
    assert model.turn_s["slow"] == pytest.approx(3.0)
    assert model.step_s((("cpu", 4),)) == pytest.approx(2.4, rel=0.02)
    assert model.batch == 32
    faster = from_live_speeds(model, {"cpu": [0.4, 0.5, 0.9]}, 0.8, 4)
    assert faster.turn_s["cpu"] == 0.5
    assert faster.step_s((("cpu", 4),)) == pytest.approx(1.0 + 0.8)


@pytest.mark.parametrize(
    "bad",
    [
        {},
        {"format": 2},
        profile(),
        profile({"devices": {"cpu": 1}, "split": [7], "step_s": 1.0, "exchange_s": 0.0}),
        profile({"devices": {"cpu": 2}, "split": [8], "step_s": 1.0, "exchange_s": 0.0}),
        profile({"devices": {"cpu": 1}, "split": [8], "step_s": 1.0, "exchange_s": 2.0}),
        profile({"devices": {"cpu": 1}, "split": [8]}),
    ],
)
def test_profiles_that_do_not_add_up_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(UserError) as caught:
        from_profile(bad)
    assert caught.value.field == "profile"


def test_rates_are_finite() -> None:
    assert np.isfinite(GOODPUT.rates("T4", 64, 4)).all()
    assert (GOODPUT.rates("T4", 64, 4)[1:] > 0).all()

"""Sides of a benchmark, compared round by round."""

from __future__ import annotations

import pytest

from benchmarks.lib.paired import Sample, compare


def block(noise: list[float], over: float, control: float = 1.0) -> dict[str, list[Sample]]:
    """Rounds in which the machine was slow or fast for all sides alike."""
    sides = {"a": 1.0, "b": over, "again": control}
    return {name: [Sample(2 * factor * n, factor * n) for n in noise] for name, factor in sides.items()}


def test_what_disturbs_whole_rounds_does_not_touch_the_ratio() -> None:
    found = compare([block([0.1, 0.2, 0.9, 0.1], 1.03), block([5.0, 0.3], 1.03)], "a", "b", "again")
    assert found.rounds == 6
    assert found.cpu.ratio == pytest.approx(1.03)
    assert found.wall.ratio == pytest.approx(1.03)
    assert found.cpu.control == pytest.approx(1.0)
    assert found.cpu.a_ms == pytest.approx(250.0)
    assert found.wall.a_ms == pytest.approx(500.0)


def test_a_target_is_met_as_far_as_the_control_can_tell() -> None:
    near = compare([block([0.1] * 8, 1.01, control=1.015)], "a", "b", "again")
    assert near.cpu.half_width == pytest.approx(0.015)
    assert near.meets(1.0)
    assert not compare([block([0.1] * 8, 1.01, control=1.005)], "a", "b", "again").meets(1.0)


def test_a_control_that_strays_from_round_to_round_is_as_wide_as_it_strays() -> None:
    rounds = {"a": [Sample(1.0, 1.0)] * 16, "b": [Sample(1.0, 1.0)] * 16}
    rounds["again"] = [Sample(1.0 + 0.1 * (-1) ** i, 1.0 + 0.1 * (-1) ** i) for i in range(16)]
    assert compare([rounds], "a", "b", "again").cpu.half_width > 0.05

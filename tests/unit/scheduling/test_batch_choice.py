"""Devices and batch size from a profile: the choice, and what others cost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from isoscale.errors import UserError
from isoscale.scheduling.batch_choice import choice_of, options_of
from tests.cli.in_process import printed, refusal


def profile(rates: dict[tuple[int, int], float]) -> dict[str, Any]:
    points = [
        {
            "devices": {"cpu": count},
            "split": [4 // count] * count,
            "batch": batch,
            "step_s": 4 * batch / rate,
            "exchange_s": 0.0,
            "samples_per_s": rate,
        }
        for (count, batch), rate in rates.items()
    ]
    return {"format": 1, "workers": 4, "points": points}


#: exchanges cost small batches most
RATES = {(1, 8): 100.0, (1, 32): 120.0, (2, 8): 130.0, (2, 32): 220.0, (4, 8): 120.0, (4, 32): 360.0}


def test_the_largest_factor_is_chosen_within_the_devices() -> None:
    options = options_of(profile(RATES), "cpu", 4)
    best = choice_of(options, 4)
    assert (best.devices, best.batch, best.factor) == (4, 32, 3.0)
    assert [round(one.factor, 3) for one in options] == [0.833, 1.0, 1.083, 1.833, 1.0, 3.0]
    two = options_of(profile(RATES), "cpu", 2)
    assert (choice_of(two, 2).devices, choice_of(two, 2).batch) == (2, 32)


def test_a_small_noise_scale_makes_large_batches_worth_less() -> None:
    """With a noise scale of 0 every sample beyond the smallest batch is worth nothing."""
    options = options_of(profile(RATES), "cpu", 4, noise_scale=0.0)
    best = choice_of(options, 4)
    assert (best.devices, best.batch) == (2, 8)
    huge = options_of(profile(RATES), "cpu", 4, noise_scale=1e12)
    assert choice_of(huge, 4).batch == 32


def test_ties_go_to_fewer_devices() -> None:
    options = options_of(profile({(1, 8): 100.0, (2, 8): 100.0}), "cpu", 2)
    assert choice_of(options, 2).devices == 1


def test_the_command_prints_the_choice_and_the_price_of_others(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(profile(RATES)))
    shown = printed("plan", "batch", path, "--devices", "cpu*4")
    assert "cpu*4 with batch size 32: 3.00 times one cpu." in shown
    assert "38.9%" in shown  # two devices at 32: 1.83 of 3
    found = json.loads(printed("plan", "batch", path, "--devices", "cpu*2", "--json"))
    assert (found["choice"]["devices"], found["choice"]["batch"]) == (2, 32)
    assert len(found["options"]) == 4


def test_mistakes(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    assert "cannot be read" in refusal("plan", "batch", path, "--devices", "cpu*4")
    path.write_text("[]")
    assert "not a profile" in refusal("plan", "batch", path, "--devices", "cpu*4")
    path.write_text(json.dumps(profile(RATES)))
    assert "several kinds" in refusal("plan", "batch", path, "--devices", "cpu*2+cpu-sse*1")
    assert "no point of one cpu-sse" in refusal("plan", "batch", path, "--devices", "cpu-sse*2")
    with pytest.raises(UserError, match="does not add up"):
        options_of({"format": 1, "workers": 4, "points": [{"devices": {"cpu": 1}}]}, "cpu", 1)

"""The McMisP recipe against stock DDP, with rescales just before, at and just after the steps that merge counts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]

ISOSCALE = str(Path(sys.executable).parent / "isoscale")
RECIPE = str(Path(__file__).parents[2] / "isoscale" / "recipes" / "mcmisp.py")
#: sentences of 15 steps; counts come into force after steps 4, 8 and 12
PROOF = ["--samples", "480", "--epochs", "1", "--warmup", "2", "--merge-every", "4", "--width", "16", "--heads", "2"]


@pytest.mark.parametrize("backbone", ["bert", "electra"])
@pytest.mark.parametrize(
    ("level", "plan"),
    [
        ("elastic", "0:1,3:3,8:2,13:4"),
        ("heterogeneous", "0:cpu*1,3:cpu*2+cpu-sse*1,8:cpu*1+cpu-sse*1,13:cpu*2+cpu-avx2*1+cpu-sse*1"),
    ],
)
def test_same_bits_when_executors_change_around_a_merge(backbone: str, level: str, plan: str, tmp_path: Path) -> None:
    options = ["--workers", "4", "--plan", plan, "--determinism", level, "--out", str(tmp_path / "v")]
    command = [ISOSCALE, "verify", RECIPE, *options, "--", "--backbone", backbone, *PROOF]
    done = subprocess.run(command, capture_output=True, text=True, timeout=590)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "equal: 1 -> 3 -> 2 -> 4 executors and stock DDP with 4 processes give the same bits" in done.stdout

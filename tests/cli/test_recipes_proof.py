"""benchmarks/recipes/proof.py with real processes, on the smallest recipe: one proof, kept, and not made twice."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from isoscale.kinds import host_capability

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        host_capability().isa not in ("avx2", "avx512"), reason="this CPU has no AVX2, so only one kind"
    ),
]

ROOT = Path(__file__).parents[2]


def prove(part: str, kept: Path) -> str:
    pytest.importorskip("sklearn")
    options = ["--only", "digits", "--part", part, "--out", str(kept)]
    command = [sys.executable, "-m", "benchmarks.recipes.proof", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_recipe_is_proven_once(tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    assert "1 of 1 proofs hold" in prove("elastic", kept)
    (row,) = json.loads(kept.read_text())["rows"]
    assert row["equal"] is True
    assert row["executors"] == [1, 3, 2, 4]
    assert row["steps"] >= 8
    assert "known: equal" in prove("elastic", kept)


def test_a_recipe_survives_two_deaths(tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    prove("chaos", kept)
    (row,) = json.loads(kept.read_text())["rows"]
    assert row["lost"] >= 2

"""`isoscale profile` with real processes: one run that scales in, its points, its picture."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]

ISOSCALE = str(Path(sys.executable).parent / "isoscale")
TINY = str(Path(__file__).parent / "scripts" / "tiny.py")


def profile(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([ISOSCALE, "profile", *arguments], capture_output=True, text=True, timeout=280)


def test_one_run_measures_every_number_of_executors(tmp_path: Path) -> None:
    out = tmp_path / "p"
    done = profile(TINY, "--workers", "2", "--batches", "2", "--steps", "6", "--out", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((out / "profile.json").read_text())
    assert (found["format"], found["workers"]) == (1, 2)
    assert [(p["devices"], p["split"], p["batch"]) for p in found["points"]] == [
        ({"cpu": 2}, [1, 1], 2),
        ({"cpu": 1}, [2], 2),
    ]
    assert all(0 <= p["exchange_s"] < p["step_s"] for p in found["points"])
    assert (out / "profile.png").read_bytes().startswith(b"\x89PNG")
    assert "cpu*2" in done.stdout
    runs = list(out.rglob("events.jsonl"))
    assert len(runs) == 1, "all points of a batch size come from one run"
    # 48 samples, 2 logical workers, batches of 2: without the override an epoch would have 6 steps.
    steps = [json.loads(line) for line in runs[0].read_text().splitlines() if '"step", ' in line]
    assert {e["epoch"] for e in steps} == {0}


def test_a_script_that_ends_too_early_is_told_so(tmp_path: Path) -> None:
    done = profile(TINY, "--workers", "2", "--executors", "1", "--steps", "50", "--out", str(tmp_path / "p"))
    assert done.returncode == 2
    assert "--steps=50: 1 points need 50 steps, and the script ended after 12" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batches", "8,x"], "--batches=8,x"),
        (["--batches", "0"], "--batches=0"),
        (["--executors", "3"], "--executors=3"),
        (["--out", str(Path(__file__).parent)], "not empty"),
    ],
)
def test_bad_input_exits_2_with_the_field(arguments: list[str], message: str) -> None:
    done = profile(TINY, "--workers", "2", *arguments)
    assert done.returncode == 2
    assert message in done.stderr

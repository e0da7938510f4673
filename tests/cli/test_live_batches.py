"""Batch sizes that change, held against real DDP processes that change their DataLoaders at the same steps."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.in_process import refusal

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]

ISOSCALE = str(Path(sys.executable).parent / "isoscale")
LIVE = str(Path(__file__).parent / "scripts" / "live_batch.py")


def isoscale(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([ISOSCALE, *arguments], capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize(
    ("plan", "arguments"),
    [
        ("0:2,5:8,9:4", ["--loaders", "2", "--persistent", "--rule", "own"]),
        ("3:8,5:2,10:4", ["--stream", "--buffer", "5", "--loaders", "1"]),
        ("5:8,8:2,20:4", ["--drop-last", "--sampler", "--rule", "sqrt"]),
    ],
    ids=["map", "stream", "drop"],
)
def test_a_plan_gives_the_bits_of_stock_ddp(plan: str, arguments: list[str], tmp_path: Path) -> None:
    changing = ["--workers", "3", "--plan", "0:1,7:3", "--batch-plan", plan]
    done = isoscale("verify", LIVE, *changing, "--out", str(tmp_path / "v"), "--", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "equal: 1 -> 3 executors and stock DDP with 3 processes give the same bits" in done.stdout
    assert "batch size" in done.stdout


def test_a_difference_after_a_change_is_explained(tmp_path: Path) -> None:
    options = ["--workers", "2", "--batch-plan", "3:8", "--until", "6", "--explain", "--out", str(tmp_path / "v")]
    done = isoscale("verify", LIVE, *options, "--", "--apart", "4")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "step 5" in done.stdout


def test_a_run_is_trained_again_and_other_options_are_refused(tmp_path: Path) -> None:
    first, again = str(tmp_path / "first"), str(tmp_path / "again")
    noise = ["--measure-noise", "2", "--batch-plan", "6:8,11:2", "--until", "14"]
    done = isoscale(
        "run", LIVE, "--workers", "3", "--executors", "2", *noise, "--out", first, "--", "--rule", "adascale"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    repeated = isoscale("run", LIVE, "--like", first, "--out", again)
    assert repeated.returncode == 0, repeated.stdout + repeated.stderr
    digests = {
        line.split("digest ")[1].split()[0]
        for d in (done, repeated)
        for line in d.stdout.splitlines()
        if "digest " in line
    }
    assert len(digests) == 1
    replayed = isoscale("replay", first, "--step", "13")
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    for option, value in (("--seed", "4"), ("--batch-plan", "6:4"), ("--workers", "2"), ("--until", "3")):
        assert option in refusal("run", LIVE, "--like", first, option, value, "--out", str(tmp_path / "no"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--batch-plan", "5:4,3:8"], "--batch-plan=5:4,3:8: step 3 does not come after 5"),
        (["--batch-plan", "nonsense"], "is not STEP:SIZE"),
        (["--measure-noise", "2", "--workers", "1"], "--measure-noise=2"),
    ],
)
def test_mistakes_are_told_before_anything_starts(arguments: list[str], said: str) -> None:
    assert said in refusal("run", LIVE, *arguments)

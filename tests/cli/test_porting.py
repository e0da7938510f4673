"""Three DDP scripts and what became of them: torchrun with 2 processes and isoscale with 2 logical workers agree."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from examples.porting.changed_lines import SCRIPTS, change_of

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(sys.executable).parent


def run(*command: str, cwd: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        [str(PROGRAMS / command[0]), *command[1:]],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def assert_equal_bits(before: Any, after: Any, where: str) -> int:
    """Of any nested state; how many tensors were compared."""
    if isinstance(before, torch.Tensor):
        assert before.dtype == after.dtype, where
        bits = [tensor.contiguous().view(-1).view(torch.uint8) for tensor in (before, after)]
        assert torch.equal(*bits), where
        return 1
    if isinstance(before, dict):
        assert before.keys() == after.keys(), where
        return sum(assert_equal_bits(before[key], after[key], f"{where}.{key}") for key in before)
    if isinstance(before, list | tuple):
        assert len(before) == len(after), where
        return sum(assert_equal_bits(*pair, f"{where}[{i}]") for i, pair in enumerate(zip(before, after, strict=True)))
    assert before == after, where
    return 0


def compare(name: str, directory: Path, *, executors: int, files: dict[str, str]) -> None:
    """`files`: what both sides leave, by the name before; the state of the optimizer is in the first."""
    scripts = ROOT / "examples" / "porting"
    run("torchrun", "--nproc-per-node", "2", f"{scripts}/{name}_before.py", "--out", "before.pt", cwd=directory)
    options = ["--workers", "2", "--executors", str(executors), "--out", "after"]
    run("isoscale", "run", f"{scripts}/{name}_after.py", *options, cwd=directory)
    for old, new in files.items():
        before, after = (torch.load(directory / path, weights_only=True) for path in (old, f"after/{new}"))
        shared = before.keys() & after.keys()
        assert shared >= ({"model", "optimizer"} if new == "final.pt" else before.keys())
        compared = sum(assert_equal_bits(before[key], after[key], f"{new}: {key}") for key in sorted(shared))
        assert compared > 10


def test_image_classification(tmp_path: Path) -> None:
    compare("imagenet", tmp_path, executors=1, files={"before.pt": "final.pt", "before.pt.best": "best.pt"})


def test_gpt(tmp_path: Path) -> None:
    compare("gpt", tmp_path, executors=2, files={"before.pt": "final.pt"})


def test_fine_tuning(tmp_path: Path) -> None:
    compare("finetune", tmp_path, executors=1, files={"before.pt": "final.pt", "before.pt.best": "best.pt"})


def test_changed_lines_are_counted_as_diff_counts_them() -> None:
    for name in SCRIPTS:
        sides = [str(ROOT / "examples" / "porting" / f"{name}_{side}.py") for side in ("before", "after")]
        lines = subprocess.run(["diff", "--minimal", *sides], capture_output=True, text=True).stdout.splitlines()
        one = change_of(name)
        # Whatever is paired with what, the difference between both files is the same.
        blank = [sum(not line for line in Path(side).read_text().splitlines()) for side in sides]
        assert one.before - blank[0] - one.removed == one.after - blank[1] - one.added
        assert one.removed >= sum(line.startswith("< ") and len(line) > 2 for line in lines) > 0
        assert one.added >= sum(line.startswith("> ") and len(line) > 2 for line in lines) > 0

"""Balanced pruning with real processes: executors change around a pruning, a job goes on from between two of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from isoscale.recipes.catalogue import find, path_of

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(240)]

ISOSCALE = str(Path(sys.executable).parent / "isoscale")
#: 10 steps; half of the weights go after step 3, more after step 6, the rest after step 9
PRUNING = ["--epochs", "2", "--samples", "320", "--prune-begin", "3", "--prune-every", "3", "--prune-stages", "3"]


def isoscale(command: str, recipe: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    whole = [ISOSCALE, command, str(path_of(find(recipe))), "--workers", "4", *arguments, "--", *PRUNING]
    done = subprocess.run(whole, capture_output=True, text=True, timeout=220)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_rescales_just_before_at_and_just_after_a_pruning(tmp_path: Path) -> None:
    done = isoscale("verify", "balanced_cnn", "--plan", "0:1,2:3,3:2,4:4", "--out", str(tmp_path / "run"))
    for change in ("step 2: 1 -> 3 executors", "step 3: 3 -> 2 executors", "step 4: 2 -> 4 executors"):
        assert change in done.stdout
    assert "and stock DDP with 4 processes give the same bits" in done.stdout


def test_a_job_resumed_between_prunings_keeps_its_masks(tmp_path: Path) -> None:
    isoscale("run", "balanced_cnn", "--executors", "1", "--out", str(tmp_path / "whole"))
    cut = ["--out", str(tmp_path / "cut"), "--checkpoint-every", "4"]
    # Ends between two prunings, on other executors than it goes on with.
    isoscale("run", "balanced_cnn", "--executors", "1", *cut, "--until", "5")
    between = torch.load(tmp_path / "cut" / "final.pt", weights_only=True)["pruner"]
    isoscale("run", "balanced_cnn", "--executors", "2", *cut, "--resume")
    digests = [json.loads((tmp_path / run / "summary.json").read_text())["digest"] for run in ("whole", "cut")]
    assert digests[0] == digests[1]
    whole, again = (torch.load(tmp_path / run / "final.pt", weights_only=True)["pruner"] for run in ("whole", "cut"))
    assert (between["stage"], whole["stage"], again["stage"]) == (1, 3, 3)
    for name, mask in whole["masks"].items():
        assert torch.equal(mask, again["masks"][name])
        assert not (mask & ~between["masks"][name]).any()
        assert (mask.reshape(-1, 20).sum(1) == 4).all()

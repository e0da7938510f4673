"""Jobs that are ended from outside: what the person at the run's terminal is told."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ISOSCALE = str(Path(sys.executable).parent / "isoscale")
SCRIPT = """
import time
import torch
from torch.utils.data import TensorDataset
import isoscale


def train(job):
    model = job.model(torch.nn.Linear(2, 1))
    optimizer = job.keep("optimizer", torch.optim.SGD(model.parameters(), lr=0.1))
    loader = job.loader(TensorDataset(torch.ones(16, 2)), batch_size=2)
    for _ in job.steps(10_000):
        for step in loader:
            for (x,) in step:
                model(x).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(0.1)


if __name__ == "__main__":
    isoscale.run(train)
"""


@pytest.mark.processes
@pytest.mark.timeout(300)
def test_a_job_that_was_stopped_was_not_interrupted(tmp_path: Path) -> None:
    with _training(tmp_path) as (process, run):
        live = json.loads(_isoscale("status", run, "--json"))
        assert live["state"] == "training"
        assert live["epoch"] is not None
        assert 'isoscale_executors{run="run",state="member"} 1' in _isoscale("status", run, "--metrics")
        told = _isoscale("stop", run)
        assert process.wait(timeout=200) == 130
    step = json.loads((run / "summary.json").read_text())["step"]
    assert told == f"stopped at step {step}, checkpoint checkpoints/step-{step:08d}.pt\n"
    told = (tmp_path / "told").read_text()
    assert f"isoscale: stopped on request at step {step}, after a checkpoint; isoscale resume {run} goes on\n" in told
    assert "interrupted" not in told
    assert json.loads(_isoscale("status", run, "--json"))["state"] == "stopped"


@pytest.mark.processes
@pytest.mark.timeout(300)
def test_a_job_that_was_told_to_go_ends_without_a_traceback(tmp_path: Path) -> None:
    with _training(tmp_path) as (process, run):
        process.terminate()
        assert process.wait(timeout=200) == 143
    told = (tmp_path / "told").read_text()
    assert "isoscale: stopped by SIGTERM at step " in told
    assert "Traceback" not in told
    assert json.loads(_isoscale("status", run, "--json"))["state"] == "stopped"


@contextlib.contextmanager
def _training(home: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A run that has committed a step; what it prints is in `home`/told."""
    run, script = home / "run", home / "long.py"
    script.write_text(SCRIPT)
    command = [ISOSCALE, "run", str(script), "--workers", "2", "--out", str(run)]
    with (home / "told").open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
    try:
        while process.poll() is None and not _steps(run):
            time.sleep(0.1)
        yield process, run
    finally:
        process.terminate()  # its executors end with it
        process.wait()


def _steps(run: Path) -> bool:
    log = run / "events.jsonl"
    return log.exists() and '"event": "step"' in log.read_text()


def _isoscale(command: str, run: Path, *options: str) -> str:
    return subprocess.run([ISOSCALE, command, str(run), *options], capture_output=True, text=True, check=True).stdout

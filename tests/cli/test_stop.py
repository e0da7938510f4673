"""`isoscale stop`: what the person at the run's terminal is told."""

from __future__ import annotations

import json
import subprocess
import sys
import time
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
    run, script, told = tmp_path / "run", tmp_path / "long.py", tmp_path / "told"
    script.write_text(SCRIPT)
    command = [ISOSCALE, "run", str(script), "--workers", "2", "--out", str(run)]
    with told.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
    try:
        while process.poll() is None and not _steps(run):
            time.sleep(0.1)
        live = json.loads(_isoscale("status", run, "--json"))
        assert live["state"] == "training"
        assert live["epoch"] is not None
        assert 'isoscale_executors{run="run",state="member"} 1' in _isoscale("status", run, "--metrics")
        assert _isoscale("stop", run) == "stopping\n"
        process.wait(timeout=60)
    finally:
        process.terminate()  # its executors end with it
        process.wait()
    output = told.read_text()
    assert process.returncode == 130, output
    assert "isoscale: stopped on request; isoscale resume goes on\n" in output
    assert "interrupted" not in output
    assert json.loads(_isoscale("status", run, "--json"))["state"] == "stopped"


def _steps(run: Path) -> bool:
    log = run / "events.jsonl"
    return log.exists() and '"event": "step"' in log.read_text()


def _isoscale(command: str, run: Path, *options: str) -> str:
    return subprocess.run([ISOSCALE, command, str(run), *options], capture_output=True, text=True, check=True).stdout

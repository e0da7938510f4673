"""Recipes with state of their own through everything that can happen to a job: others join, all are killed, it resumes.

The executors are processes that joined by themselves, from a directory where there is no such script, so they run what
`recipe:` means to them.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from isoscale.testing.running import RunningJob, start

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]

ISOSCALE = str(Path(sys.executable).parent / "isoscale")
_PRUNED = ("--epochs", "2", "--samples", "1280", "--prune-begin", "3", "--prune-every", "3", "--prune-stages", "5")
_COUNTED = ("--epochs", "1", "--samples", "1280", "--warmup", "2", "--merge-every", "4")


@contextlib.contextmanager
def joined(job: RunningJob, recipe: str, directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`isoscale executor --join` by somebody else."""
    directory.mkdir(parents=True)
    address = json.loads((job.directory / "control" / "coordinator.json").read_text())["url"]
    token = str(job.directory / "control" / "token")
    command = [ISOSCALE, "executor", "--join", address, "--token-file", token, "--script", f"recipe:{recipe}"]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=directory, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(("recipe", "arguments"), [("balanced_cnn", _PRUNED), ("mcmisp", _COUNTED)])
def test_joined_killed_resumed_and_replayed(recipe: str, arguments: tuple[str, ...], tmp_path: Path) -> None:
    script = f"recipe:{recipe}"
    with start(script, out=tmp_path / "whole", executors=1, script_args=arguments) as whole:
        assert whole.wait() == 0, whole.output()
    waiting = ["--no-spawn", "--lost-after", "30"]
    with start(
        script, out=tmp_path / "run", executors=2, checkpoint_every=4, options=waiting, script_args=arguments
    ) as job:
        job.wait_for((job.directory / "control" / "coordinator.json").exists, "an address")
        with joined(job, recipe, tmp_path / "a"), joined(job, recipe, tmp_path / "b"):
            job.wait_for(lambda: job.events("checkpoint"), "a checkpoint")
            # Not at a checkpoint: steps are lost and done again.
            at = job.wait_step(job.events("checkpoint")[-1]["step"] + 1)
            assert at < whole.step(), "nothing is left to be done"
            job.kill_all()
        assert not job.events("finished")
        job.resume()
        job.wait_for(lambda: len(job.events("coordinator_started")) > 1, "another coordinator")
        with joined(job, recipe, tmp_path / "c") as one, joined(job, recipe, tmp_path / "d") as other:
            assert job.wait() == 0, job.output()
            assert (one.wait(60), other.wait(60)) == (0, 0)
        assert job.digest() == whole.digest()
        assert job.losses() == whole.losses()
        step = str(job.step())
    done = subprocess.run([ISOSCALE, "replay", str(tmp_path / "run"), "--step", step], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert whole.digest() in done.stdout

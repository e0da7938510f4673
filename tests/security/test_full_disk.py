"""A run whose disk fills up: it warns, trains on, and loses nothing that was whole. A small tmpfs is the disk."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from isoscale.runtime.checkpoint import files as checkpoint
from tests.security.jobs import STEPS, Running, isoscale, running

pytestmark = [pytest.mark.processes, pytest.mark.timeout(400)]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "disk"
    path.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root mounts a tmpfs")
    # Room for what two executors print in all steps, over a megabyte.
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(path)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"no tmpfs here: {mounted.stderr}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def fill(disk: Path) -> None:
    """To the last byte."""
    with contextlib.suppress(OSError), (disk / "filler").open("ab", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def _checkpoints(run: Running) -> list[int]:
    return [event["step"] for event in run.events("checkpoint")]


def test_a_full_disk(tmp_path: Path, disk: Path, undisturbed: str) -> None:
    out = disk / "out"
    options = ["--executors", 2, "--checkpoint-every", 5, "--keep-checkpoints", 2]
    with running(tmp_path, *options, out=out, script_options=["print"]) as run:
        for step in (5, 10):  # one after the other: a checkpoint is left out while another one is being written
            run.allow(step + 2)
            run.until(lambda step=step: _checkpoints(run) == [*range(5, step + 1, 5)], "a checkpoint")
        fill(disk)
        run.allow(17)
        run.until(lambda: "events cannot be written" in run.printed, "a warning")
        run.until(lambda: "step-00000015.pt: cannot write it" in run.printed, "a warning of the checkpoint")
        whole = checkpoint.newest(out / "checkpoints", lambda _: None)
        assert whole is not None
        assert whole.step == 10
        (disk / "filler").unlink()
        run.allow(30)
        run.until(lambda: run.step() >= 30, "it goes on")
        # What happened meanwhile has been kept, and comes in order.
        assert [event["step"] for event in run.events("step")] == list(range(1, 31))
        warnings = [event["message"] for event in run.events("warning")]
        assert any("cannot write it (No space left on device)" in message for message in warnings)
        assert any("what the script prints is lost" in message for message in warnings)
        assert not list((out / "checkpoints").glob(".*.tmp*"))
        run.until(lambda: _checkpoints(run)[-1] == 25, "a checkpoint again")
        fill(disk)
        run.allow(10**6)
        assert run.process.wait(250) == 1
        (line,) = [line for line in run.printed.splitlines() if line.startswith("isoscale: ")]
        assert "final.pt" in line
        assert "No space left on device" in line
        assert "Traceback" not in run.printed
        assert not (out / "final.pt").exists()
        newest = checkpoint.newest(out / "checkpoints", lambda _: None)
        assert newest is not None
        assert newest.step == 25
        # Not even a coordinator can start on a disk like this.
        fill(disk)
        refused = isoscale("resume", out)
        assert refused.returncode == 2
        assert refused.stdout.startswith("isoscale: DIR=")
        assert len(refused.stdout.splitlines()) == 1
        (disk / "filler").unlink()
        resumed = isoscale("resume", out)
        assert resumed.returncode == 0, resumed.stdout
        assert run.summary()["digest"].startswith(undisturbed)
        assert run.summary()["step"] == STEPS


def test_those_who_are_left_find_each_other_on_a_full_disk(tmp_path: Path, disk: Path, undisturbed: str) -> None:
    out = disk / "out"
    with running(tmp_path, "--executors", 3, out=out) as run:
        run.train(5)
        (victim,) = [event["pid"] for event in run.events("executor_started") if event["executor"] == 1]
        fill(disk)
        os.kill(victim, signal.SIGKILL)
        run.allow(12)
        # No event can be written now; the coordinator knows all the same.
        run.until(lambda: json.loads(isoscale("status", out, "--json").stdout)["step"] >= 12, "it goes on")
        (disk / "filler").unlink()
        run.allow(10**6)
        assert run.process.wait(250) == 0, run.printed
        assert run.summary()["digest"].startswith(undisturbed)
        assert run.events("executor_lost")

"""A run whose directory is deleted, moved or closed while it trains: it says so, trains on, and its result is found."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from isoscale.protocol.events import read_events
from isoscale.runtime.control.home import Home
from isoscale.runtime.executor import result as results
from tests.security.jobs import STEPS, Running, delete, isoscale, running

pytestmark = [pytest.mark.processes, pytest.mark.timeout(400)]


def result_of(run: Running) -> Path:
    """Where the last words say that the result is."""
    (line,) = re.findall(r"^result (.+)$", run.printed, re.MULTILINE)
    return Path(line)


def told(run: Running, words: str) -> Callable[[], object]:
    return lambda: words in run.printed


def same_as(undisturbed: str, directory: Path) -> None:
    """The result is there, whole, and that of a job to which nothing happened."""
    summary = json.loads((directory / "summary.json").read_text())
    assert summary["digest"].startswith(undisturbed)
    assert summary["step"] == STEPS
    assert torch.load(directory / "final.pt", weights_only=True)["step"] == STEPS
    # Not a step is missing in the log, though its file had no name for a while.
    steps = [event["step"] for event in read_events(directory / "events.jsonl") if event["event"] == "step"]
    assert steps == list(range(1, STEPS + 1))


def test_deleted(tmp_path: Path, undisturbed: str) -> None:
    with running(tmp_path, "--executors", 2, "--checkpoint-every", 50) as run:
        run.train(3)
        pids = [event["pid"] for event in run.events("executor_started")]
        delete(run.out)
        run.until(told(run, f"warning: {run.out} is gone; training goes on"), "a warning")
        (home,) = tmp_path.glob("out-rescued-*")
        assert f"will be saved to {home}\n" in run.printed
        assert home.stat().st_mode & 0o077 == 0
        # It is a run like any other, at another place: commands reach it, an executor that dies is replaced.
        assert json.loads(isoscale("status", home, "--json").stdout)["state"] == "training"
        os.kill(pids[1], signal.SIGKILL)
        run.allow(20)
        run.until(lambda: (home / "logs" / "executor-2.log").exists(), "a newcomer")
        run.allow(10**6)
        assert run.process.wait(250) == 3, run.printed
        assert result_of(run) == home / "final.pt"
        assert not run.out.exists()
        same_as(undisturbed, home)
        assert list((home / "checkpoints").glob("step-*.pt"))
        assert json.loads(isoscale("status", home, "--json").stdout)["state"] == "finished"


def test_moved(tmp_path: Path, undisturbed: str) -> None:
    with running(tmp_path, "--executors", 2, "--checkpoint-every", 50) as run:
        run.train(3)
        elsewhere = tmp_path / "elsewhere"
        run.out.rename(elsewhere)
        run.until(told(run, f"warning: {run.out} was moved to {elsewhere}; the run goes on there"), "a warning")
        assert json.loads(isoscale("status", elsewhere, "--json").stdout)["state"] == "training"
        run.allow(10**6)
        assert run.process.wait(250) == 0, run.printed
        assert result_of(run) == elsewhere / "final.pt"
        assert not run.out.exists()
        same_as(undisturbed, elsewhere)
        assert list((elsewhere / "checkpoints").glob("step-*.pt"))
        assert json.loads(isoscale("status", elsewhere, "--json").stdout)["state"] == "finished"


def test_another_run_has_the_directory_by_now(tmp_path: Path, undisturbed: str) -> None:
    with running(tmp_path) as run:
        run.train(3)
        delete(run.out)
        run.out.mkdir()
        (run.out / "theirs").write_text("not ours")
        run.allow(10**6)
        assert run.process.wait(250) == 3, run.printed
        assert os.listdir(run.out) == ["theirs"]
        same_as(undisturbed, result_of(run).parent)


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root mounts")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", disk], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"no tmpfs here: {mounted.stderr}")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_result_that_cannot_be_written_where_it_should_be_is_written_beside(read_only: Path) -> None:
    home = Home(read_only, "token")
    result = results._written(home, {"step": 3}, {"digest": "d"})
    assert result == read_only.parent / result.parent.name / "final.pt"
    assert home.is_rescued(result.parent)
    assert torch.load(result, weights_only=True) == {"step": 3}
    assert json.loads((result.parent / "control" / "result.json").read_text()) == {"digest": "d"}


def test_where_nothing_beside_can_be_written_it_is_elsewhere(read_only: Path, tmp_path: Path) -> None:
    home, other = Home(read_only / "no" / "such", "token"), Home(read_only / "no" / "such", "other")
    assert home.rescue() != other.rescue()
    assert home.rescue().parent == Path(tempfile.gettempdir())
    for one in (home, other):
        one.rescue().rmdir()


def test_a_place_that_somebody_else_has_taken_is_not_used(tmp_path: Path) -> None:
    home = Home(tmp_path / "out", "token")
    place = home.rescue()
    place.rmdir()
    place.symlink_to(tmp_path)
    assert home.rescue() != place
    home.rescue().rmdir()

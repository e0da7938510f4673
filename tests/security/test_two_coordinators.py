"""A run is begun again from its checkpoint while executors of a dead coordinator are still at work in its directory."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.security.jobs import STEPS, isoscale, running

pytestmark = [pytest.mark.processes, pytest.mark.timeout(400)]


def test_those_left_over_from_before_leave(tmp_path: Path, undisturbed: str) -> None:
    (tmp_path / "before").mkdir()
    (tmp_path / "after").mkdir()
    out = tmp_path / "out"
    with running(tmp_path / "before", "--executors", 2, "--checkpoint-every", 2, out=out) as before:
        before.allow(5)
        before.until(lambda: before.events("checkpoint") and before.step() >= 5, "a checkpoint")
        orphans = {event["executor"]: event["pid"] for event in before.events("executor_started")}
        os.kill(before.process.pid, signal.SIGKILL)
        before.process.wait()
        left_over = out / "checkpoints" / ".step-00000002-9-1.tmp.pt"
        left_over.write_bytes(b"half of a checkpoint")
        before.allow(10)  # they train on
        options = ["--executors", 2, "--checkpoint-every", 2, "--resume"]
        with running(tmp_path / "after", *options, out=out, gate=before.gate) as after:
            after.until(lambda: len(after.events("executor_started")) == 4, "executors of its own")
            # A third one is told at once that somebody is at work here.
            for command in (("resume", out), ("run", "train.py", "--out", out, "--resume")):
                refused = isoscale(*command)
                assert refused.returncode == 2, refused.stdout
                assert len(refused.stdout.splitlines()) == 1
            after.allow(20)  # they leave between two steps
            after.until(lambda: not any(map(_is_alive, orphans.values())), "those of before are gone")
            summary = after.finish()
    assert not left_over.exists()
    assert summary["digest"].startswith(undisturbed)
    assert summary["step"] == STEPS
    assert not orphans.keys() & {event["executor"] for event in after.events("executor_started")[2:]}


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False

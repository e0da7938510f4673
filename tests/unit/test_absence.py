"""Why a coordinator does not answer, with real processes in its place."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from isoscale.backends.host_id import machine_id
from isoscale.backends.system import born, is_stopped
from isoscale.errors import UserError
from isoscale.runtime.control.absence import absent, stopped
from isoscale.runtime.control.directory import Control

pytestmark = pytest.mark.processes


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as one:
        yield one
        one.kill()


def run_of(directory: Path, pid: int, **changed: Any) -> Path:
    control = directory / "control"
    control.mkdir(exist_ok=True)
    address = {"url": "ws://127.0.0.1:1", "pid": pid, "born": born(pid), "machine": machine_id(), **changed}
    (control / "coordinator.json").write_text(json.dumps(address))
    return directory


def until_stopped(pid: int) -> None:
    deadline = time.monotonic() + 30
    while not is_stopped(pid) and time.monotonic() < deadline:
        time.sleep(0.01)


def test_one_that_is_stopped_is_to_be_continued(tmp_path: Path, process: subprocess.Popen[bytes]) -> None:
    out = run_of(tmp_path, process.pid)
    assert stopped(out) is None
    process.send_signal(signal.SIGSTOP)
    until_stopped(process.pid)
    error = stopped(out, field="--out")
    assert isinstance(error, UserError)
    assert str(error) == (
        f"--out={out}: its coordinator (process {process.pid}) is stopped by a signal; executors train on without it; "
        f"continue it: kill -CONT {process.pid}"
    )
    assert str(absent(out, asked=True)) == str(error).replace("--out=", "DIR=")


def test_one_that_is_alive_may_be_busy(tmp_path: Path, process: subprocess.Popen[bytes]) -> None:
    out = run_of(tmp_path, process.pid)
    problem = (
        f"DIR={out}: its coordinator (process {process.pid}) is alive but does not answer: it is busy, or swapped out"
    )
    assert str(absent(out)) == f"{problem}; executors train on without it; try again"
    assert str(absent(out, asked=True)) == (
        f"{problem}; executors train on without it; it may still do what it was asked for; try again"
    )


def test_one_that_is_gone_has_successors(tmp_path: Path, process: subprocess.Popen[bytes]) -> None:
    out = run_of(tmp_path, process.pid)
    os.kill(process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # nobody has asked how it ended
    assert str(absent(out)) == f"DIR={out}: its coordinator is gone; start another one: isoscale resume {out}"
    assert "isoscale report" in str(absent(out, asked=True))


def test_another_process_with_its_number_is_not_it(tmp_path: Path, process: subprocess.Popen[bytes]) -> None:
    out = run_of(tmp_path, process.pid, born=born(process.pid) - 1)
    assert "is gone" in str(absent(out))


def test_one_elsewhere_is_not_for_this_machine_to_judge(tmp_path: Path, process: subprocess.Popen[bytes]) -> None:
    out = run_of(tmp_path, process.pid, machine="another")
    assert stopped(out) is None
    assert str(absent(out)) == (
        f"DIR={out}: its coordinator does not answer, and is not on this machine; if it is gone, start another one: "
        f"isoscale resume {out}"
    )


@pytest.mark.parametrize("text", ["", "[]", '{"pid": "x"}', "null"])
def test_what_cannot_be_read_tells_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "control").mkdir()
    (tmp_path / "control" / "coordinator.json").write_text(text)
    assert stopped(tmp_path) is None
    assert "resume" in str(absent(tmp_path))


def test_a_coordinator_writes_down_who_it_is(tmp_path: Path) -> None:
    control = Control(tmp_path)
    control.announce("ws://127.0.0.1:1")
    assert "is alive" in str(absent(tmp_path))
    control.close()

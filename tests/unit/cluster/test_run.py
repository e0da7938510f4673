"""The service's end of a coordinator, with processes that are no coordinators: what is wrong there stays there."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import queue
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from isoscale.backends.system import born
from isoscale.cluster import coordinator
from isoscale.cluster.outcome import INPUT, MACHINE, outcome_of
from isoscale.cluster.process import CoordinatorProcess, start_gated
from isoscale.cluster.run import Ended, Run, Unwritten
from isoscale.errors import UserError
from isoscale.runtime.control.grants import read_grant
from isoscale.scheduling.driving import Grant

GRANT = Grant(number=3, devices=("local/cpu/0",), allocation=((0, 1),))


class Bench:
    def __init__(self, directory: Path) -> None:
        self.posts: queue.Queue[Any] = queue.Queue()
        self.directory = directory
        self.run = Run("j1", directory, self.posts.put, lambda: 0.0)

    def ended(self) -> Ended:
        found = self.posts.get(timeout=20)
        assert isinstance(found, Ended), found
        return found


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.run.close()
    made.run.join(5)


@pytest.fixture
def sleeper() -> Iterator[CoordinatorProcess]:
    """A process that lives and answers nobody."""
    child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
    process = CoordinatorProcess(child.pid, born(child.pid), child)
    yield process
    process.kill()


@pytest.mark.parametrize(
    ("error", "kind", "error_class"),
    [
        (OSError(28, "No space left on device"), "died", MACHINE),
        (sqlite3.OperationalError("database or disk is full"), "died", MACHINE),
        (UserError(field="cwd", value="/gone", problem="is gone", remedy="submit it again"), "failed", INPUT),
    ],
)
def test_what_keeps_a_coordinator_from_being_started_is_told(
    bench: Bench, error: Exception, kind: str, error_class: str
) -> None:
    def prepare(grant: Grant) -> coordinator.Start:
        raise error

    bench.run.launch(1, GRANT, prepare, lambda pid, born: None)
    ended = bench.ended()
    assert (ended.outcome.kind, ended.outcome.error_class) == (kind, error_class)
    assert str(error) in ended.outcome.error


def test_a_process_that_could_not_be_recorded_never_begins(tmp_path: Path) -> None:
    began, pids = tmp_path / "began", list[int]()

    def record(pid: int, born: int) -> None:
        pids.append(pid)
        raise sqlite3.OperationalError("database is locked")

    with pytest.raises(sqlite3.OperationalError):
        start_gated(
            (sys.executable, "-S", "-c", f"open({str(began)!r}, 'w')"),
            cwd=tmp_path,
            environment=dict(os.environ),
            log=tmp_path / "log",
            record=record,
        )
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pids[0], 0)
    assert not began.exists()


def test_a_grant_is_on_the_disk_although_nobody_hears_of_it(bench: Bench, sleeper: CoordinatorProcess) -> None:
    bench.run.adopt(1, sleeper)
    bench.run.send(GRANT)
    bench.run.pause(Grant(number=4, devices=(), allocation=()))
    bench.run.kill((), coordinator_too=True)  # in order: what was told before is done when it has ended
    assert type(bench.posts.get(timeout=20)).__name__ == "DevicesReleased"
    found = read_grant(bench.directory)
    assert found is not None
    assert (found.number, found.devices, found.job) == (4, (), "j1")
    assert bench.ended().outcome.kind == "died"


def test_one_that_answers_nonsense_is_watched_to_its_end(
    bench: Bench, sleeper: CoordinatorProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nonsense(run: Run) -> None:
        raise ValueError("not a status")

    monkeypatch.setattr(Run, "_reach", nonsense)
    bench.run.adopt(1, sleeper)
    sleeper.kill()
    assert bench.ended().attempt == 1


def test_nobody_writes_into_a_pipe_that_is_closed(bench: Bench) -> None:
    waker = bench.run._waker
    theirs, ours = os.pipe()
    try:
        bench.run.close()
        bench.run.join(5)
        os.dup2(ours, waker)  # somebody else's file by now
        bench.run.close()
        bench.run.send(GRANT)
        os.set_blocking(theirs, False)
        with pytest.raises(BlockingIOError):
            os.read(theirs, 1)
    finally:
        for descriptor in (theirs, ours, waker):
            os.close(descriptor)


@pytest.mark.parametrize(
    "summary",
    [{"exit_code": "x"}, {"exit_code": None, "step": [1]}, {"step": 10**30}, {"exit_code": 1, "error": "e" * 10**6}],
)
def test_whatever_a_job_leaves_as_its_summary_can_be_read(tmp_path: Path, summary: dict[str, object]) -> None:
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    found = outcome_of(tmp_path)
    assert found.kind == "failed"
    assert found.exit_code == 1
    assert 0 <= found.step < 2**53
    assert len(found.error) < 10_000


def test_a_grant_that_cannot_be_written_is_tried_again(
    bench: Bench, sleeper: CoordinatorProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told once; nobody hears of a grant that is not on the disk, and a newer one overtakes it."""
    real, is_full = coordinator.write_down, True

    def write_down(*arguments: Any) -> None:
        if is_full:
            raise OSError(28, "No space left on device")
        real(*arguments)

    monkeypatch.setattr(coordinator, "write_down", write_down)
    bench.run.adopt(1, sleeper)
    bench.run.send(GRANT)
    newer = dataclasses.replace(GRANT, number=4)
    bench.run.send(newer)
    found = [bench.posts.get(timeout=20), bench.posts.get(timeout=20)]
    assert [(one.job, one.number) for one in found if isinstance(one, Unwritten)] == [("j1", 3), ("j1", 4)]
    assert "No space left" in found[0].error
    assert read_grant(bench.directory) is None
    is_full = False
    deadline = time.monotonic() + 20
    while (written := read_grant(bench.directory)) is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert written.number == 4

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
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from isoscale.backends.system import born
from isoscale.cluster import coordinator
from isoscale.cluster import run as run_module
from isoscale.cluster.outcome import INPUT, MACHINE, outcome_of
from isoscale.cluster.process import CoordinatorProcess, Executor, start_gated
from isoscale.cluster.run import Ended, Run, Unwritten
from isoscale.errors import UserError
from isoscale.runtime.control.grants import read_grant
from isoscale.scheduling.driving import Grant

GRANT = Grant(number=3, devices=("local/cpu/0",), allocation=((0, 1),))


class Left:
    """What lives of a run, as the test says it: lists of devices, one for each time that somebody looks."""

    def __init__(self, *seen: Sequence[str] | Exception) -> None:
        self.seen = list(seen)

    def live(self, directory: Path) -> list[Executor]:
        found = self.seen.pop(0) if self.seen else ()
        if isinstance(found, Exception):
            raise found
        return [Executor(executor=number, pid=1, born=1, device=one) for number, one in enumerate(found)]

    def end(self, directory: Path, devices: Collection[str]) -> list[str]:
        left = [one.device for one in self.live(directory)]
        return [one for one in devices if one not in left]


class Bench:
    def __init__(self, directory: Path) -> None:
        self.posts: queue.Queue[Any] = queue.Queue()
        self.directory = directory
        self.left = Left()
        self.run = Run("j1", directory, self.posts.put, lambda: 0.0, executors=self.left)

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


@pytest.mark.parametrize("error", [OSError(28, "No space left"), UserError(field="cwd", problem="gone", remedy="none")])
def test_of_a_coordinator_that_could_not_be_started_it_is_told_what_an_earlier_one_left(
    bench: Bench, error: Exception
) -> None:
    """Its executors train on: their devices are not free."""

    def prepare(grant: Grant) -> coordinator.Start:
        raise error

    bench.left.seen = [["local/cpu/0"]]
    bench.run.launch(2, GRANT, prepare, lambda pid, born: None)
    assert bench.ended().alive == ("local/cpu/0",)


def test_an_end_is_told_when_somebody_could_look_what_is_left(
    bench: Bench, sleeper: CoordinatorProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "_AGAIN_S", 0.01)
    bench.left.seen = [OSError(24, "Too many open files"), RuntimeError("no head"), ["local/cpu/0"]]
    bench.run.adopt(1, sleeper)
    sleeper.kill()
    ended = bench.ended()
    assert (ended.attempt, ended.outcome.kind, ended.alive) == (1, "died", ("local/cpu/0",))


def test_what_outlives_being_killed_is_looked_at_until_it_is_gone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process in the hands of a driver or a file server may take minutes to die."""
    monkeypatch.setattr(run_module, "_STUCK_S", 0.01)
    bench.left.seen = [["local/cpu/0"], OSError(24, "Too many open files"), ["local/cpu/0"], []]
    bench.run.kill(("local/cpu/0", "local/cpu/1"), coordinator_too=False)
    assert bench.posts.get(timeout=20).devices == ("local/cpu/1",)
    told = [bench.posts.get(timeout=20).devices for _ in range(2)]
    assert told == [(), ("local/cpu/0",)]
    assert not bench.run._stuck


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

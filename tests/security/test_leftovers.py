"""Processes that user code starts do not outlive the executor that started them, however that ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isoscale.backends import leftovers
from isoscale.backends.leftovers import Lineage, Process, belongs, end_leftovers, marks_of
from isoscale.backends.system import born
from isoscale.testing import RunningJob, start

SCRIPT = Path(__file__).with_name("scripts") / "parent.py"
SORTS = {"popen", "new-session", "no-environment", "multiprocessing", "fork", "daemon"}
#: started so that it outlives the job
DETACHED = "detached"


@dataclass
class Family:
    job: RunningJob
    home: Path

    def children(self, executor: int) -> dict[str, int]:
        """By sort; those that are alive."""
        found = {}
        for path in (self.home / "pids").glob(f"{executor}-*"):
            pid = int(path.read_text() or 0)
            if born(pid) and _state(pid) != "Z":
                found[path.name.partition("-")[2]] = pid
        return found

    def wait_born(self, *executors: int) -> None:
        for executor in executors:
            self.job.wait_for(lambda e=executor: set(self.children(e)) == SORTS | {DETACHED}, f"children of {executor}")

    def wait_dead(self, *executors: int) -> None:
        """All but the one that was detached on purpose."""
        deadline = time.monotonic() + 200
        for executor in executors:
            while set(self.children(executor)) != {DETACHED}:
                assert time.monotonic() < deadline, self.children(executor)
                time.sleep(0.05)

    def finish(self) -> int:
        (self.home / "done").touch()
        return self.job.wait()


def _state(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return "Z"


@contextlib.contextmanager
def family(home: Path, executors: int = 2) -> Iterator[Family]:
    (home / "pids").mkdir()
    with start(
        SCRIPT, out=home / "out", workers=2, executors=executors, script_args=[str(home / "pids"), str(home / "done")]
    ) as job:
        found = Family(job, home)
        try:
            yield found
        finally:
            for executor in range(6):
                for pid in found.children(executor).values():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)


@pytest.mark.processes
@pytest.mark.timeout(300)
def test_at_the_end(tmp_path: Path) -> None:
    with family(tmp_path) as one:
        one.wait_born(0, 1)
        bystander = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        assert one.finish() == 0
        # Nothing to wait for: when the command has ended they are dead.
        assert set(one.children(0)) == set(one.children(1)) == {DETACHED}
        assert bystander.poll() is None
        bystander.kill()
        bystander.wait()


@pytest.mark.processes
@pytest.mark.timeout(300)
def test_of_an_executor_that_is_killed_or_leaves(tmp_path: Path) -> None:
    with family(tmp_path) as one:
        one.wait_born(0, 1)
        one.job.kill(1)
        one.wait_dead(1)
        assert set(one.children(0)) == SORTS | {DETACHED}
        one.wait_born(2)  # its successor's
        one.job.wait_members(2)
        one.job.scale(1)
        one.job.wait_members(1)
        one.wait_dead(2)
        assert set(one.children(0)) == SORTS | {DETACHED}
        assert one.finish() == 0


@pytest.mark.processes
@pytest.mark.timeout(300)
def test_of_a_coordinator_that_is_interrupted(tmp_path: Path) -> None:
    with family(tmp_path) as one:
        one.wait_born(0, 1)
        (event,) = one.job.events("coordinator_started")
        os.kill(event["pid"], signal.SIGINT)
        assert one.job.wait() == 130
        assert set(one.children(0)) == set(one.children(1)) == {DETACHED}


@pytest.mark.processes
@pytest.mark.timeout(300)
def test_of_executors_that_die_while_there_is_no_coordinator(tmp_path: Path) -> None:
    with family(tmp_path) as one:
        one.wait_born(0, 1)
        one.job.kill_all()
        # Nobody was there to see it. In a session that is not known any more only the environment tells.
        assert set(one.children(0)) == SORTS | {DETACHED}
        one.job.resume()
        deadline = time.monotonic() + 200
        while not set(one.children(0)) | set(one.children(1)) <= {DETACHED, "no-environment"}:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert one.finish() == 0


# ---- whose it is ----

MARKS = marks_of({"ISOSCALE_EXECUTOR": "1", "ISOSCALE_TOKEN_FILE": "/run/token", "PATH": "/bin"})


def process(**fields: object) -> Process:
    given_ = {"pid": 101, "born": 400, "state": "S", "session": 100, "environ": frozenset(), **fields}
    return Process(**given_)  # type: ignore[arg-type]


MARKED = {"ISOSCALE_EXECUTOR": "7", "ISOSCALE_TOKEN_FILE": "/no/such/run/token"}
DEAD = Lineage(leader=100, marks=MARKS, died=500)


@pytest.mark.parametrize(
    ("one", "is_ours"),
    [
        (process(), True),
        (process(session=99), False),
        (process(born=500), False),  # might be of a new session with the old number
        (process(born=501, environ=MARKS), True),
        (process(session=7, born=9999, environ=MARKS | {b"HOME=/"}), True),
        (process(session=7, environ=frozenset(list(MARKS)[:1])), False),
        (process(session=7, environ=marks_of({"ISOSCALE_EXECUTOR": "2", "ISOSCALE_TOKEN_FILE": "/run/token"})), False),
        (process(session=7, environ=marks_of({"ISOSCALE_EXECUTOR": "1", "ISOSCALE_TOKEN_FILE": "/other"})), False),
        (process(pid=100, environ=MARKS), False),  # the executor itself
        (process(state="Z"), False),
    ],
)
def test_who_is_a_leftover(one: Process, is_ours: bool) -> None:
    assert belongs(one, DEAD) == is_ours


def test_what_an_executor_started_is_no_older_than_it() -> None:
    young = replace(DEAD, since=400)
    assert belongs(process(born=400, environ=MARKS), young)
    assert not belongs(process(born=399, environ=MARKS), young)
    assert not belongs(process(born=399), young)


def test_nobody_asks_an_older_process_for_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """That takes a lock of the process, and may take seconds where memory is short."""
    with subprocess.Popen(["sleep", "60"], env={**os.environ, **MARKED}) as left:
        asked: list[int] = []
        read = leftovers._environ
        monkeypatch.setattr(leftovers, "_environ", lambda pid: asked.append(pid) or read(pid))
        whose = Lineage(leader=0, marks=marks_of(MARKED), died=None, leads=False, since=born(left.pid))
        assert end_leftovers(whose) == 1
        assert left.wait() == -signal.SIGKILL
    assert left.pid in asked
    assert os.getpid() not in asked


def test_whoever_led_no_session_has_none_whose_dead_are_taken() -> None:
    """In a container everything may be in session 0, which is also the number of nobody."""
    with subprocess.Popen(["sleep", "60"], env={**os.environ, **MARKED}) as left:
        session = os.getsid(0)
        whose = Lineage(leader=session, marks=marks_of(MARKED), died=None, leads=False, since=born(left.pid))
        assert end_leftovers(whose) == 1
        assert left.wait() == -signal.SIGKILL  # its exit code is this process's, not taken by who looked


def test_a_process_that_is_no_executor_has_no_marks() -> None:
    assert marks_of({"ISOSCALE_EXECUTOR": "1"}) == frozenset()
    assert marks_of({}) == frozenset()
    assert not belongs(process(session=7), Lineage(leader=100, marks=frozenset(), died=500))
    assert not belongs(process(), Lineage(leader=100, marks=MARKS, died=500, leads=False))


@given(st.integers(1, 300), st.integers(0, 1000), st.integers(0, 300), st.frozensets(st.sampled_from([*MARKS, b"A=1"])))
def test_nobody_without_proof(pid: int, birth: int, session: int, environ: frozenset[bytes]) -> None:
    one = Process(pid=pid, born=birth, state="R", session=session, environ=environ)
    if belongs(one, DEAD):
        assert environ >= MARKS or (session == DEAD.leader and birth < 500)

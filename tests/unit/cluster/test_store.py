"""The store against a model: whatever is asked in whatever order, it says what a dictionary would."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from isoscale.cluster import faults
from isoscale.cluster import store as store_module
from isoscale.cluster.schema import STEPS
from isoscale.cluster.store import Store, SupersededError
from isoscale.cluster.values import ENDED, NEXT, JobRecord, Submission
from isoscale.errors import UserError


def record(number: int, **fields: object) -> JobRecord:
    submission = Submission(code="c" * 64, workers=2, key=str(fields.pop("key", "")))
    tenant = str(fields.pop("tenant", "t"))
    return JobRecord(
        id=f"j{number}", number=number, submission=submission, name="n", tenant=tenant, owner="o", **fields
    )  # type: ignore[arg-type]


@pytest.fixture
def store(tmp_path: Path):
    opened = Store(tmp_path / "cluster.sqlite", boot="boot", now=1.0)
    yield opened
    opened.close()


class StoreMachine(RuleBasedStateMachine):
    """Submissions, states, attempts and restarts; a transaction that fails leaves nothing."""

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "cluster.sqlite"
        self.store = Store(self.path, boot="a", now=0.0)
        self.jobs: dict[str, JobRecord] = {}
        self.open: dict[str, int] = {}
        self.events = self.store.last_event()
        self.term = 1

    def teardown(self) -> None:
        self.store.close()
        self.folder.cleanup()

    @rule(key=st.sampled_from(["", "a", "b"]), tenant=st.sampled_from(["t", "u"]))
    def submit(self, key: str, tenant: str) -> None:
        job = record(len(self.jobs) + 1, key=key, tenant=tenant)
        known = next((one for one in self.jobs.values() if key and one.submission.key == key), None)
        with self.store.write(now=1.0) as tx:
            assert (tx.by_key(7, key) if key else None) == known
            if known is None:
                tx.insert(job, 7)
                tx.event("job_submitted", job)
                self.jobs[job.id] = job
                self.events += 1

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), fails=st.booleans())
    def change_state(self, data: st.DataObject, fails: bool) -> None:
        job = self.jobs[data.draw(st.sampled_from(sorted(self.jobs)))]
        new = data.draw(st.sampled_from(sorted(NEXT)))
        legal = new == job.state or new in NEXT[job.state]
        try:
            with self.store.write(now=2.0) as tx:
                changed = tx.set_state(job.id, new, step=job.step + 1)
                tx.event("state", changed, new=new)
                if fails:
                    raise RuntimeError
        except ValueError:
            assert not legal
        except RuntimeError:
            assert legal
            assert fails
        else:
            assert legal
            self.jobs[job.id] = replace(job, state=new, step=job.step + 1)
            self.events += 1

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        """A second coordinator is refused by the database itself."""
        job = data.draw(st.sampled_from(sorted(self.jobs)))
        number = len(self.store.attempts(job)) + 1
        try:
            with self.store.write(now=3.0) as tx:
                tx.intend(job, number)
                tx.started(job, number, 100, 200)
                tx.event("started")
        except sqlite3.IntegrityError:
            assert job in self.open
        else:
            assert job not in self.open
            self.open[job] = number
            self.events += 1

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(sorted(self.open)))
        with self.store.write(now=4.0) as tx:
            tx.ended(job, self.open.pop(job), "died")
            tx.event("ended")
        self.events += 1

    @rule()
    def restart(self) -> None:
        self.store.close()
        self.store = Store(self.path, boot="b", now=5.0)
        self.term += 1
        self.events += 1

    @invariant()
    def agrees(self) -> None:
        assert self.store.term == self.term
        assert {job.id: job for job in self.store.jobs(limit=1000)} == self.jobs
        assert [job.id for job in self.store.live_jobs()] == [
            job.id for job in self.jobs.values() if job.state not in ENDED
        ]
        assert self.store.last_event() == self.events == len(self.store.events(limit=10_000))
        for job in self.jobs:
            found = self.store.open_attempt(job)
            assert (found.number if found else None) == self.open.get(job)


StoreMachine.TestCase.settings = settings(max_examples=15, stateful_step_count=25, deadline=None)
TestStoreMachine = StoreMachine.TestCase


def test_a_change_without_an_event_is_rolled_back(store: Store) -> None:
    with pytest.raises(AssertionError, match="without an event"), store.write(now=1.0) as tx:
        tx.insert(record(1), 1)
    assert store.jobs() == []


def test_an_older_service_cannot_write_any_more(tmp_path: Path, store: Store) -> None:
    successor = Store(tmp_path / "cluster.sqlite", boot="boot", now=2.0)
    with pytest.raises(SupersededError), store.write(now=3.0):
        raise AssertionError("it must not come so far")
    assert successor.jobs() == []
    successor.close()


def test_a_damaged_database_is_refused_with_the_way_out(tmp_path: Path) -> None:
    path = tmp_path / "cluster.sqlite"
    opened = Store(path, boot="boot", now=1.0)
    for number in range(1, 200):
        with opened.write(now=1.0) as tx:
            tx.insert(record(number), 1)
            tx.event("job_submitted", record(number))
    opened.close()
    data = bytearray(path.read_bytes())
    data[4096 : len(data) // 2] = b"\x5a" * (len(data) // 2 - 4096)
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"damaged .*serve --rebuild"):
        Store(path, boot="boot", now=2.0)
    path.write_bytes(b"this is no database at all" * 100)
    with pytest.raises(UserError, match="serve --rebuild"):
        Store(path, boot="boot", now=2.0)


def test_a_database_that_cannot_be_opened_now_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever made it anew for want of room would lose what is in it."""
    monkeypatch.setattr(store_module, "_BUSY_MS", 20)
    path = tmp_path / "cluster.sqlite"
    Store(path, boot="boot", now=1.0).close()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(UserError, match=r"cannot be used now \(database is locked\)") as locked:
        Store(path, boot="boot", now=2.0)
    other.close()

    def full(*arguments: object, **fields: object) -> int:
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(store_module.Transaction, "event", full)
        with pytest.raises(UserError, match="disk is full") as filled:
            Store(path, boot="boot", now=2.0)
    for refused in (locked, filled):
        assert "damaged" not in str(refused.value)
        assert "rebuild" not in str(refused.value)
    Store(path, boot="boot", now=3.0).close()


def test_threads_that_come_and_go_leave_no_connection_behind(tmp_path: Path) -> None:
    store = Store(tmp_path / "cluster.sqlite", boot="boot", now=1.0)
    before, together = len(os.listdir("/proc/self/fd")), threading.Barrier(20)

    def look() -> None:
        together.wait()
        assert store.last_event() == 1

    for _ in range(5):
        threads = [threading.Thread(target=look) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    # The database and its log of each that is kept; SQLite itself keeps the database of others for those to come.
    assert len(os.listdir("/proc/self/fd")) <= before + store_module._IDLE_READERS + 20
    store.close()
    assert len(os.listdir("/proc/self/fd")) < before


def test_a_newer_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cluster.sqlite"
    Store(path, boot="boot", now=1.0).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(UserError, match="schema 99"):
        Store(path, boot="boot", now=2.0)


DIES = textwrap.dedent("""
    import sys
    from pathlib import Path
    sys.path.insert(0, sys.argv[2])
    from isoscale.cluster import faults
    from isoscale.cluster.store import Store
    from tests.unit.cluster.test_store import record
    store = Store(Path(sys.argv[1]), boot="boot", now=1.0)
    faults.arm()
    for number in range(1, 6):
        with store.write(now=1.0) as tx:
            tx.insert(record(number), 1)
            tx.event("job_submitted", record(number))
        print(number, flush=True)
""")


@pytest.mark.processes
@pytest.mark.parametrize("point", ["begin", "commit", "committed"])
def test_death_in_a_transaction_loses_nothing_that_was_acknowledged(tmp_path: Path, point: str) -> None:
    path = tmp_path / "cluster.sqlite"
    root = Path(__file__).resolve().parents[3]
    env = {"ISOSCALE_SERVICE_FAULT": f"{point},3", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", DIES, str(path), str(root)], capture_output=True, text=True, env=env, check=False
    )
    assert done.returncode == -9, done.stderr
    acknowledged = len(done.stdout.split())
    store = Store(path, boot="boot", now=2.0)
    jobs = store.jobs()
    # Whole or not at all; a commit that nobody was told of may be there.
    assert len(jobs) == (3 if point == "committed" else 2)
    assert acknowledged == 2
    assert len([one for one in store.events() if one.event == "job_submitted"]) == len(jobs)
    store.close()


def test_every_fault_point_is_in_the_code() -> None:
    package = Path(faults.__file__).parent
    text = "".join(path.read_text() for path in package.rglob("*.py") if path.name != "faults.py")
    for point in faults.POINTS:
        assert f'"{point}"' in text, point


def test_a_file_of_the_first_version_gets_what_is_new(tmp_path: Path) -> None:
    path = tmp_path / "cluster.sqlite"
    old = sqlite3.connect(path)
    for statement in STEPS[0]:
        old.execute(statement)
    old.execute("INSERT INTO tokens (name, hash, role, tenant, created_s) VALUES ('a', 'h', 'admin', '', 1.0)")
    old.execute("PRAGMA user_version = 1")
    old.commit()
    old.close()
    store = Store(path, boot="boot", now=1.0)
    found = store.token("h")
    assert found is not None
    assert found.name == "a"
    assert found.revoked_s is None
    with store.write(now=2.0) as tx:
        tx.add_token("s", "k", "admin", "", None, session_of=found.id)
        assert tx.revoke_token(found.id)
        tx.event("token_revoked")
    assert [one.revoked_s for one in store.tokens()] == [2.0, 2.0]
    store.close()
    assert all(one.stat().st_mode & 0o077 == 0 for one in tmp_path.iterdir())

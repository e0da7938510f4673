"""Whatever dies, and whenever: no acknowledged job is lost, none has two results, digests are those of jobs alone."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from isoscale.cluster.process import live_executors
from tests.cluster.conftest import SERVE, Cluster

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(300)]


def test_the_service_dies_then_a_coordinator_then_executors_then_all(
    cluster: Cluster, alone: Callable[[int, int], str]
) -> None:
    cluster.serve("--policy", "easyscale")
    jobs = [cluster.submit(4, 2, "loader", "wait", retries=3), cluster.submit(4, 2, "loader", "wait", retries=3)]
    late = cluster.submit(1, 2, after=(jobs[0],), name="late")
    for job in jobs:
        cluster.until_state(job, "running")
        cluster.until_step(job, 2)
    before = {job: cluster.coordinator(job) for job in jobs}

    # The service: nobody else notices, and its successor finds the same coordinators.
    cluster.kill()
    assert all(len(live_executors(cluster.directory(job))) >= 1 for job in jobs)
    cluster.serve("--policy", "fifo-backfill")
    for job in jobs:
        cluster.until_state(job, "running")
        assert cluster.coordinator(job) == before[job]

    # A coordinator: another one takes its executors over.
    executors = {one.pid for one in live_executors(cluster.directory(jobs[0]))}
    cluster.kill_coordinator(jobs[0])
    cluster.until(lambda: _other_coordinator(cluster, jobs[0], before[jobs[0]]))
    cluster.until_state(jobs[0], "running")
    assert executors & {one.pid for one in live_executors(cluster.directory(jobs[0]))}

    # An executor.
    killed = live_executors(cluster.directory(jobs[1]))[0].pid
    os.kill(killed, signal.SIGKILL)
    cluster.until(lambda: {one.pid for one in live_executors(cluster.directory(jobs[1]))} - {killed})
    # Service and coordinators at once, while executors train on: their devices count as held.
    cluster.kill()
    for job in jobs:
        cluster.kill_coordinator(job)
    held = {one.pid for one in live_executors(cluster.directory(jobs[0]))}
    cluster.serve("--policy", "easyscale")
    for job in jobs:
        cluster.until_state(job, "running")
    assert held & {one.pid for one in live_executors(cluster.directory(jobs[0]))}

    # All of them.
    cluster.kill()
    for job in jobs:
        cluster.kill_coordinator(job)
        cluster.kill_executors(job)
    cluster.hurry(*jobs)
    cluster.serve()
    for job in (*jobs, late):
        shown = cluster.until_state(job, "finished")
        assert shown.digest == alone(1 if job == late else 4, 2)
        assert cluster.results(job) == [shown.digest]
    with cluster.client() as client:
        assert [job.id for job in client.jobs()] == [*jobs, late]
        assert [device.state for node in client.devices() for device in node.devices] == ["free", "free"]
    assert cluster.stop() == 0


def _other_coordinator(cluster: Cluster, job: str, before: tuple[int, int]) -> bool:
    try:
        return cluster.coordinator(job) != before
    except (OSError, ValueError):
        return False


#: the service dies there for the first time that a job gets so far
TRANSITIONS = (
    "submit-directory",
    "submit-committed",
    "start-intended",
    "start-spawned",
    "start-recorded",
    "start-released",
    "grant-written",
    "result-seen",
    "ended-recorded",
)


@pytest.mark.parametrize("point", TRANSITIONS)
def test_death_at_a_transition(cluster: Cluster, alone: Callable[[int, int], str], point: str) -> None:
    """The job is submitted until somebody acknowledges it; there is one of it, and it has one result."""
    cluster.serve(fault=point)
    assert cluster.process is not None
    job = ""
    with contextlib.suppress(Exception), cluster.client(patience_s=0.0) as client:
        job = client.submit(_script(), workers=2, script_args=("1", "0.01"), key="only-one").id
    assert cluster.process.wait(60) == -signal.SIGKILL
    cluster.serve()
    with cluster.client() as client:
        again = client.submit(_script(), workers=2, script_args=("1", "0.01"), key="only-one").id
    assert job in ("", again)
    shown = cluster.until_state(again, "finished")
    assert shown.digest == alone(1, 2)
    assert cluster.results(again) == [shown.digest]
    with cluster.client() as client:
        assert [one.id for one in client.jobs()] == [again]
    assert [path.name for path in (cluster.state / "jobs").iterdir()] == [again]


def _script() -> str:
    from isoscale.testing import short_job_path

    return str(short_job_path())


@pytest.mark.parametrize("point", ["pause-asked", "pause-done"])
def test_a_pause_that_is_interrupted_is_carried_out(
    cluster: Cluster, alone: Callable[[int, int], str], point: str
) -> None:
    cluster.serve(fault=point)
    job = cluster.submit(4, 2, "loader", "wait")
    cluster.until_step(job, 2)
    asked = contextlib.nullcontext() if point == "pause-done" else pytest.raises(Exception, match="does not answer")
    with asked, cluster.client(patience_s=0.0) as client:
        client.pause(job)
    assert cluster.process is not None
    assert cluster.process.wait(60) == -signal.SIGKILL
    cluster.serve()
    cluster.until_state(job, "paused")
    assert not live_executors(cluster.directory(job))
    step = cluster.job(job).step
    cluster.hurry(job)
    with cluster.client() as client:
        client.resume(job)
    shown = cluster.until_state(job, "finished")
    assert step >= 2
    assert shown.digest == alone(4, 2)


def test_a_cancel_that_is_interrupted_is_carried_out(cluster: Cluster) -> None:
    cluster.serve(fault="cancel-asked")
    job = cluster.submit(4, 2, "loader", "wait")
    cluster.until_step(job, 2)
    with pytest.raises(Exception, match="does not answer"), cluster.client(patience_s=0.0) as client:
        client.cancel(job)
    cluster.serve()
    cluster.until_state(job, "cancelled")
    cluster.until(lambda: not live_executors(cluster.directory(job)))
    assert cluster.results(job) == []


def test_death_of_a_service_that_has_just_taken_jobs_over(cluster: Cluster, alone: Callable[[int, int], str]) -> None:
    cluster.serve()
    job, later = cluster.submit(4, 2, "loader", "wait"), cluster.submit(1, 2)
    cluster.until_step(job, 2)
    before = cluster.coordinator(job)
    cluster.kill()
    for _ in range(2):
        cluster.serve(fault="adopted", ready=False)
        assert cluster.process is not None
        assert cluster.process.wait(60) == -signal.SIGKILL
    cluster.serve()
    cluster.until_state(job, "running", "resizing")
    assert cluster.coordinator(job) == before
    cluster.hurry(job)
    for one, epochs in ((job, 4), (later, 1)):
        shown = cluster.until_state(one, "finished")
        assert shown.digest == alone(epochs, 2)
        assert cluster.results(one) == [shown.digest]


@pytest.mark.parametrize("point", ["reclaim-asked", "reclaim-free"])
def test_a_reclaim_that_is_interrupted_is_carried_out(
    cluster: Cluster, alone: Callable[[int, int], str], point: str
) -> None:
    """Whoever asked waits for the next service, and gets the devices from it."""
    cluster.serve(fault=point)
    job = cluster.submit(4, 2, "loader", "wait")
    cluster.until(lambda: len(cluster.job(job).devices) == 2 and cluster.job(job).step >= 2)
    with ThreadPoolExecutor(1) as pool, cluster.client(patience_s=120) as client:
        waiting = pool.submit(client.reclaim, "local", 2, 20.0, force=True)
        assert cluster.process is not None
        assert cluster.process.wait(60) == -signal.SIGKILL
        cluster.serve()
        assert len(waiting.result(120).devices) == 2
    assert not live_executors(cluster.directory(job))
    cluster.until_state(job, "paused")
    with cluster.client() as client:
        assert [device.state for node in client.devices() for device in node.devices] == ["away", "away"]
        client.lend("local", 2)
    cluster.hurry(job)
    assert cluster.until_state(job, "finished").digest == alone(4, 2)
    assert cluster.results(job) == [alone(4, 2)]


def test_two_services_on_one_state(cluster: Cluster) -> None:
    cluster.serve()
    assert cluster.answers()
    other = subprocess.run(
        [sys.executable, "-c", SERVE, "serve", "--state", str(cluster.state)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert other.returncode == 2
    assert "another service has it" in other.stderr
    assert cluster.answers()
    # A stopped one still has it.
    assert cluster.process is not None
    os.kill(cluster.process.pid, signal.SIGSTOP)
    stopped = subprocess.run(
        [sys.executable, "-c", SERVE, "serve", "--state", str(cluster.state)],
        capture_output=True,
        text=True,
        check=False,
    )
    os.kill(cluster.process.pid, signal.SIGCONT)
    assert stopped.returncode == 2


def test_a_damaged_database_is_made_anew_from_the_jobs(cluster: Cluster, alone: Callable[[int, int], str]) -> None:
    cluster.serve()
    done = cluster.submit(1, 2)
    cluster.until_state(done, "finished")
    runs = cluster.submit(4, 2, "loader", "wait")
    waits = cluster.submit(1, 2, kinds=("cpu-sse",))
    gone = cluster.submit(1, 2, kinds=("cpu-sse",))
    with cluster.client() as client:
        client.cancel(gone)
    cluster.until_state(gone, "cancelled")
    cluster.until_step(runs, 2)
    before = cluster.coordinator(runs)
    cluster.kill()
    database = cluster.state / "cluster.sqlite"
    for path in (database, *cluster.state.glob("cluster.sqlite-*")):
        path.write_bytes(b"\x00broken" * 1000)
    cluster.serve(ready=False)
    assert cluster.process is not None
    assert cluster.process.wait(60) == 2
    assert "serve --rebuild" in cluster.story()
    cluster.serve("--rebuild")
    states = {job: cluster.job(job).state for job in (done, waits, gone)}
    assert states == {done: "finished", waits: "queued", gone: "cancelled"}
    cluster.until_state(runs, "running", "resizing")
    assert cluster.coordinator(runs) == before
    cluster.hurry(runs)
    shown = cluster.until_state(runs, "finished")
    assert shown.digest == alone(4, 2)
    assert cluster.results(runs) == [shown.digest]
    assert cluster.submit(1, 2) == "j5"


def test_five_hundred_submissions_at_once(cluster: Cluster) -> None:
    """All are acknowledged, none is there twice, and the service answers meanwhile."""
    from isoscale.cluster.bundle import pack
    from isoscale.cluster.values import Submission
    from isoscale.runtime.code.collect import code_of_script

    cluster.serve()
    bundle = pack(code_of_script(_script(), module="", out=""))
    submission = Submission(code=bundle.id, workers=2, kinds=("cpu-sse",))

    def send(count: int) -> list[str]:
        with cluster.client(patience_s=60) as client:
            return [client.submit_bundle(bundle, submission).id for _ in range(count)]

    with ThreadPoolExecutor(10) as pool:
        ids = [one for found in pool.map(send, [50] * 10) for one in found]
    assert sorted(ids) == sorted(f"j{number}" for number in range(1, 501))
    cluster.kill()
    cluster.serve()
    with cluster.client() as client:
        assert sum(job.state == "queued" for job in client.jobs(limit=1000)) == 500

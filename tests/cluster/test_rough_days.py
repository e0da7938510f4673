"""A full disk, a restart of the machine, a stopped service, a job that talks too much: jobs and digests stay whole."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from isoscale.backends.system import born
from isoscale.cluster.client import ServiceError
from isoscale.cluster.process import live_executors
from tests.cluster.conftest import Cluster

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "disk"
    path.mkdir()
    if os.geteuid() != 0:
        pytest.skip("only root mounts a tmpfs")
    mount = ["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(path)]
    if (mounted := subprocess.run(mount, capture_output=True, text=True)).returncode:
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


def submit_until_refused(cluster: Cluster) -> None:
    """Some pages of the database may have room left."""
    for _ in range(1000):
        cluster.submit(1, 2, kinds=("cpu-sse",))


def test_a_full_disk_is_waited_out(disk: Path, alone: Callable[[int, int], str]) -> None:
    cluster = Cluster(disk / "state")
    try:
        cluster.serve()
        job = cluster.submit(4, 2, "loader", "wait")
        cluster.until(lambda: len(cluster.job(job).devices) == 2 and cluster.job(job).step >= 2)
        fill(disk)
        # Who asks for something that cannot be written down is told so; who only looks is answered.
        with pytest.raises(ServiceError) as refused:
            submit_until_refused(cluster)
        assert refused.value.status == 507
        assert "make room on its disk" in str(refused.value)
        step = cluster.job(job).step
        cluster.until(lambda: cluster.job(job).step > step)
        # A decision that cannot be written down is carried out when it can: nobody has the device twice meanwhile.
        os.kill(live_executors(cluster.directory(job))[0].pid, signal.SIGKILL)
        time.sleep(2)
        assert cluster.answers()
        (disk / "filler").unlink()
        cluster.until(lambda: cluster.job(job).state == "running")
        with cluster.client() as client:
            for one in client.jobs():
                if one.id != job and one.state not in ("finished", "failed"):
                    client.cancel(one.id)
        cluster.hurry(job)
        assert cluster.until_state(job, "finished").digest == alone(4, 2)
        assert cluster.results(job) == [alone(4, 2)]
    finally:
        cluster.end()


def test_a_stopped_service_a_flood_and_a_restart_of_the_machine(
    cluster: Cluster, alone: Callable[[int, int], str]
) -> None:
    cluster.serve()
    assert cluster.process is not None
    job = cluster.submit(4, 2, "loader", "wait")
    waits = cluster.submit(1, 2, after=(job,))
    cluster.until_step(job, 2)

    # Stopped, the service delays nobody who trains; when it goes on it knows how far they are.
    os.kill(cluster.process.pid, signal.SIGSTOP)
    time.sleep(3)
    os.kill(cluster.process.pid, signal.SIGCONT)
    cluster.until_state(job, "running")

    # A job that prints 200,000 lines: pages of its log stay small, and the last ones are there.
    (cluster.directory(job) / "flood").write_text("once 200000")
    with cluster.client() as client:

        def flooded() -> bool:
            return any(one.size > 2_000_000 for one in client.logs(job))

        cluster.until(flooded)
        source = max(client.logs(job), key=lambda one: one.size)
        page = client.log(job, source.source)
        assert 0 < len(page.text) <= 2**20
    before = cluster.job(job).step

    # The machine goes down. A process that has the number and the birth of the coordinator is somebody else's.
    cluster.kill()
    cluster.kill_coordinator(job)
    cluster.kill_executors(job)
    with contextlib.closing(sqlite3.connect(cluster.state / "cluster.sqlite")) as database, database:
        database.execute("UPDATE meta SET value = 'another-boot' WHERE key = 'boot'")
        database.execute(
            "UPDATE attempts SET boot = 'another-boot', pid = ?, born = ? WHERE ended_s IS NULL",
            (os.getpid(), born(os.getpid())),
        )
    cluster.serve()
    cluster.hurry(job)
    assert cluster.until_state(job, "finished").digest == alone(4, 2)
    assert cluster.until_state(waits, "finished").digest == alone(1, 2)
    assert cluster.results(job) == [alone(4, 2)]
    assert cluster.job(job).step >= before

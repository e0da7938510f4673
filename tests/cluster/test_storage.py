"""Jobs of a service that has a storage: what its machine has may go."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from isoscale.runtime.storage.client import open_storage
from isoscale.runtime.storage.ledger import newest_terms
from tests.cluster.conftest import Cluster
from tests.elastic.machines import Machines

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def storage(tmp_path: Path) -> str:
    return f"file://{tmp_path}/store"


def test_a_job_is_paused_loses_its_coordinator_and_ends_elsewhere(
    cluster: Cluster, alone: Callable[[int, int], str], storage: str, tmp_path: Path
) -> None:
    cluster.serve("--storage", storage, devices="cpu*1")
    job = cluster.submit(2, 2, "wait", retries=3)
    cluster.until_step(job, 2)
    with cluster.client(patience_s=60) as client:
        client.pause(job)
        cluster.until_state(job, "paused")
        client.resume(job)
    cluster.until_state(job, "running")
    cluster.kill_coordinator(job)
    cluster.until(lambda: newest_terms(open_storage(f"{storage}/{job}")).based >= 3)
    cluster.hurry(job)
    cluster.until_state(job, "finished")
    assert cluster.results(job) == [alone(2, 2)]

    # The machine of the service is gone: another one has the result by the job's storage.
    cluster.end()
    cluster.state.rename(tmp_path / "away")
    ended, out = f"{storage}/{job}", tmp_path / "again"
    elsewhere = Machines(tmp_path)
    elsewhere.start("other", "resume", ended, "--out", out)
    elsewhere.until(lambda: elsewhere.processes["other"].poll() is not None, "the end")
    assert (out / "final.pt").read_bytes() == (tmp_path / "away" / "jobs" / job / "final.pt").read_bytes()


def test_every_job_has_a_storage_of_its_own(cluster: Cluster, alone: Callable[[int, int], str], storage: str) -> None:
    cluster.serve("--storage", f"{storage}/")
    jobs = [cluster.submit(1, workers) for workers in (1, 2)]
    for job, workers in zip(jobs, (1, 2), strict=True):
        cluster.until_state(job, "finished")
        assert cluster.results(job) == [alone(1, workers)]
        assert newest_terms(open_storage(f"{storage}/{job}")).based == 1

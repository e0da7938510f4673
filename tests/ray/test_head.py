"""The head of a Ray cluster is lost: for good, and for a while."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from isoscale.backends.system import born
from isoscale.testing import Nursery, RunningJob, short_job_path, start
from isoscale.testing.chaos import Result
from tests.ray.nodes import Nodes, ends_the_same

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]


def begin(nodes: Nodes, nursery: Nursery, out: Path, **options: Any) -> RunningJob:
    given = ["--backend", "ray", "--address", nodes.address, "--no-rebalance"]
    arguments = ["4", "0.04", "0", "wait", "track"]
    return start(short_job_path(), out=out, nursery=nursery, options=given, script_args=arguments, **options)


def test_the_head_is_lost_and_another_cluster_takes_its_place(
    nursery: Nursery, expected: Result, tmp_path: Path
) -> None:
    """Without a GCS that survives it a head takes all nodes along: the job goes on from its newest checkpoint."""
    first = Nodes()
    first.have(2)
    job = begin(first, nursery, tmp_path / "run", executors=2, checkpoint_every=5)
    second = None
    try:
        job.wait_step(12)
        before = job.pids()
        job.kill_coordinator()
        for executor, pid in before.items():
            job.did("kill", executor, pid)
        first.close()
        job.wait_for(lambda: not any(map(born, before.values())), "the end of executors whose nodes are gone")
        second = Nodes()
        second.have(2)
        job.resume("--address", second.address)
        ends_the_same(job, expected)
        assert len(job.events("restart")) == 1
    finally:
        job.close()
        (second or first).close()


@pytest.fixture
def lasting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    """A cluster whose head finds what it knew in a directory."""
    monkeypatch.setenv("RAY_gcs_storage", "rocksdb")
    monkeypatch.setenv("RAY_gcs_storage_path", str(tmp_path / "gcs"))
    made = Nodes()
    made.have(2)
    yield made
    made.close()


def test_a_head_that_remembers_comes_back(lasting: Nodes, nursery: Nursery, expected: Result, tmp_path: Path) -> None:
    """Executors train without a head; with it there are starts again, and another coordinator finds its actors."""
    job = begin(lasting, nursery, tmp_path / "run", executors=1)
    try:
        job.wait_step(2)
        head = lasting.cluster.head_node
        head.kill_gcs_server()
        job.wait_step(job.step() + 3)
        job.scale(2)
        job.wait_step(job.step() + 3)
        assert len(job.members()) == 1, "who could have started another one?"
        head.start_gcs_server()
        job.wait_members(2)
        before = job.pids()
        job.kill_coordinator()
        job.resume()
        job.wait_for(lambda: len(job.events("coordinator_started")) == 2, "another coordinator")
        job.wait_step(job.step() + 2)
        assert {executor: job.pids()[executor] for executor in job.members()} == before
        ends_the_same(job, expected)
        assert job.events("restart") == []
    finally:
        job.close()

"""The head of a Ray cluster is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from isoscale.backends.system import born
from isoscale.testing import Nursery, short_job_path, start
from isoscale.testing.chaos import Result
from tests.ray.nodes import Nodes, ends_the_same

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]


def test_the_head_is_lost_and_another_cluster_takes_its_place(
    nursery: Nursery, expected: Result, tmp_path: Path
) -> None:
    """Without a GCS that survives it a head takes all nodes along: the job goes on from its newest checkpoint."""
    first = Nodes()
    first.have(2)
    given = ["--backend", "ray", "--address", first.address, "--no-rebalance"]
    arguments = ["4", "0.04", "0", "wait", "track"]
    job = start(
        short_job_path(),
        out=tmp_path / "run",
        nursery=nursery,
        options=given,
        executors=2,
        checkpoint_every=5,
        script_args=arguments,
    )
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

"""A service whose devices are a Ray cluster's nodes: jobs share them, and do not notice what happens to them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from isoscale.testing import short_job_path, start
from tests.cluster.conftest import Cluster
from tests.ray.nodes import Nodes

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path / "state")
    yield made
    made.end()


def devices_of(cluster: Cluster, job: str) -> set[str]:
    with_names = json.loads((cluster.directory(job) / "control" / "executors.json").read_text())
    return {one["device"] for one in with_names.values() if one.get("name")}


def test_two_jobs_on_three_nodes(nodes: Nodes, cluster: Cluster, tmp_path: Path) -> None:
    out = tmp_path / "alone"
    with start(short_job_path(), out=out, workers=2, executors=1, script_args=["4"]) as alone:
        assert alone.wait() == 0, alone.output()
    nodes.have(3)
    on_ray = ["--backend", "ray", "--address", nodes.address]
    cluster.serve(*on_ray, devices=None)
    jobs = [cluster.submit(4, 2, "loader", "wait", retries=3) for _ in range(2)]
    for job in jobs:
        cluster.until_state(job, "running")
        cluster.until_step(job, 2)
    held = [devices_of(cluster, job) for job in jobs]
    assert all(held)
    assert not held[0] & held[1], "two jobs were given one device"

    # The service dies; its successor finds coordinators and actors, and gives nobody's device away.
    before = {job: cluster.coordinator(job) for job in jobs}
    cluster.kill()
    cluster.serve(*on_ray, devices=None)
    for job in jobs:
        cluster.until_state(job, "running")
        assert cluster.coordinator(job) == before[job]

    # A node dies under a job: it goes on elsewhere, or with less.
    name = next(iter(devices_of(cluster, jobs[0]))).partition("/")[0]
    nodes.kill(next(node for node in nodes.all() if node.node_id.startswith(name)))
    cluster.until(lambda: name not in {one.partition("/")[0] for job in jobs for one in devices_of(cluster, job)})
    cluster.until_state(jobs[0], "running")

    # A node joins: it is among the devices without anybody's word.
    added = nodes.add()
    cluster.until(lambda: cluster.answers() and any(one.name == added.node_id[:8] for one in cluster_nodes(cluster)))
    cluster.hurry(*jobs)
    for job in jobs:
        cluster.until_state(job, "finished")
        assert cluster.results(job) == [alone.digest()]


def cluster_nodes(cluster: Cluster) -> list[object]:
    with cluster.client(patience_s=60) as client:
        return list(client.devices())

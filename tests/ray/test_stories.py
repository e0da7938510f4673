"""What may happen to a job on a Ray cluster, told with real nodes. Every story ends with the bits of a local run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from isoscale.backends.system import born
from isoscale.testing import Nursery, RunningJob, short_job_path, start
from isoscale.testing.chaos import Result, compare, result_of, undisturbed
from tests.ray.nodes import ADDRESS, Nodes
from tests.security.test_tls import certificate

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as one:
        yield one


@pytest.fixture(scope="module")
def expected(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Result:
    return undisturbed(tmp_path_factory.mktemp("undisturbed") / "run", nursery)


@pytest.fixture
def begin(nodes: Nodes, nursery: Nursery, tmp_path: Path) -> Iterator[Callable[..., RunningJob]]:
    jobs: list[RunningJob] = []

    def begin(**options: Any) -> RunningJob:
        given = ["--backend", "ray", "--address", nodes.address, "--no-rebalance", *options.pop("options", [])]
        job = start(
            short_job_path(),
            out=tmp_path / "run",
            nursery=nursery,
            options=given,
            script_args=["4", "0.04", "0", "wait", "track"],
            **options,
        )
        jobs.append(job)
        return job

    yield begin
    for job in jobs:
        job.close()


def test_the_head_is_lost_and_another_cluster_takes_its_place(
    nursery: Nursery, expected: Result, tmp_path: Path
) -> None:
    """Without a GCS that survives it a head takes all nodes along: the job goes on from its newest checkpoint."""
    import ray

    ray.shutdown()  # of the cluster that other tests have; they connect again
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


def ends_the_same(job: RunningJob, expected: Result) -> None:
    job.hurry()
    assert job.wait() == 0, job.output()
    assert compare(expected, result_of(job)) == ""


def device_of(job: RunningJob, executor: int) -> str:
    known = json.loads((job.directory / "control" / "executors.json").read_text())
    return str(known[str(executor)]["device"])


def node_of(nodes: Nodes, job: RunningJob, executor: int) -> Any:
    return next(node for node in nodes.all() if device_of(job, executor).startswith(node.node_id[:8]))


def actor_pid(job: RunningJob, executor: int) -> int:
    """Of the Ray worker in which an executor's actor runs."""
    import ray

    from isoscale.backends.ray_connection import connect
    from isoscale.backends.ray_found import NAMESPACE

    connect(os.environ[ADDRESS])
    known = json.loads((job.directory / "control" / "executors.json").read_text())
    return int(ray.get(ray.get_actor(known[str(executor)]["name"], namespace=NAMESPACE).pid.remote(), timeout=60))


def drain(nodes: Nodes, node: Any) -> None:
    reason = ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "a test"]
    command = [sys.executable, "-m", "ray.scripts.scripts", "drain-node", "--address", nodes.address]
    command += ["--node-id", node.node_id, *reason, "--deadline-remaining-seconds", "600"]
    subprocess.run(command, check=True, capture_output=True, timeout=120)


def test_nodes_come_and_go(nodes: Nodes, begin: Callable[..., RunningJob], expected: Result, tmp_path: Path) -> None:
    """Growth over nodes, a node killed in mid-step, one that drains, an actor killed, and a coordinator."""
    nodes.have(3)
    pem, key = certificate(tmp_path, "ray", names=f"IP:{nodes.address.rpartition(':')[0]}")
    job = begin(executors=1, options=["--certificate", str(pem), "--key", str(key)])
    job.wait_step(2)
    job.scale(3)
    first, second, third = job.wait_members(3)
    assert len({device_of(job, executor) for executor in (first, second, third)}) == 3

    # A node dies: nobody could say goodbye, and those who are left do the open step again.
    nodes.kill(node_of(nodes, job, second))
    job.did("kill", second)
    job.wait_for(lambda: second not in job.members(), "a generation without it")
    nodes.have(3)
    job.scale(3)
    job.wait_for(lambda: len(job.members()) == 3 and second not in job.members(), "a device on the new node")

    # A node drains: whoever is there leaves at a switch, and nothing is done twice.
    lost = len(job.events("executor_lost"))
    nodes.add()
    drained = node_of(nodes, job, third)
    job.did("notice", third)
    drain(nodes, drained)
    job.wait_for(lambda: third not in job.members() and len(job.members()) == 3, "another node")
    assert [one for one in job.events("executor_lost")[lost:] if "gone" in one["reason"]] == []
    nodes.kill(drained)

    # kill -9 of an actor takes its executor along.
    victim = job.members()[-1]
    pid = job.pids()[victim]
    job.did("kill", victim, pid)
    os.kill(actor_pid(job, victim), signal.SIGKILL)
    job.wait_for(lambda: not born(pid), "the end of its executor")
    job.wait_for(lambda: victim not in job.members() and len(job.members()) == 3, "another one")

    # A coordinator dies; the next one finds the actors by their names.
    before = job.pids()
    job.kill_coordinator()
    job.resume()
    job.wait_for(lambda: len(job.events("coordinator_started")) == 2, "another coordinator")
    job.wait_step(job.step() + 2)
    assert {executor: job.pids().get(executor) for executor in job.members()} == {
        executor: before.get(executor) for executor in job.members()
    }, "executors did not outlive their coordinator"
    ends_the_same(job, expected)
    assert job.events("restart") == []
    job.check_promises()

"""A Ray cluster of several nodes on this machine: held against the seam, in a story, under a service.

One file, so that all of it runs in one process and on one cluster: starting nodes is what costs time. Every job ends
with the bits of a local run.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from isoscale.backends.local import training_environment
from isoscale.backends.ray import RayBackend
from isoscale.backends.ray_connection import connect
from isoscale.backends.ray_found import NAMESPACE
from isoscale.backends.ray_nodes import Demand, short_name
from isoscale.backends.system import born
from isoscale.kinds import profile_of
from isoscale.runtime.coordinator.run import WARM_UP
from isoscale.testing import Nursery, RunningJob, short_job_path, start
from isoscale.testing.chaos import Result
from isoscale.testing.conformance import CHECKS, program
from tests.cluster.conftest import Cluster
from tests.elastic.machines import ISOSCALE
from tests.ray.nodes import ADDRESS, Nodes, OnRay, ends_the_same
from tests.security.test_tls import certificate

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]

# ---- the seam ----


@pytest.mark.parametrize("name", CHECKS)
def test_ray(name: str, nodes: Nodes, tmp_path: Path) -> None:
    nodes.have(2)
    OnRay.remove = staticmethod(lambda device: nodes.kill(nodes.of(device)))
    asyncio.run(CHECKS[name](OnRay(), tmp_path))


async def _works_in_a_copy(tmp_path: Path) -> None:
    (tmp_path / "brought").mkdir()
    (tmp_path / "brought" / "data.txt").write_text("found it")
    connect(os.environ[ADDRESS], str(tmp_path / "brought"))
    backend = RayBackend(WARM_UP, Demand(cores=1), brings=True)
    launch = program("import os; print(os.getcwd(), open('data.txt').read())", tmp_path)
    process = await backend.start(launch, backend.free_device("cpu", ()))
    assert await process.wait() == "exit code 0", process.tail()
    where, found = process.tail().split(" ", 1)
    assert found == "found it"
    assert Path(where) not in (tmp_path / "brought", Path.cwd())
    await process.sweep()
    await backend.close()


def test_a_working_directory_comes_through_the_runtime_environment(nodes: Nodes, tmp_path: Path) -> None:
    import ray

    nodes.have(1)
    ray.shutdown()  # a directory belongs to a connection
    try:
        asyncio.run(_works_in_a_copy(tmp_path))
    finally:
        ray.shutdown()


async def _prepares_a_node_that_joins(nodes: Nodes) -> None:
    import ray

    backend = OnRay().make()
    backend.prepare(training_environment({}, profile_of("cpu"), 1))
    backend.listen(lambda notice: None)
    before = set(nodes.all())
    nodes.have(3)
    for node in set(nodes.all()) - before:
        async with asyncio.timeout(120):
            while not any(name.startswith(f"warm/{node.node_id}/") for name in ray.util.list_named_actors()):
                await asyncio.sleep(0.1)
    await backend.close()


def test_a_node_that_joins_gets_a_warm_actor_before_anybody_is_started_there(nodes: Nodes) -> None:
    nodes.have(2)
    asyncio.run(_prepares_a_node_that_joins(nodes))


async def _starts_in_a_spare(tmp_path: Path) -> None:
    import ray
    from ray._private.state import available_resources_per_node

    backend, successor = OnRay().make(), OnRay().make()
    before = ray.util.list_named_actors()
    backend.prepare(training_environment({}, profile_of("cpu"), 1))
    backend.listen(lambda notice: None)

    async def until(done: Callable[[], Any]) -> Any:
        async with asyncio.timeout(120):
            while not (found := done()):
                await asyncio.sleep(0.05)
        return found

    def free(node: str) -> float:
        return float(available_resources_per_node()[node].get("CPU", 0.0))

    def spares() -> list[str]:
        """Not those of tests before, which may still be about to end."""
        return [name for name in ray.util.list_named_actors() if name.startswith("spare/") and name not in before]

    await until(spares)
    assert all(free(name.split("/")[1]) == 1.0 for name in spares()), "a spare takes nothing"
    launch = program("import time; time.sleep(1000)", tmp_path)
    process = await backend.start(launch, backend.free_device("cpu", ()))
    assert process.identity.name.startswith("spare/")
    node = process.identity.name.split("/")[1]
    await until(lambda: free(node) == 0.0)
    again = successor.find(process.identity, launch.log)
    assert again is not None
    actor = ray.get_actor(process.identity.name, namespace=NAMESPACE)
    os.kill(ray.get(actor.pid.remote()), signal.SIGKILL)
    assert (await process.wait()).startswith("ended with its Ray actor")
    await again.wait()
    await until(lambda: born(process.identity.pid) != process.identity.born and free(node) == 1.0)
    await backend.close()


def test_a_start_uses_an_actor_that_is_there_already(nodes: Nodes, tmp_path: Path) -> None:
    nodes.have(2)
    asyncio.run(_starts_in_a_spare(tmp_path))


# ---- a story ----


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


def device_of(job: RunningJob, executor: int) -> str:
    known = json.loads((job.directory / "control" / "executors.json").read_text())
    return str(known[str(executor)]["device"])


def node_of(nodes: Nodes, job: RunningJob, executor: int) -> Any:
    return next(node for node in nodes.all() if device_of(job, executor).startswith(short_name(node.node_id)))


def actor_pid(job: RunningJob, executor: int) -> int:
    """Of the Ray worker in which an executor's actor runs."""
    import ray

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
    job.ca_file = pem
    job.wait_step(2)
    job.scale(3)
    first, second, third = job.wait_members(3)
    assert len({device_of(job, executor) for executor in (first, second, third)}) == 3

    # A node dies: nobody could say goodbye, and those who are left do the open step again.
    node = node_of(nodes, job, second)
    for hurt in (second, third + 1, third + 2):  # a replacement may be sent there before anybody knows
        job.did("kill", hurt)
    nodes.kill(node)
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


def test_stock_ddp_has_the_bits_that_all_jobs_here_are_held_against(expected: Result, tmp_path: Path) -> None:
    command = [*ISOSCALE, "verify", str(short_job_path()), "--workers", "4", "--executors", "1"]
    command += ["--out", str(tmp_path / "verify"), "--", "4", "0"]
    variables = {**os.environ, "COLUMNS": "200", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"reference  digest {expected.digest}" in done.stdout


# ---- a service ----


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
    nodes.kill(next(node for node in nodes.all() if short_name(node.node_id) == name))
    cluster.until(lambda: name not in {one.partition("/")[0] for job in jobs for one in devices_of(cluster, job)})
    cluster.until_state(jobs[0], "running")

    # A node joins: it is among the devices without anybody's word.
    added = nodes.add()
    cluster.until(
        lambda: cluster.answers() and any(one.name == short_name(added.node_id) for one in cluster_nodes(cluster))
    )
    cluster.hurry(*jobs)
    for job in jobs:
        cluster.until_state(job, "finished")
        assert cluster.results(job) == [alone.digest()]


def cluster_nodes(cluster: Cluster) -> list[object]:
    with cluster.client(patience_s=60) as client:
        return list(client.devices())

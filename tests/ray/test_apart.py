"""Nodes of a Ray cluster that share no disk: they see nothing of the run's directory, and have its storage instead.

A node is a machine of its own but for its network: mount namespace, process ids, shared memory.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from isoscale.backends.ray_nodes import short_name
from isoscale.runtime.storage.client import open_storage
from isoscale.runtime.storage.ledger import newest_terms
from isoscale.testing import RunningJob, short_job_path
from isoscale.testing.chaos import Result, compare, result_of
from tests.cluster.conftest import Cluster
from tests.elastic.machines import Machines
from tests.ray.nodes import Nodes

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]

PATIENCE_S = 240.0


def machine_of(job: RunningJob, executor: int) -> str:
    import ray

    device = json.loads((job.directory / "control" / "executors.json").read_text())[str(executor)]["device"]
    return next(node["Labels"]["machine"] for node in ray.nodes() if device.startswith(short_name(node["NodeID"])))


def test_nodes_that_see_nothing_of_the_run(nodes: Nodes, machines: Machines, expected: Result, tmp_path: Path) -> None:
    """A node dies in mid-step, then the coordinator with its directory: another one goes on by the URL."""
    (tmp_path / "script").mkdir()
    script = Path(shutil.copy(short_job_path(), tmp_path / "script" / "train.py"))
    out, again, url = tmp_path / "run", tmp_path / "again", f"file://{tmp_path}/store"
    out.mkdir()
    nodes.add_apart(machines, "a", "b", "c")
    machines.start(
        "first", "run", script, "--workers", 4, "--executors", 2, "--storage", url, "--out", out,
        "--backend", "ray", "--address", nodes.address, "--checkpoint-every", 5, "--no-rebalance",
        "--", "4", "0.04", apart=False,
    )  # fmt: skip
    job = RunningJob(out)
    machines.until(lambda: job.step() >= 6, "six steps", PATIENCE_S)
    victim = job.members()[-1]
    machines.kill(machine_of(job, victim))
    machines.until(lambda: victim not in job.members() and len(job.members()) == 2, "one on the third node", PATIENCE_S)
    machines.kill("first")
    out.rename(tmp_path / "away")
    shutil.rmtree(script.parent)
    machines.start("second", "resume", url, "--out", again)
    later = RunningJob(again)
    machines.until(lambda: machines.processes["second"].poll() is not None, "the end", PATIENCE_S)
    assert machines.processes["second"].returncode == 0, machines.output()
    assert compare(expected, result_of(later)) == "", machines.output()
    assert later.events("restart") == [], "executors did not train on"
    assert newest_terms(open_storage(url)).based == 2


def test_jobs_of_a_service_on_nodes_that_see_nothing_of_it(
    nodes: Nodes, machines: Machines, expected: Result, tmp_path: Path
) -> None:
    """A node dies under the service, and a job's coordinator: both jobs end with the bits of the run alone."""
    (tmp_path / "script").mkdir()
    script = shutil.copy(short_job_path(), tmp_path / "script" / "train.py")
    nodes.add_apart(machines, "d", "e", "f")
    cluster = Cluster(tmp_path / "run" / "state")
    cluster.state.parent.mkdir(exist_ok=True)
    url = f"file://{tmp_path}/store"
    try:
        cluster.serve("--backend", "ray", "--address", nodes.address, "--storage", url, devices=None)
        with cluster.client(patience_s=60) as client:
            ids = [client.submit(script, workers=4, script_args=("4", "0.04"), retries=3).id for _ in range(2)]
        for job in ids:
            cluster.until_step(job, 6)
        running = RunningJob(cluster.directory(ids[0]))
        machines.kill(machine_of(running, running.members()[-1]))
        cluster.kill_coordinator(ids[1])
        for job in ids:
            cluster.until_state(job, "finished")
            assert compare(expected, result_of(RunningJob(cluster.directory(job)))) == "", cluster.story()
    finally:
        cluster.end()

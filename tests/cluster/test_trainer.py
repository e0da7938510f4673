"""A script with Hugging Face's Trainer as a job of the service: it grows, shrinks, loses executors and its coordinator,
and comes to what it comes to alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from isoscale.cluster.process import live_executors
from isoscale.protocol.events import read_events
from isoscale.protocol.files import read_small_json
from isoscale.testing import start
from tests.cluster.conftest import SERVE, Cluster

pytest.importorskip("accelerate")
pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]

SCRIPT = Path(__file__).with_name("trainer_job.py")
#: one that gives a running job more devices, and decides often
ELASTIC = ("--policy", "easyscale", "--interval", "0.5")


def test_a_trainer_in_the_service(cluster: Cluster, tmp_path: Path) -> None:
    solo, served = tmp_path / "solo", tmp_path / "served"
    for folder in (solo, served):
        folder.mkdir()
    (solo / "hurry").touch()
    with start(SCRIPT, out=tmp_path / "run", workers=2, executors=1, script_args=[str(solo)]) as alone:
        assert alone.wait() == 0, alone.output()
        digest = alone.digest()

    cluster.serve(*ELASTIC)
    with cluster.client(patience_s=60) as client:
        job = client.submit(SCRIPT, workers=2, script_args=(str(served),), retries=3).id

        def has(count: int) -> bool:
            return len(live_executors(cluster.directory(job))) == count and cluster.job(job).state == "running"

        cluster.until_step(job, 1)
        cluster.until(lambda: has(2))  # the policy finds that it is worth it
        client.scale(job, 1)
        cluster.until(lambda: has(1))
        client.scale(job, 2)
        cluster.until(lambda: has(2))
        killed = live_executors(cluster.directory(job))[0].pid
        os.kill(killed, signal.SIGKILL)
        cluster.until(lambda: has(2) and killed not in {one.pid for one in live_executors(cluster.directory(job))})
        client.scale(job, 1)
        cluster.until(lambda: has(1))
    cluster.kill()
    cluster.kill_coordinator(job)
    (served / "hurry").touch()
    cluster.serve(*ELASTIC)
    shown = cluster.until_state(job, "finished")
    assert shown.digest == digest
    assert cluster.results(job) == [digest]
    names = [sorted(path.name for path in folder.glob("checkpoint-*")) for folder in (solo, served)]
    assert names[0] == names[1] != []
    for name in names[0]:
        weights = [(folder / name / "model.safetensors").read_bytes() for folder in (solo, served)]
        assert weights[0] == weights[1]


@pytest.mark.parametrize("policy", ["autoscaler", "pollux"])
def test_devices_and_batch_sizes_that_the_service_chooses(cluster: Cluster, tmp_path: Path, policy: str) -> None:
    served = tmp_path / "served"
    served.mkdir()
    cluster.serve("--policy", policy, "--interval", "1")
    with cluster.client(patience_s=60) as client:
        script_args = (str(served), "2", "4")
        job = client.submit(SCRIPT, workers=2, script_args=script_args, batch_sizes=(2, 4), measure_noise=2).id

    def has(count: int) -> bool:
        return len(live_executors(cluster.directory(job))) == count and cluster.job(job).state == "running"

    cluster.until(lambda: has(2) and cluster.job(job).batch == 4)  # the policy finds that both are worth it
    other = cluster.submit(4, 1, "wait")
    cluster.until(lambda: has(1) and cluster.job(other).state == "running")
    cluster.hurry(other)
    cluster.until(lambda: has(2) and cluster.job(other).state == "finished")
    (served / "hurry").touch()
    shown = cluster.until_state(job, "finished")
    events = list(read_events(cluster.directory(job) / "events.jsonl"))
    changes = [event for event in events if event["event"] == "batch"]
    # As turns become shorter at the end the policy may think again; every change is on record, from the size before.
    assert [one["from"] for one in changes] == [2, *(one["to"] for one in changes)][:-1]
    assert changes[0]["to"] == 4
    assert shown.samples == sum(event["samples"] for event in events if event["event"] == "step")
    out = tmp_path / "again"
    again = ["run", str(SCRIPT), "--like", str(cluster.directory(job)), "--out", str(out), "--executors", "1"]
    done = subprocess.run([sys.executable, "-c", SERVE, *again], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    repeated = read_small_json(out / "summary.json")
    assert (repeated["digest"], repeated["samples"]) == (shown.digest, shown.samples)

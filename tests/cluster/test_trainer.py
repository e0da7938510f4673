"""A script with Hugging Face's Trainer as a job of the service: it grows, shrinks, loses executors and its coordinator,
and comes to what it comes to alone."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from isoscale.cluster.process import live_executors
from isoscale.testing import start
from tests.cluster.conftest import Cluster

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

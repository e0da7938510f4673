"""A scheduler chooses the batch size of a running job; what comes of it is what anybody gets with the recorded plan."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from isoscale.protocol.events import read_events
from isoscale.protocol.files import read_small_json
from isoscale.testing import short_job_path
from tests.cluster.conftest import SERVE, Cluster

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.parametrize("policy", ["autoscaler", "pollux"])
def test_a_batch_size_that_the_service_chooses(cluster: Cluster, tmp_path: Path, policy: str) -> None:
    cluster.serve("--policy", policy, "--interval", "1")
    # It begins with 8, of which its owner does not want it to go down; with larger batches it is faster.
    job = cluster.submit(4, 2, "live", "wait", batch_sizes=(8, 16), measure_noise=2)
    cluster.until(lambda: cluster.job(job).batch == 16)
    shown = cluster.job(job)
    assert shown.samples
    assert shown.noise_scale is not None
    cluster.hurry(job)
    shown = cluster.until_state(job, "finished")
    events = list(read_events(cluster.directory(job) / "events.jsonl"))
    changes = [event for event in events if event["event"] == "batch"]
    # As turns become shorter at the end the policy may think again; every change is on record, from the size before.
    assert [one["from"] for one in changes] == [8, *(one["to"] for one in changes)][:-1]
    assert {one["to"] for one in changes} <= {8, 16}
    assert changes[0]["to"] == 16
    assert shown.samples == sum(event["samples"] for event in events if event["event"] == "step") == 4 * 640
    out = tmp_path / "again"
    again = ["run", str(short_job_path()), "--like", str(cluster.directory(job)), "--out", str(out), "--executors", "1"]
    with subprocess.Popen([sys.executable, "-c", SERVE, *again], stderr=subprocess.PIPE, text=True) as process:
        cluster.until(lambda: (out / "control").is_dir() or process.poll() is not None)
        if process.poll() is None:
            (out / "hurry").touch()
        _, said = process.communicate(timeout=200)
    assert process.returncode == 0, said
    repeated = read_small_json(out / "summary.json")
    assert (repeated["digest"], repeated["samples"]) == (shown.digest, shown.samples)

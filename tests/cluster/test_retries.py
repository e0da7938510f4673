"""Jobs that fail: tried again if that can help, and caught while they hold one device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.conftest import Cluster

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(300)]

#: fails when it first runs, then trains; or fails whenever it runs
SCRIPT = """
import pathlib
import runpy
import sys

from isoscale.testing import short_job_path

mark, error = pathlib.Path(sys.argv[1]), sys.argv[2]
if error == "ValueError" or not mark.exists():
    mark.touch()
    raise ValueError("not this one") if error == "ValueError" else RuntimeError("Connection reset by peer")
sys.argv = [str(short_job_path()), "1"]
runpy.run_path(str(short_job_path()), run_name="__main__")
"""


def test_errors_on_trial(cluster: Cluster, alone: Callable[[int, int], str], tmp_path: Path) -> None:
    cluster.serve("--policy", "easyscale", "--trial", "3")
    script = tmp_path / "fails.py"
    script.write_text(SCRIPT)

    def submit(name: str, error: str, retries: int) -> str:
        with cluster.client(patience_s=60) as client:
            arguments = (str(tmp_path / name), error)
            return client.submit(script, workers=2, script_args=arguments, retries=retries, name=name).id

    flaky, hopeless = submit("flaky", "RuntimeError", 1), submit("hopeless", "ValueError", 3)
    failed = cluster.until_state(hopeless, "failed")
    assert failed.failures == 1
    assert "semantic error: no retry cures it" in failed.why.text
    assert cluster.until_state(flaky, "finished").digest == alone(1, 2)
    with cluster.client() as client:
        told = [one.fields for one in client.job_events(flaky) if one.event == "job_queued"]
        assert [(one["class"], one["retry"], one["on_trial"]) for one in told if "class" in one] == [
            ("MPI runtime failure", "MPI runtime failure: retry 1 of 1", True)
        ]
        (last,) = [one.fields for one in client.job_events(hopeless) if one.event == "job_failed"]
        assert (last["class"], last["on_trial"]) == ("semantic error", True)
        assert "isoscale_service_trial_failures 2" in client.metrics()

    # One that trains: on one device first, then on both that are free.
    job = cluster.submit(4, 2, "wait")
    cluster.until(lambda: len(cluster.job(job).devices) == 2)
    with cluster.client() as client:
        sizes = [one.fields["to"] for one in client.job_events(job) if one.event in ("job_started", "job_resized")]
    assert sizes == [1, 2]
    cluster.hurry(job)
    assert cluster.until_state(job, "finished").digest == alone(4, 2)

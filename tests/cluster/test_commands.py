"""The commands against a real service: what they print, and how they end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from isoscale import env
from isoscale.cluster.process import live_executors
from isoscale.testing import short_job_path
from tests.cluster.conftest import SERVE, Cluster

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(300)]

FIELDS = {
    *("id", "name", "tenant", "state", "priority", "devices", "executors", "step", "samples"),
    *("submitted_s", "started_s", "ended_s", "digest", "error", "why"),
}
WHY = {"reason", "text", "position", "ahead", "estimated_start_s", "estimated_end_s"}


def isoscale(cluster: Cluster, *words: str, code: int = 0, cwd: Path | None = None) -> str:
    done = subprocess.run(
        [sys.executable, "-c", SERVE, *words],
        capture_output=True,
        text=True,
        env={**os.environ, env.CLUSTER: str(cluster.state), "COLUMNS": "200"},
        cwd=cwd,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr + cluster.story()
    return done.stdout + done.stderr


def check_analysis(cluster: Cluster, jobs: list[dict], out: Path) -> None:
    isoscale(cluster, "analyze", str(cluster.state), "--out", str(out))
    found = json.loads((out / "analysis.json").read_text())
    assert found["format"] == "isoscale-service"
    assert found["jobs"] == len(jobs)
    by_state = {"finished": "passed", "failed": "failed", "cancelled": "killed"}
    states = [
        "rejected" if job["state"] == "failed" and job["started_s"] is None else by_state[job["state"]] for job in jobs
    ]
    for status, count in found["status"]["by_jobs"].items():
        assert count == states.count(status), (status, found["status"])
    started = [job for job in jobs if job["started_s"] is not None]
    waited = [job["started_s"] - job["submitted_s"] for job in started]
    ran = [job["ended_s"] - job["started_s"] for job in started]
    for key, values in (("queue_s", waited), ("run_s", ran)):
        figures = found[key]["all"]
        assert figures["count"] == len(values)
        assert figures["mean"] == pytest.approx(sum(values) / len(values), rel=1e-9), key
    assert found["own"]["source"] == "service"
    assert found["own"]["paused"] >= 1


def test_a_day_of_a_service(cluster: Cluster, alone: Callable[[int, int], str], tmp_path: Path) -> None:
    cluster.serve("--policy", "easyscale", "--quotas", "team-b=1", "--pin")
    home = tmp_path / "home"
    home.mkdir()
    script = home / "mine.py"
    script.write_text(short_job_path().read_text())
    long = isoscale(
        cluster,
        "submit",
        "mine.py",
        "--workers",
        "2",
        "--key",
        "once",
        "--",
        "4",
        "0.01",
        "0",
        "loader",
        "wait",
        cwd=home,
    ).strip()
    # Frozen at submission: what becomes of the file is nothing to the job.
    script.write_text("raise SystemExit('edited')\n")
    urgent = isoscale(
        cluster, "submit", str(short_job_path()), "--workers", "2", "--priority", "9", "--wait", "--", "1"
    ).strip()
    assert (long, urgent) == ("j1", "j2")
    shown = {job["id"]: job for job in json.loads(isoscale(cluster, "jobs", "--json"))}
    assert shown.keys() == {long, urgent}
    assert all(job.keys() >= FIELDS and job["why"].keys() >= WHY for job in shown.values())
    assert (shown[urgent]["state"], shown[urgent]["digest"]) == ("finished", alone(1, 2))

    # The long one has both devices now; one is wanted back, then both.
    cluster.until(lambda: len(cluster.job(long).devices) == 2 and cluster.job(long).state == "running")
    cores = {device["id"]: device["cores"] for device in json.loads(isoscale(cluster, "devices", "--json"))}
    assert len({core for (core,) in cores.values()}) == 2
    for one in live_executors(cluster.directory(long)):
        assert sorted(os.sched_getaffinity(one.pid)) == cores[one.device]
    assert os.sched_getaffinity(cluster.coordinator(long)[0]) == os.sched_getaffinity(0)
    assert "free after" in isoscale(cluster, "reclaim", "local", "1", "--within", "20")
    assert len(live_executors(cluster.directory(long))) == 1
    told = json.loads(isoscale(cluster, "devices", "--json"))
    assert sorted(device["state"] for device in told) == ["away", "held"]
    assert "free after" in isoscale(cluster, "reclaim", "local", "1", "--within", "20")
    assert not live_executors(cluster.directory(long))
    cluster.until_state(long, "paused")
    assert "needs 1 device, and 0 are there" in isoscale(cluster, "jobs", "why", long)
    assert "away" in isoscale(cluster, "devices")
    isoscale(cluster, "lend", "local", "2")
    cluster.until_state(long, "running", "resizing")

    # Its owner has wishes, too.
    assert "refused" not in isoscale(cluster, "jobs", "priority", long, "-5")
    isoscale(cluster, "jobs", "scale", long, "1")
    cluster.until(lambda: len(cluster.job(long).devices) == 1)
    assert "isoscale jobs scale" in isoscale(cluster, "scale", str(cluster.directory(long)), "2", code=2)
    cluster.hurry(long)
    assert cluster.until_state(long, "finished").digest == alone(4, 2)
    assert cluster.results(long) == [alone(4, 2)]
    assert "job_finished" in isoscale(cluster, "jobs", "show", long)

    # Those that go wrong.
    broken = home / "broken.py"
    broken.write_text(
        "import isoscale\ndef train(job):\n    print('so far')\n    raise ValueError('no')\nisoscale.run(train)\n"
    )
    out = isoscale(cluster, "submit", str(broken), "--workers", "1", "--wait", code=1)
    assert "ValueError: no" in out
    assert "so far" in isoscale(cluster, "jobs", "logs", "j3")
    waits = isoscale(cluster, "submit", str(broken), "--workers", "1", "--after", "j3").strip()
    assert cluster.until_state(waits, "failed").error.startswith("j3, which it waits for")
    wrong = home / "wrong"
    wrong.write_text("isc_wrong\n")
    for words, said in (
        (("submit", str(broken), "--workers", "2", "--min", "3"), "--min=3: more than the 2 logical workers"),
        (("submit", "nowhere.py", "--workers", "2"), "SCRIPT=nowhere.py: no such file"),
        (("submit", str(broken), "--workers", "2", "--name", "a b"), "--name=a b: has other characters"),
        (("jobs", "why", "j99"), "ID=j99: no such job"),
        (("jobs", "why", "../j1"), "ID=../j1: no such job"),
        (("jobs", "--token-file", str(wrong)), f"--token-file={wrong}: no valid token; give --token-file"),
        (("jobs", "pause", "j1"), "j1: it is finished"),
        (("reclaim", "mars", "1"), "NODE=mars: no such node; give one of local"),
        (("lend", "local", "1"), "COUNT=1: 0 of its devices are away"),
        (("lend", "local", "--device", "local/cpu/1"), "--device=local/cpu/1: is not away from local"),
        (("lend", "local", "--device", "local/cpu/9"), "--device=local/cpu/9: local has no such device"),
        (("jobs", "--cluster", str(tmp_path / "none")), "no such directory; start one: isoscale serve --state"),
        (("serve", "--state", str(tmp_path / "other"), "--policy", "srtf"), "needs to know the future"),
        (("serve", "--state", str(tmp_path / "other"), "--devices", "gpu-x*2"), "gpu-x"),
        (("serve", "--state", str(tmp_path / "other"), "--devices", "cpu*4000", "--pin"), "--pin=4000 devices: more"),
    ):
        assert said in isoscale(cluster, *words, code=2), words
    # What the service says of its past is what the analysis says, and the simulator can do it again.
    check_analysis(cluster, json.loads(isoscale(cluster, "jobs", "--json")), tmp_path / "analysis")
    policies = ("--policy", "fifo,easyscale")
    again = isoscale(cluster, "simulate", "--trace", str(cluster.state), "--cluster", "cpu*2", *policies)
    assert "easyscale" in again
    assert cluster.stop() == 0
    assert "no service runs there" in isoscale(cluster, "jobs", code=2)

"""Machines that share no disk: executors that do not see the run's directory, and coordinators that never saw it.

A machine is a mount namespace in which everything of the run's directory, of its script and of shared memory is hidden;
what its machines have in common is the storage, and addresses.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from isoscale.protocol.events import read_events
from isoscale.runtime.storage import names
from isoscale.runtime.storage.client import open_storage
from isoscale.runtime.storage.ledger import find_address, look, newest_terms
from isoscale.testing import short_job_path, start
from isoscale.testing.chaos import Result, compare, result_of
from isoscale.testing.running import RunningJob
from tests.cli.in_process import printed, refusal
from tests.elastic.machines import PATIENCE_S, Machines, kill_executors

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Result:
    with start(
        short_job_path(), out=tmp_path_factory.mktemp("alone") / "run", executors=1, script_args=["2", "0"]
    ) as job:
        assert job.wait() == 0, job.output()
        return result_of(job)


def own_script(folder: Path) -> Path:
    """A copy that only those see who see its folder."""
    (folder / "script").mkdir()
    return Path(shutil.copy(short_job_path(), folder / "script" / "train.py"))


def steps(out: Path) -> int:
    return max((one["step"] for one in events(out) if one["event"] == "step"), default=0)


def test_executors_that_see_nothing_of_the_run_and_a_coordinator_elsewhere(
    machines: Machines, expected: Result, tmp_path: Path
) -> None:
    """kill -9 of the coordinator: executors train on, and are found by one on a machine that never saw DIR."""
    script, out, store = own_script(tmp_path), tmp_path / "run", tmp_path / "store"
    url = f"file://{store}"
    (tmp_path / "run").mkdir()
    machines.start(
        "first", "run", script, "--workers", 4, "--executors", 2, "--no-spawn", "--storage", url,
        "--out", out, "--checkpoint-every", 5, "--no-rebalance", "--", "2", "0.12", sees=(out, script.parent),
    )  # fmt: skip
    storage = open_storage(url)
    machines.until(lambda: find_address(storage), "a coordinator")
    for name in ("a", "b"):
        machines.start(name, "executor", "--join", url)
    machines.until(lambda: steps(out) >= 7, "seven steps")
    assert not (out / "checkpoints").exists(), "somebody saw the directory"
    machines.kill("first")
    again = tmp_path / "again"
    machines.start("second", "resume", url, "--out", again)
    assert end_of(machines, "second") == [0], machines.output()
    job = RunningJob(again)
    assert compare(expected, result_of(job)) == "", machines.output()
    assert job.events("restart") == [], "executors did not train on"
    assert newest_terms(storage).based == 2
    assert machines.processes["a"].wait(30) == machines.processes["b"].wait(30) == 0, machines.output()
    for name in ("a", "b"):  # nothing but what the next executor would use again is left
        left = [path.name for path in (tmp_path / "machines" / name).glob("isoscale-*/*/*")]
        assert not [one for one in left if one.startswith("scratch")], left


def begin(machines: Machines, url: str, turn_s: str, **variables: str) -> Path:
    """A job of two executors on this machine; its directory."""
    out = machines.folder / "run"
    arguments = ["run", own_script(machines.folder), "--workers", 4, "--executors", 2, "--storage", url, "--out", out]
    machines.start("first", *arguments, "--checkpoint-every", 5, "--", "2", turn_s, apart=False, **variables)
    return out


def end_of(machines: Machines, *names: str) -> list[int]:
    """Exit codes."""
    processes = [machines.processes[name] for name in names]
    machines.until(lambda: all(one.poll() is not None for one in processes), f"the end of {', '.join(names)}")
    return [one.returncode for one in processes]


def test_a_job_is_known_by_its_url(machines: Machines, tmp_path: Path) -> None:
    """Asked, scaled and stopped by its URL alone, which is all that another machine has."""
    url = f"file://{tmp_path}/store"

    out = begin(machines, url, "0.06")
    machines.until(lambda: steps(out) >= 2, "two steps")
    assert "training on" in printed("scale", url, 1, "--wait")
    assert "checkpoint of" in printed("checkpoint", url)
    assert '"state": "training"' in printed("status", url, "--json")
    assert "stopped at" in printed("stop", url)
    assert end_of(machines, "first") == [130]
    assert "was stopped at step" in refusal("scale", url, 2)
    assert '"state": "stopped"' in printed("status", url, "--json", "--once")
    assert "there is no run" in refusal("stop", f"file://{tmp_path}/nothing")


def test_all_are_killed_and_two_want_to_go_on(machines: Machines, expected: Result, tmp_path: Path) -> None:
    """From the newest checkpoint that counts; what is half in the storage does not."""
    url = f"file://{tmp_path}/store"
    out = begin(machines, url, "0.06")
    storage = open_storage(url)
    machines.until(lambda: look(storage, print).entries, "a checkpoint that counts")
    machines.kill("first")
    kill_executors(out)
    newest = look(storage, print).entries[0]
    # An upload that was broken off, and the word of one that was not finished.
    storage.write(names.data(90, "0-9", ".pt"), b"half")
    storage.write(names.entry(1, 91), b'{"format": 1, "sort": "Ent')
    out.rename(tmp_path / "away")
    shutil.rmtree(tmp_path / "script")
    for name in ("second", "third"):
        machines.start(name, "resume", url, "--out", tmp_path / name, apart=False)
    codes = dict(zip(("second", "third"), end_of(machines, "second", "third"), strict=True))
    assert sorted(codes.values()) == [0, 2], machines.output()
    assert "another coordinator" in machines.output() or "gone on elsewhere" in machines.output()
    job = RunningJob(tmp_path / next(name for name, code in codes.items() if code == 0))
    assert compare(expected, result_of(job)) == "", machines.output()
    (restart,) = job.events("restart")
    assert restart["step"] == newest.step
    assert any("step-00000091" in one["message"] for one in job.events("warning")), job.events("warning")
    # Whoever still has the old directory is told where the job went.
    machines.start("fourth", "resume", tmp_path / "away", apart=False)
    assert end_of(machines, "fourth") == [2]
    assert "gone on elsewhere: term 2" in machines.output()


def test_a_job_goes_on_beyond_its_limit(machines: Machines, tmp_path: Path) -> None:
    """Though its storage holds the result of the lower one."""
    script, url = Path(__file__).parents[1] / "cli" / "scripts" / "talkative.py", f"file://{tmp_path}/store"
    options = ["run", script, "--workers", 2, "--executors", 1]
    machines.start("whole", *options, "--until", 12, "--out", tmp_path / "whole", apart=False)
    machines.start("first", *options, "--until", 6, "--out", tmp_path / "part", "--storage", url, apart=False)
    assert end_of(machines, "whole", "first") == [0, 0], machines.output()
    machines.start("second", "resume", url, "--until", 12, "--out", tmp_path / "again", apart=False)
    assert end_of(machines, "second") == [0], machines.output()
    expected, result = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("whole", "again"))
    assert (result["step"], result["digest"]) == (12, expected["digest"]), machines.output()


def test_a_coordinator_that_was_only_slow_is_replaced(machines: Machines, expected: Result, tmp_path: Path) -> None:
    """It finds that another one has the job, and ends neither that nor its executors."""
    url = f"file://{tmp_path}/store"
    begin(machines, url, "0.06")
    storage = open_storage(url)
    machines.until(lambda: look(storage, print).entries, "a checkpoint that counts")
    os.kill(machines.processes["first"].pid, signal.SIGSTOP)
    machines.start("second", "resume", url, "--out", tmp_path / "again", apart=False)
    machines.until(lambda: newest_terms(storage).based == 2, "another term")
    os.kill(machines.processes["first"].pid, signal.SIGCONT)
    assert end_of(machines, "first", "second") == [1, 0], machines.output()
    assert "another coordinator has taken the job over" in machines.output()
    assert compare(expected, result_of(RunningJob(tmp_path / "again"))) == "", machines.output()


@pytest.fixture
def bucket() -> Iterator[dict[str, str]]:
    """A server that speaks S3, in a process of its own; variables by which clients find it."""
    pytest.importorskip("moto")
    pytest.importorskip("s3fs")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    variables = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            assert time.monotonic() < deadline, "no server"
            time.sleep(0.1)
        request = urllib.request.Request(f"{variables['AWS_ENDPOINT_URL']}/bucket", method="PUT")
        urllib.request.urlopen(request, timeout=30).close()
        yield variables
    finally:
        server.kill()
        server.wait()


def test_s3(bucket: dict[str, str], machines: Machines, expected: Result, tmp_path: Path) -> None:
    """Code, checkpoints, events and result through a real server: all are killed, and it goes on elsewhere."""
    url = "s3://bucket/runs/a"
    out = begin(machines, url, "0.06", **bucket)
    written = lambda: [one for one in events(out) if one["event"] == "checkpoint"]  # noqa: E731
    machines.until(written, "a checkpoint")
    assert written()[0]["path"].startswith("data/step-"), written()
    machines.kill("first")
    kill_executors(out)
    step = written()[-1]["step"]
    shutil.rmtree(out)
    shutil.rmtree(tmp_path / "script")
    machines.start("second", "resume", url, "--out", tmp_path / "again", apart=False, **bucket)
    assert end_of(machines, "second") == [0], machines.output()
    job = RunningJob(tmp_path / "again")
    assert compare(expected, result_of(job)) == "", machines.output()
    assert [one["step"] for one in job.events("restart")] == [step]
    # It has ended: another machine that asks gets the result.
    machines.start("third", "resume", url, "--out", tmp_path / "third", apart=False, **bucket)
    assert end_of(machines, "third") == [0], machines.output()
    assert (tmp_path / "third" / "final.pt").read_bytes() == (tmp_path / "again" / "final.pt").read_bytes()


def events(out: Path) -> list[dict[str, Any]]:
    return list(read_events(out / "events.jsonl")) if (out / "events.jsonl").exists() else []

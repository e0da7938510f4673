"""A plan whose change waits for newcomers while one of those who wait dies, with real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(400)]

ISOSCALE = str(Path(sys.executable).parent / "isoscale")
TINY = str(Path(__file__).parent / "scripts" / "tiny.py")


def test_an_executor_that_dies_while_all_wait_for_newcomers_does_not_stop_the_job(tmp_path: Path) -> None:
    still = digest_of(tmp_path / "still", "--executors", "1")
    out = tmp_path / "out"
    with subprocess.Popen(command(out, "--plan", "0:2,2:3"), stdout=subprocess.DEVNULL) as process:
        for event in watch(out / "events.jsonl", process):
            if event["event"] == "step" and event["step"] == 2:
                break
        started = {e["executor"]: e["pid"] for e in events(out) if e["event"] == "executor_started"}
        os.kill(started[1], signal.SIGKILL)
        assert process.wait(timeout=180) == 0
    seen = events(out)
    assert seen[-1]["digest"] == still
    changes = [(e["from"], e["to"], e["step"]) for e in seen if e["event"] == "rescale"]
    assert changes[0] == (2, 1, 2)
    assert changes[-1][1:] == (3, 2), "the plan still counts"


def command(out: Path, *arguments: str) -> list[str]:
    return [ISOSCALE, "run", TINY, "--workers", "3", "--out", str(out), *arguments]


def digest_of(out: Path, *arguments: str) -> str:
    subprocess.run(command(out, *arguments), check=True, timeout=180, stdout=subprocess.DEVNULL)
    return str(json.loads((out / "summary.json").read_text())["digest"])


def events(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]


def watch(log: Path, process: subprocess.Popen[Any]) -> Iterator[dict[str, Any]]:
    seen = 0
    while process.poll() is None:
        found = log.read_text().split("\n")[:-1] if log.exists() else []
        yield from map(json.loads, found[seen:])
        seen = len(found)
        time.sleep(0.01)
    pytest.fail("the job ended before it came so far")

"""What a person does with jobs beside training them: going on, stopping, looking at what has ended, cleaning up."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from isoscale.protocol.events import read_events

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]

SCRIPT = str(Path(__file__).parent / "scripts" / "talkative.py")


def isoscale(*arguments: str, cwd: Path, code: int = 0) -> str:
    command = [sys.executable, "-c", "from isoscale.cli import main; main()", *arguments]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def digest(run: Path) -> str:
    return str(json.loads((run / "summary.json").read_text())["digest"])


def events(run: Path, name: str) -> list[dict[str, Any]]:
    return [event for event in read_events(run / "events.jsonl") if event["event"] == name]


def test_a_job_goes_on_beyond_its_limit_on_other_executors(tmp_path: Path) -> None:
    whole = isoscale("run", SCRIPT, "--workers", "2", "--out", "whole", cwd=tmp_path)
    shown = [line for line in whole.splitlines() if "printed" in line or "mark" in line]
    for epoch in range(4):
        before, log, after = shown[3 * epoch : 3 * epoch + 3]
        assert before == f"printed in epoch {epoch}"
        assert log.endswith(f"mark {epoch}")
        assert after == f"printed after the log of epoch {epoch}"
    assert not (tmp_path / "whole" / "checkpoints").exists() or not any((tmp_path / "whole" / "checkpoints").iterdir())

    isoscale("run", SCRIPT, "--workers", "2", "--out", "part", "--until", "6", cwd=tmp_path)
    part = tmp_path / "part"
    assert [one["path"] for one in events(part, "checkpoint")] == ["checkpoints/step-00000006.pt", "final.pt"]
    told = isoscale("resume", "part", cwd=tmp_path)
    assert told == "nothing to resume: the job has finished at step 6; result part/final.pt\n"
    for words in (["scale", "part", "2"], ["checkpoint", "part"], ["stop", "part"]):
        told = isoscale(*words, cwd=tmp_path, code=2)
        assert "part: the job has finished at step 6; its result is part/final.pt" in told
    status = isoscale("status", "part", cwd=tmp_path)
    assert "finished" in status
    assert "result  part/final.pt" in status
    assert "took  " in status
    assert f"command  isoscale run {SCRIPT} --workers 2 --out part --until 6" in status.replace("\n", " ")
    known = json.loads(isoscale("status", "part", "--json", cwd=tmp_path))
    assert known["ended"] >= known["began"] > 0

    refused = isoscale("resume", "part", "--until", "32", "--executors", "3", cwd=tmp_path, code=2)
    assert "--executors=3: more than the 2 logical workers of the job" in refused
    refused = isoscale("resume", "part", "--until", "32", "--devices", "cpu-sse*2", cwd=tmp_path, code=2)
    assert "cpu-sse was not declared when the job began (cpu)" in refused
    isoscale("resume", "part", "--until", "32", "--plan", "0:2,20:1", cwd=tmp_path)
    assert [one["step"] for one in events(part, "step")] == list(range(1, 33))
    assert {one["step"]: one["executors"] for one in events(part, "step")}[10] == 2
    assert [(one["step"], one["to"]) for one in events(part, "rescale")] == [(20, 1)]
    assert digest(part) == digest(tmp_path / "whole")


def test_a_stop_that_does_not_wait_and_another_number_of_executors(tmp_path: Path) -> None:
    arguments = ["run", SCRIPT, "--workers", "2", "--out", "run", "--checkpoint-every", "10", "--", "slow"]
    command = [sys.executable, "-c", "from isoscale.cli import main; main()", *arguments]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as job:
        run = tmp_path / "run"
        while not (run / "events.jsonl").exists() or not events(run, "step"):
            time.sleep(0.1)
            assert job.poll() is None
        assert isoscale("stop", "run", "--no-wait", cwd=tmp_path) == "asked to stop after a checkpoint\n"
        assert job.wait(120) == 130
        (run / "hurry").touch()
    assert "was stopped at step" in isoscale("scale", "run", "2", cwd=tmp_path, code=2)
    isoscale("resume", "run", "--executors", "2", cwd=tmp_path)
    assert [one["step"] for one in events(run, "step")] == list(range(1, 33))
    assert events(run, "step")[-1]["executors"] == 2
    assert events(run, "checkpoint")[-2]["step"] == 32, "one at the end, too, where there are checkpoints"


def test_runs_that_fail_before_their_first_step_leave_nothing(tmp_path: Path) -> None:
    told = isoscale("run", SCRIPT, "--workers", "2", "--", "broken", cwd=tmp_path, code=1)
    assert "ValueError: no data here" in told
    assert "logs in" not in told
    assert list((tmp_path / "runs").iterdir()) == []
    told = isoscale("run", SCRIPT, "--workers", "2", "--out", "kept", "--", "broken", cwd=tmp_path, code=1)
    assert "logs in kept/logs" in told
    assert (tmp_path / "kept" / "events.jsonl").exists()


def test_a_loader_that_is_made_anew_in_every_epoch_is_no_place_to_go_on_at(tmp_path: Path) -> None:
    isoscale("run", SCRIPT, "--workers", "2", "--out", "run", "--until", "12", "--", "late", cwd=tmp_path)
    told = isoscale("resume", "run", "--until", "20", cwd=tmp_path, code=1)
    assert "which this start does not come by; make loaders before the loop over epochs" in told

"""`isoscale replay` of a run on two executors, with real processes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.in_process import refusal

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]

ISOSCALE = str(Path(sys.executable).parent / "isoscale")
TINY = str(Path(__file__).parent / "scripts" / "tiny.py")


def isoscale(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ISOSCALE, *arguments],
        capture_output=True,
        text=True,
        timeout=280,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **variables},
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """8 steps of 3 logical workers on 2 executors, with audits after steps 3 and 6."""
    out = tmp_path_factory.mktemp("replay") / "run"
    done = isoscale("run", TINY, "--workers", "3", "--executors", "2", "--audit-every", "3", "--out", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def test_a_step_with_an_audit_compares_losses_and_digest(run: Path) -> None:
    before = sorted(run.rglob("*"))
    done = isoscale("replay", str(run), "--step", "3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "equal: all 3 losses and the digest are those of the run, bit for bit" in done.stdout
    assert sorted(run.rglob("*")) == before, "a replay writes nothing into the run"


def test_the_last_step_compares_the_final_digest_and_shows_a_workers_values(run: Path) -> None:
    done = isoscale("replay", str(run), "--step", "8", "--logical-rank", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((run / "summary.json").read_text())["digest"] in done.stdout
    assert "logical worker 2 in step 8 logged  loss " in done.stdout


def test_the_users_breakpoint_hook_is_called_before_the_turn(run: Path, tmp_path: Path) -> None:
    (tmp_path / "hook.py").write_text(
        "import sys\n"
        "def stop():\n"
        "    frame = sys._getframe()\n"
        "    while frame.f_code.co_name != 'train':\n"
        "        frame = frame.f_back\n"
        "    print('stopped at', frame.f_locals['job'].step, 'steps', flush=True)\n"
    )
    done = isoscale(
        "replay", str(run), "--step", "2", "--logical-rank", "1", PYTHONBREAKPOINT="hook.stop", PYTHONPATH=str(tmp_path)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("stopped at 1 steps") == 1
    assert "equal: all 2 losses are those of the run" in done.stdout


@pytest.fixture(scope="module")
def eventful(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """On 1, 3, 2 executors; ended after step 7, whose checkpoint is lost, and resumed from that of step 6.

    A checkpoint that is due while the one before is being written is left out; that of a limit of steps is waited for.
    """
    out = tmp_path_factory.mktemp("replay") / "eventful"
    job = ["run", TINY, "--workers", "3", "--out", str(out), "--audit-every", "0", "--checkpoint-every", "3"]
    for until, resume in (("3", []), ("6", ["--resume"]), ("7", ["--resume"])):
        part = isoscale(*job, "--until", until, "--plan", "0:1,2:3,5:2", *resume)
        assert part.returncode == 0, part.stdout + part.stderr
    for path in (out / "checkpoints").glob("step-00000007*"):
        path.unlink()
    again = isoscale(*job, "--resume", "--executors", "2")
    assert again.returncode == 0, again.stdout + again.stderr
    assert [e["step"] for e in events(out) if e["event"] == "step"] == [1, 2, 3, 4, 5, 6, 7, 7, 8]
    return out


def events(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("step", "begins", "equal"),
    [
        (2, "in one process, steps 1 to 2\n", "equal: all 2 losses are those"),
        (4, "step 4, from the checkpoint of step 3\n", "equal: the loss is that"),
        (6, "steps 4 to 6, from the checkpoint of step 3\n", "equal: all 3 losses and the digest are those"),
        (8, "steps 7 to 8, from the checkpoint of step 6\n", "equal: all 2 losses and the digest are those"),
    ],
)
def test_a_run_that_rescaled_and_was_resumed_replays_from_its_checkpoints(
    eventful: Path, step: int, begins: str, equal: str
) -> None:
    done = isoscale("replay", str(eventful), "--step", str(step), "--logical-rank", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert begins in done.stdout
    assert equal in done.stdout
    assert f"logical worker 1 in step {step} logged  loss " in done.stdout


def test_a_damaged_checkpoint_is_skipped_a_step_that_nobody_reported_too(eventful: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(eventful, tmp_path / "copy")
    (copy / "checkpoints" / "step-00000003.pt").write_bytes(b"torn")
    (copy / "events.jsonl").write_text(
        "".join(json.dumps(e) + "\n" for e in events(copy) if (e["event"], e.get("step")) != ("step", 2))
    )
    done = isoscale("replay", str(copy), "--step", "4")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "step-00000003.pt is skipped" in done.stdout
    assert "steps 1 to 4\n" in done.stdout
    assert "equal: all 3 losses are those of the run" in done.stdout


def test_a_run_that_was_killed_replays_without_a_summary(eventful: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(eventful, tmp_path / "copy")
    (copy / "summary.json").unlink()
    done = isoscale("replay", str(copy), "--step", "5")
    assert done.returncode == 0, done.stdout + done.stderr


def test_another_loss_in_the_log_exits_1_and_names_the_step(run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "copy")
    lines = [json.loads(line) for line in (copy / "events.jsonl").read_text().splitlines()]
    for event in lines:
        if event["event"] == "step" and event["step"] == 2:
            event["loss"] += 2**-52
    (copy / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in lines))
    done = isoscale("replay", str(copy), "--step", "4")
    assert done.returncode == 1
    assert "differs: the loss of step 2 is" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--step", "9"], "--step=9: the run's log has steps 1 to 8"),
        (["--step", "0"], "--step=0"),
        (["--step", "1", "--logical-rank", "3"], "--logical-rank=3: the job has 3 logical workers"),
    ],
)
def test_bad_requests_are_refused(run: Path, arguments: list[str], message: str) -> None:
    assert message in refusal("replay", run, *arguments)


def test_a_directory_without_a_run_is_refused(tmp_path: Path) -> None:
    for directory, problem in [(tmp_path, "no summary.json"), (tmp_path / "nowhere", "no such directory")]:
        assert problem in refusal("replay", directory, "--step", "1")

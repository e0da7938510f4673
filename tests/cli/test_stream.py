"""`job.stream` with real processes: the same bits and every sample once through rescales, kill -9 and resume."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import isoscale
from isoscale.data.stream_ledger import content_of
from isoscale.runtime.executor.fault_points import FaultPoint
from isoscale.testing import RunningJob, start

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(300)]

ISOSCALE = str(Path(sys.executable).parent / "isoscale")
SCRIPT = Path(__file__).parent / "scripts" / "streamed.py"
SIZES = [60, 0, 21, 1, 5, 43, 90, 3]
TOTAL = sum(SIZES)
EPOCHS = 2


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory, number = tmp_path_factory.mktemp("data"), 0
    for i, size in enumerate(SIZES):
        (directory / f"{i}.txt").write_text("".join(f"{number + k}\n" for k in range(size)))
        number += size
    return str(directory / "*.txt")


def run(
    files: str, out: Path, *, tail: str = "partial", turn_s: float = 0.0, processes: int = 0, **options: Any
) -> RunningJob:
    arguments = [files, tail, "12", str(EPOCHS), str(turn_s), str(processes)]
    return start(SCRIPT, out=out, workers=3, script_args=arguments, lost_after_s=60, **options)


@pytest.fixture(scope="module")
def undisturbed(files: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    with run(files, tmp_path_factory.mktemp("undisturbed") / "run", executors=1) as job:
        assert job.wait(200) == 0, job.output()
        check_ledger(job, files)
        return job.digest()


def check_ledger(job: RunningJob, files: str) -> None:
    """By what turns wrote down and by what the event log says, each epoch used each sample once."""
    turns: set[tuple[int, int, tuple[int, ...]]] = set()
    for path in job.directory.glob("turns-*.jsonl"):
        # A turn that was begun again got the same samples; a line may be torn by kill -9.
        for line in path.read_text().splitlines():
            if line.endswith("]]"):
                epoch, step, ids = json.loads(line)
                turns.add((epoch, step, tuple(ids)))
    whole = content_of(isoscale.text_lines(files, partition_bytes=60))
    for epoch in range(EPOCHS):
        used = Counter(sample for e, _, ids in turns for sample in ids if e == epoch)
        assert used == Counter(range(TOTAL))
    passes = job.events("pass_ended")
    assert [event["epoch"] for event in passes] == list(range(EPOCHS))
    for event in passes:
        assert (event["samples"], event["rest"], event["carried_in"]) == (TOTAL, 0, 0)
        assert int(event["content"], 16) == whole.hash_sum
    for epoch in range(EPOCHS):
        handed = [pair for event in job.events("partitions") if event["epoch"] == epoch for pair in event["to"]]
        assert sorted(partition for partition, _ in handed) == list(range(passes[0]["partitions"]))
    logs = {event["epoch"]: event for event in job.events("log")}
    assert all(logs[epoch]["total"] == logs[epoch]["checked"] == TOTAL * (TOTAL - 1) // 2 for epoch in range(EPOCHS))


def check(job: RunningJob, files: str, undisturbed: str) -> None:
    assert job.wait(200) == 0, job.output()
    assert job.digest() == undisturbed
    job.losses()
    check_ledger(job, files)


def test_rescales_in_mid_epoch_and_at_its_edge(files: str, undisturbed: str, tmp_path: Path) -> None:
    with run(files, tmp_path / "run", plan="0:2,5:3,19:1,24:2") as job:
        check(job, files, undisturbed)
        assert len(job.events("rescale")) >= 3


@pytest.mark.parametrize(
    "point",
    [
        FaultPoint(executor=1, point="forward", step=4),
        FaultPoint(executor=0, point="contexts", step=7),
        FaultPoint(executor=1, point="seal", step=18),
        # Rounds are seals without turns: the executor is killed before the one that comes with this step, or after.
        FaultPoint(executor=1, point="end", step=0),
        FaultPoint(executor=0, point="end", step=3),
        FaultPoint(executor=1, point="ended", step=13),
    ],
    ids=lambda p: f"{p.point}-{p.step}",
)
def test_kill_9_anywhere(files: str, undisturbed: str, tmp_path: Path, point: FaultPoint) -> None:
    with run(files, tmp_path / "run", executors=2, points=[point]) as job:
        check(job, files, undisturbed)
        # Also in rounds, which these files make due before the first step and after steps 3 and 13.
        assert [event["executor"] for event in job.events("executor_lost")] == [point.executor]


def test_everyone_is_killed_and_the_job_resumed(files: str, undisturbed: str, tmp_path: Path) -> None:
    with run(files, tmp_path / "run", executors=2, turn_s=0.05, checkpoint_every=5) as job:
        job.wait_for(lambda: job.events("checkpoint"), "a checkpoint")
        job.wait_step(job.events("checkpoint")[-1]["step"] + 2)
        job.kill_all()
        job.resume()
        check(job, files, undisturbed)


@pytest.mark.timeout(900)  # several jobs, each of which is waited for by itself
@pytest.mark.parametrize("processes", [1, 3])
def test_loader_processes(files: str, tmp_path: Path, processes: int) -> None:
    """Killed themselves, with their executor, and with everybody; rescaled in mid-epoch and at its edge."""
    with run(files, tmp_path / "undisturbed", executors=1, processes=processes) as job:
        assert job.wait(200) == 0, job.output()
        check_ledger(job, files)
        undisturbed = job.digest()
    with run(files, tmp_path / "plan", plan="0:2,5:3,19:1,24:2", processes=processes) as job:
        check(job, files, undisturbed)
    point = FaultPoint(executor=1, point="backward", step=9)
    options: dict[str, Any] = {"executors": 2, "turn_s": 0.05, "checkpoint_every": 5, "points": [point]}
    with run(files, tmp_path / "killed", processes=processes, **options) as job:
        job.wait_step(3)
        job.wait_for(lambda: job.kill_loaders(job.members()[0]), "loader processes")
        job.wait_for(lambda: any(event["step"] >= 10 for event in job.events("checkpoint")), "a checkpoint")
        job.kill_all()
        job.resume()
        check(job, files, undisturbed)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("tail", ["carry", "drop"])
def test_other_tails_have_exact_counts(files: str, tmp_path: Path, tail: str) -> None:
    digests = []
    for plan in ("0:1", "0:2,6:3,20:1"):
        with run(files, tmp_path / f"{plan[:3]}", tail=tail, plan=plan) as job:
            assert job.wait(200) == 0, job.output()
            digests.append(job.digest())
            passes = job.events("pass_ended")
            left = 0
            for event in passes:
                assert event["carried_in"] == left
                assert event["samples"] + event["rest"] == TOTAL + left
                assert 0 < event["rest"] < TOTAL
                left = event["rest"] if tail == "carry" else 0
    assert digests[0] == digests[1]


def test_status_shows_how_far_a_stream_is(files: str, tmp_path: Path) -> None:
    with run(files, tmp_path / "run", executors=1, turn_s=0.2) as job:
        job.wait_step(2)
        done = subprocess.run(
            [ISOSCALE, "status", str(job.directory), "--json"], capture_output=True, text=True, timeout=200
        )
        stream = json.loads(done.stdout)["streams"]["stream 1"]
        assert stream["epoch"] == 0
        assert 0 < stream["handed_out"] <= stream["partitions"]
        done = subprocess.run(
            [ISOSCALE, "status", str(job.directory), "--once"], capture_output=True, text=True, timeout=200
        )
        assert "partitions given out" in done.stdout


def test_verify_agrees_with_stock_ddp(files: str, tmp_path: Path) -> None:
    arguments = ["--workers", "3", "--plan", "0:1,4:3", "--out", str(tmp_path / "v"), "--until", "22"]
    done = subprocess.run(
        [ISOSCALE, "verify", str(SCRIPT), *arguments, "--", files, "partial", "12", str(EPOCHS)],
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 -> 3 executors and stock DDP with 3 processes give the same bits" in done.stdout

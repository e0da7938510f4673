"""Batch sizes that change while Hugging Face's Trainer trains, against stock ranks that change their loaders."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from isoscale.errors import IsoscaleError
from isoscale.testing import RunningJob, faults, start
from isoscale.testing.chaos import compare, result_of

pytest.importorskip("accelerate")

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]

ISOSCALE = str(Path(sys.executable).parent / "isoscale")
SCRIPT = Path(__file__).with_name("live_trainer.py")
#: of three passes: small steps, then large ones to the last samples of a pass; a change with less than a batch left
SIZES = "0:2,3:8,5:4,12:8"


def verified(tmp_path: Path, sizes: str, *words: str, workers: int = 3, plan: str = "0:1,4:2,9:3") -> dict[str, Any]:
    """What the elastic run left, which is what the ranks left."""
    options = ["--workers", str(workers), "--plan", plan, "--batch-plan", sizes, "--out", str(tmp_path / "run")]
    command = [ISOSCALE, "verify", str(SCRIPT), *options, "--", str(tmp_path / "checkpoints"), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"stock DDP with {workers} process{'es' * (workers > 1)} give the same bits" in done.stdout
    assert "not tried" not in done.stdout
    left: dict[str, Any] = torch.load(tmp_path / "run" / "final.pt", weights_only=True)
    return left


def changes_of(directory: Path) -> list[tuple[int, int]]:
    summary = json.loads((directory / "summary.json").read_text())
    return [(entry["step"], entry["size"]) for entry in summary["batch"]["plan"]]


def test_a_plan_gives_the_bits_of_stock_ranks_also_when_executors_die(tmp_path: Path) -> None:
    left = verified(tmp_path, SIZES)
    assert changes_of(tmp_path / "run") == [(0, 2), (3, 8), (5, 4), (12, 8)]
    state = left["trainer"]["state"]
    # 3 + 2 + 1 steps, then 6 + 1, then a pass of 4: what was left after the last change was known at once.
    assert (state["global_step"], state["max_steps"], state["epoch"], state["train_batch_size"]) == (17, 17, 3.0, 8)
    epochs = [entry["epoch"] for entry in left["trainer"]["log_history"]]
    assert epochs == sorted(epochs)
    # In the first step after a change, and in the seal by which all agree on the next one.
    points = [faults.at("backward", executor=1, step=4), faults.at("seal", executor=0, step=6)]
    arguments = [str(tmp_path / "checkpoints-2")]
    with start(
        SCRIPT,
        out=tmp_path / "hurt",
        workers=3,
        plan="0:2,7:3",
        points=points,
        options=["--batch-plan", SIZES],
        script_args=arguments,
    ) as job:
        assert job.wait() == 0, job.output()
        assert len(job.events("executor_lost")) == 2
        unhurt = RunningJob(tmp_path / "run")
        assert compare(result_of(unhurt), result_of(job)) == ""


@pytest.mark.parametrize(
    ("sizes", "words", "workers", "plan"),
    [
        ("2:8,6:2,9:4", ["processes", "own"], 2, "0:1,7:2"),
        ("1:8,3:2,10:8", ["drop", "sequential"], 2, "0:2,5:1"),
        ("0:8,5:2,11:8", ["steps"], 4, "0:3,6:4"),
        ("0:8,5:2", [], 1, "0:1"),
    ],
    ids=["processes", "drop", "steps", "one"],
)
def test_other_ways_to_read(sizes: str, words: list[str], workers: int, plan: str, tmp_path: Path) -> None:
    verified(tmp_path, sizes, *words, workers=workers, plan=plan)


def test_declared_and_never_changed_is_as_undeclared(tmp_path: Path) -> None:
    for name in ("undeclared", "declared"):
        words = ["undeclared"] if name == "undeclared" else []
        with start(
            SCRIPT, out=tmp_path / name, workers=2, executors=1, script_args=[str(tmp_path / f"{name}-out"), *words]
        ) as job:
            assert job.wait() == 0, job.output()
    assert compare(*(result_of(RunningJob(tmp_path / name)) for name in ("undeclared", "declared"))) == ""


def test_a_size_that_is_asked_for_while_it_trains(tmp_path: Path) -> None:
    """Alone, with devices, by an executor that joins after it; then everything again as it was recorded."""
    arguments = [str(tmp_path / "checkpoints"), "wait"]
    with start(SCRIPT, out=tmp_path / "run", workers=2, executors=1, script_args=arguments) as job:
        job.wait_step(2)
        with job.handle() as handle:
            with pytest.raises(IsoscaleError, match="the script declares 2, 4, 8"):
                handle.scale_to(batch=3)
            asked = handle.scale_to(batch=2)
            assert handle.wait_answer(asked["request"], 120)["outcome"] == "done"
            both = handle.scale_to(2, batch=8)
            assert handle.wait_answer(both["request"], 120)["outcome"] == "done"
            status = handle.status()["batch"]
            assert status is not None
            assert (status["size"], status["rule"]) == (8, "sqrt")
        (tmp_path / "checkpoints" / "hurry").touch()
        assert job.wait() == 0, job.output()
        assert [size for _, size in changes_of(job.directory)] == [2, 8]
        warnings = [event["message"] for event in job.events("warning") if "its length is in steps" in event["message"]]
        assert len(warnings) == 2
        expected = result_of(job)
    with start(
        SCRIPT, out=tmp_path / "again", workers=2, executors=1, options=["--like", str(tmp_path / "run")]
    ) as again:
        assert again.wait() == 0, again.output()
        assert compare(expected, result_of(again)) == ""

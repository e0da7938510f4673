"""Hugging Face's Trainer on logical workers against the stock class with as many processes, bit for bit."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from isoscale.testing import faults, start

pytest.importorskip("accelerate")

from tests.integrations.hf_offered import OFFERED

SCRIPT = Path(__file__).with_name("hf_cases.py")
#: seconds, rates
TIMING = ("_runtime", "_per_second", "_model_preparation_time")
#: what one process can show, with two logical workers
CASES = ("causal-window", "masked-save", "classes-best", "classes-logged", "images", "translation", "stream")
LONG_CASES = (
    "causal",
    "causal-bf16",
    "causal-lengths",
    "masked-window",
    "causal-local",
    "causal-neftune",
    "causal-smooth",
    "causal-sgd",
    "causal-adafactor",
    *(f"causal-{optim}-{schedule}" for optim, schedule, _ in OFFERED),
    "causal-checkpointing",
    "causal-save",
    "causal-epochs",
    "causal-processes",
    "masked",
    "classes",
    "classes-plateau",
    "images-processes",
    "causal-more",
    "causal-bf16-evaluation",
    "causal-buckets",
    "causal-small-buckets",
    "causal-reentrant",
    "causal-momentum",
    "masked-lists",
    "classes-shown",
    "classes-running",
    "classes-contrasted",
    "translation-beams",
)
#: trainings that go on from a checkpoint folder: in the first epoch, at the end of one, and in the second
RESUMED = (
    ("causal-save", 4),
    ("causal-epochs", 6),
    ("causal-unskipped", 4),
    ("masked-save", 5),
    ("masked-save", 10),
    ("stream-save", 4),
)

#: what a script may do only in stock processes, and what is said of it
MISTAKES = {
    "gather": r"logical worker 0: accelerator\.gather\(\).*self\.log",
    "reduce": r"logical worker 0: accelerator\.reduce\(\)",
    "gathered-evaluation": r"outside turns: accelerator\.gather_for_metrics.*compute_metrics",
    "unprepared": r"data loader=DataLoader.*accelerator\.prepare",
    "unprepared-evaluation": r"data loader=DataLoader.*accelerator\.prepare",
    "evaluated-before": r"trainer\.train\(\)=after evaluate.*eval_on_start=True",
    "trained-twice": r"trainer\.train\(\)=a second call",
    "two-trainers": r"trainer\.train\(\)=a second call",
    "search": r"hyperparameter_search.*one training",
}

# Whoever asks first waits for all trainings of its set.
pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]

Run = Callable[..., Path]


class Trainings:
    """Processes that are forked from one that has imported everything."""

    def __init__(self, log: Path) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(SCRIPT), "serve"]
        self._log, pipe = log, subprocess.PIPE
        with log.open("wb") as output:
            self._server = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=output, text=True)

    def run(self, mode: str, count: int, out: Path, *cases: str) -> None:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps([mode, count, str(out), cases]) + "\n")
        self._server.stdin.flush()
        answer = self._server.stdout.readline()
        assert answer == "true\n", f"{mode} {count} {cases}: {answer}\n{self._log.read_text()[-4000:]}"

    def close(self) -> None:
        self._server.communicate()


@pytest.fixture(scope="session")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainings]:
    server = Trainings(tmp_path_factory.mktemp("trainings") / "log")
    yield server
    server.close()


@pytest.fixture(scope="session")
def stock(tmp_path_factory: pytest.TempPathFactory, trainings: Trainings, request: pytest.FixtureRequest) -> Run:
    """The stock class with as many processes, which with --long torchrun starts; each set of trainings is run once."""
    made: dict[tuple[int, tuple[str, ...]], Path] = {}

    def run(num_processes: int, *cases: str) -> Path:
        if (num_processes, cases) not in made and not request.config.getoption("--long"):
            made[num_processes, cases] = tmp_path_factory.mktemp("stock")
            trainings.run("stock", num_processes, made[num_processes, cases], *cases)
        if (num_processes, cases) not in made:
            out = tmp_path_factory.mktemp("stock")
            launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
            _run([*launcher, f"--nproc-per-node={num_processes}", str(SCRIPT), "stock", str(out), *cases])
            made[num_processes, cases] = out
        return made[num_processes, cases]

    return run


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory, trainings: Trainings) -> Run:
    """isoscale's class, all logical workers in one process."""
    made: dict[tuple[int, tuple[str, ...]], Path] = {}

    def run(num_logical_workers: int, *cases: str) -> Path:
        if (num_logical_workers, cases) not in made:
            made[num_logical_workers, cases] = tmp_path_factory.mktemp("alone")
            trainings.run("alone", num_logical_workers, made[num_logical_workers, cases], *cases)
        return made[num_logical_workers, cases]

    return run


@pytest.mark.parametrize("case", CASES)
def test_all_logical_workers_in_one_process(case: str, stock: Run, alone: Run) -> None:
    assert differences(stock(2, *CASES) / case, alone(2, *CASES) / case) == []


@pytest.mark.parametrize("num_logical_workers", [2, 3, 4])
@pytest.mark.parametrize("case", CASES + LONG_CASES)
def test_more_workers_and_more_trainings(num_logical_workers: int, case: str, stock: Run, alone: Run) -> None:
    every = CASES + LONG_CASES
    assert differences(stock(num_logical_workers, *every) / case, alone(num_logical_workers, *every) / case) == []


def test_four_logical_workers_with_an_uneven_last_step(stock: Run, alone: Run) -> None:
    """45 samples in batches of 4: the last step of a pass is completed from its beginning."""
    assert differences(stock(4, "masked-save") / "masked-save", alone(4, "masked-save") / "masked-save") == []


def test_four_logical_workers_on_executors_that_come_and_die(stock: Run, tmp_path: Path) -> None:
    reference = stock(4, "masked-save") / "masked-save"
    points = [faults.at("backward", executor=1, step=4, action="kill")]
    arguments = ["elastic", str(tmp_path), "masked-save"]
    with start(SCRIPT, out=tmp_path / "run", workers=4, plan="0:3,2:4", points=points, script_args=arguments) as job:
        job.wait()
        assert "executor_lost" in [event["event"] for event in job.events()]
    assert differences(reference, tmp_path / "masked-save") == []


def test_steps_that_are_done_again(alone: Run, trainings: Trainings, tmp_path: Path) -> None:
    cases = ("causal-window", "masked-save", "images", "stream")
    trainings.run("again", 2, tmp_path, *cases)
    for case in cases:
        assert differences(alone(2, *CASES) / case, tmp_path / case) == []


def test_executors_come_and_die(stock: Run, tmp_path: Path) -> None:
    reference = stock(2, *CASES) / "masked-save"
    points = [faults.at("backward", executor=1, step=8, action="kill")]
    arguments = ["elastic", str(tmp_path), "masked-save"]
    with start(SCRIPT, out=tmp_path / "run", workers=2, plan="0:1,3:2", points=points, script_args=arguments) as job:
        job.wait()
        assert "executor_lost" in [event["event"] for event in job.events()]
    assert differences(reference, tmp_path / "masked-save") == []
    for step in (5, 10):
        same_checkpoint(reference / f"checkpoint-{step}", tmp_path / "masked-save" / f"checkpoint-{step}", 2)


@pytest.mark.parametrize(
    "case", ["classes-best", "images", "stream", "causal-window", "causal-processes", "classes-logged"]
)
def test_executors_come_and_go_in_other_trainings(case: str, stock: Run, tmp_path: Path) -> None:
    reference = stock(3, case)
    points = [faults.at("evaluation", executor=0, step=4, action="kill")] if case == "classes-best" else []
    with start(
        SCRIPT,
        out=tmp_path / "run",
        workers=3,
        plan="0:2,1:3,2:1,3:2",
        points=points,
        script_args=["elastic", str(tmp_path), case],
    ) as job:
        job.wait()
    assert differences(reference / case, tmp_path / case) == []


@pytest.fixture(scope="session")
def refusals(tmp_path_factory: pytest.TempPathFactory, trainings: Trainings) -> Path:
    out = tmp_path_factory.mktemp("refused")
    trainings.run("refused", 2, out, *MISTAKES)
    return out


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_differs_from_stock_processes_is_refused_where_it_happens(mistake: str, refusals: Path) -> None:
    said = refusals / mistake
    assert said.exists(), "it was not refused"
    assert re.search(MISTAKES[mistake], said.read_text())


def test_both_classes_write_the_same_checkpoint(stock: Run, alone: Run) -> None:
    folders = [run(2, *CASES) / "masked-save" / "checkpoint-5" for run in (stock, alone)]
    same_checkpoint(*folders, 2)
    resumed = alone(2, *(f"masked-save={folder}={i}" for i, folder in enumerate(folders)))
    assert differences(resumed / "0", resumed / "1") == []


@pytest.mark.parametrize(("case", "step"), RESUMED)
def test_resumed_as_the_stock_class_resumes(case: str, step: int, stock: Run, alone: Run) -> None:
    """Whoever wrote the folder."""
    folders = [run(2, case) / case / f"checkpoint-{step}" for run in (stock, alone)]
    assert differences(*(run(2, f"{case}={folders[0]}") / case for run in (stock, alone))) == []
    assert differences(*(run(2, f"{case}={folders[1]}") / case for run in (stock, alone))) == []


def same_checkpoint(one: Path, other: Path, num_logical_workers: int) -> None:
    assert {path.name for path in one.iterdir()} == {path.name for path in other.iterdir()}
    for name in ("optimizer.pt", "scheduler.pt", *(f"rng_state_{rank}.pth" for rank in range(num_logical_workers))):
        found: list[str] = []
        _compare(*(torch.load(path / name, weights_only=False) for path in (one, other)), name, found)
        assert found == []
    found = []
    _compare(*(json.loads((path / "trainer_state.json").read_text()) for path in (one, other)), "trainer", found)
    assert [line for line in found if "best_model_checkpoint" not in line] == []
    assert (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()


def differences(one: Path, other: Path) -> list[str]:
    """Everything in two results that is not equal bit for bit, seconds and rates aside."""
    found: list[str] = []
    _compare(*(torch.load(path / "result.pt", weights_only=False) for path in (one, other)), "", found)
    return found


def _compare(one: Any, other: Any, path: str, found: list[str]) -> None:
    if isinstance(one, torch.Tensor):
        same = one.dtype == other.dtype and one.shape == other.shape
        if not same or not torch.equal(*(t.contiguous().reshape(-1).view(torch.uint8) for t in (one, other))):
            found.append(f"{path}: other bits")
    elif isinstance(one, dict):
        for key in {**one, **other}:
            if not str(key).endswith(TIMING):
                _compare(one.get(key), other.get(key), f"{path}.{key}", found)
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        for i, (first, second) in enumerate(zip(one, other, strict=True)):
            _compare(first, second, f"{path}[{i}]", found)
    elif repr(one) != repr(other):
        found.append(f"{path}: {one!r} and {other!r}")


def _run(command: list[str]) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"

"""Checkpoints of the script's own: where it begins, what it saves where, and what set-up must not look for."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from isoscale.core.reduction.exchange import LocalExchange
from isoscale.core.streams import rng
from isoscale.errors import TurnRuleError, UserError
from isoscale.runtime.training.execute import code_of, execute
from isoscale.runtime.training.job import Job
from isoscale.runtime.training.loop import TrainingLoop
from isoscale.types import JobSpec
from tests.unit.test_snapshot import Quiet, Watching

DATA = TensorDataset(torch.randn(24, 3, generator=torch.Generator().manual_seed(0)), torch.arange(24) % 2)


@pytest.fixture(autouse=True)
def leave_streams() -> Iterator[None]:
    with rng.isolated():
        yield


def run(train: Callable[[Job], None], out: Path, elastic: Any = None) -> TrainingLoop:
    spec = JobSpec(workers=2, out=str(out))
    loop = TrainingLoop(spec, LocalExchange(2), Quiet(), train_code=code_of(train))  # type: ignore[arg-type]
    loop.elastic = elastic
    execute(loop, train)
    return loop


def epochs(seen: list[Any], count: int, start: int = 0) -> Callable[[Job], None]:
    """Trains, and notes which samples came in which epoch."""

    def train(job: Job) -> None:
        model = job.model(nn.Linear(3, 2))
        optimizer = job.keep("optimizer", torch.optim.SGD(model.parameters(), lr=0.1))
        loader = job.loader(DATA, batch_size=2, shuffle=True)
        for epoch in job.epochs(count, start=start):
            for step in loader:
                for x, y in step:
                    F.cross_entropy(model(x), y).backward()
                    seen.append((epoch, step.index, x.tolist()))
                optimizer.step()
                optimizer.zero_grad()

    return train


def test_a_warm_start_goes_on_with_the_shuffle_of_its_epoch(tmp_path: Path) -> None:
    whole: list[Any] = []
    rest: list[Any] = []
    run(epochs(whole, 4), tmp_path)
    assert run(epochs(rest, 4, start=2), tmp_path).step == 12
    assert rest == [one for one in whole if one[0] >= 2]


def test_who_joins_a_warm_start_goes_on_where_the_others_are(tmp_path: Path) -> None:
    seen: list[Any] = []
    watching = Watching(at=8)
    run(epochs(seen, 4, start=2), tmp_path, watching)
    joined: list[Any] = []
    run(epochs(joined, 4, start=2), tmp_path, Watching(staged=watching.taken))
    assert joined == seen[-len(joined) :]
    assert joined[0][:2] == (3, 2)


@pytest.mark.parametrize("start", [-1, 1.0, True])
def test_what_is_no_epoch_is_refused(start: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"job\.epochs\(start=\.\.\.\)"):
        run(epochs([], 4, start=start), tmp_path)


# ---- where files go ----


def saves(name: str) -> Callable[[Job], None]:
    return lambda job: job.save(name, {"x": torch.ones(2)})


def test_an_address_is_written_through_fsspec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "out"
    run(saves("memory://bucket/best.pt"), out)
    with fsspec.open("memory://bucket/best.pt", "rb") as file:
        assert torch.load(file, weights_only=True)["x"].sum() == 2
    run(saves(f"file://{tmp_path}/elsewhere/best.pt"), out)
    assert torch.load(tmp_path / "elsewhere" / "best.pt", weights_only=True)["x"].sum() == 2
    run(saves("deeper/best.pt"), out)
    assert sorted(os.listdir(tmp_path)) == ["elsewhere", "out"]
    assert os.listdir(out) == ["deeper"]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("nosuch://bucket/best.pt", "no file system for nosuch://"),
        ("s3:/bucket/best.pt", "neither a name in the job's directory nor an address"),
        ("../best.pt", "lies outside the job's directory"),
        ("", "neither a name"),
    ],
)
def test_what_cannot_be_written_is_refused_and_no_folder_made(name: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"job\.save") as error:
        run(saves(name), tmp_path / "out")
    assert problem in str(error.value)
    assert list(tmp_path.iterdir()) == []


# ---- what set-up looks for ----


def resumes_itself(
    path: Callable[[Job], Path], look: Callable[[Path], object], *, by_job: bool
) -> Callable[[Job], None]:
    def train(job: Job) -> None:
        look(path(job))
        model = job.model(nn.Linear(3, 2))
        for step in job.loader(DATA, batch_size=2):
            for x, y in step:
                F.cross_entropy(model(x), y).backward()
            if by_job:
                job.save(path(job).name, model.state_dict())
            else:
                torch.save(model.state_dict(), path(job))

    return train


def load_if_there(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        torch.load(path)


@pytest.mark.parametrize("look", [os.path.exists, os.path.isfile, Path.exists, Path.is_file, load_if_there])
@pytest.mark.parametrize("by_job", [True, False])
def test_training_does_not_write_what_set_up_looks_for(
    look: Callable[[Path], object], by_job: bool, tmp_path: Path
) -> None:
    where = (lambda job: job.out / "snapshot.pt") if by_job else (lambda job: tmp_path / "snapshot.pt")
    # The function is looked up when it is called, as a script does.
    name = look.__name__
    owner: Any = os.path if look.__module__ in ("genericpath", "posixpath") else Path
    late = look if look is load_if_there else lambda path: getattr(owner, name)(path)
    with pytest.raises(TurnRuleError, match=r"set-up looks for \(test_own_checkpoints\.py:\d+\).*isoscale resume"):
        run(resumes_itself(where, late, by_job=by_job), tmp_path / "out")
    assert getattr(owner, name, look) is look


def test_a_file_of_another_run_may_be_read_and_a_cache_made(tmp_path: Path) -> None:
    (tmp_path / "pretrained.pt").touch()

    def train(job: Job) -> None:
        assert (tmp_path / "pretrained.pt").exists()
        if not os.path.exists(tmp_path / "cache.pt"):
            torch.save({}, tmp_path / "cache.pt")
        resumes_itself(lambda job: job.out / "mine.pt", lambda path: None, by_job=True)(job)

    run(train, tmp_path / "out")
    assert (tmp_path / "out" / "mine.pt").exists()

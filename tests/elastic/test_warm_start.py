"""Jobs whose executors are forked: as a script sees them, and through the death of whoever forked them."""

from __future__ import annotations

import contextlib
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

from isoscale import env
from isoscale.backends.system import born
from isoscale.testing import RunningJob, start

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

ISOSCALE = str(Path(sys.executable).with_name("isoscale"))

#: says what it finds, and has processes of its own: by spawn, which imports this file again, and by fork
SCRIPT = """
import json, multiprocessing, os, pickle, random, sys, threading
import numpy, torch
from torch.utils.data import TensorDataset
import isoscale


def square(x):
    return x * x


def facts(job):
    main = sys.modules["__main__"]
    values = {}
    for method in ("spawn", "fork"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            values[method] = pool.map(square, [1, 2, 3])
    return values | {
        "argv": sys.argv,
        "original": sys.orig_argv[-2:],
        "file": main.__file__,
        "spec": repr(main.__spec__),
        "name": __name__,
        "path": sys.path,
        "pickled": pickle.loads(pickle.dumps(square)) is square,
        "seeds": [torch.initial_seed(), torch.rand(1).item()],
        "threads": [torch.get_num_threads(), threading.active_count()],
        "cwd": os.getcwd(),
        "command": open("/proc/self/cmdline").read().split("\\0")[2:],
        "executor": f"ISOSCALE_EXECUTOR={os.environ['ISOSCALE_EXECUTOR']}" in open("/proc/self/environ").read(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def train(job):
    with open(os.path.join(job.out, f"facts-{os.environ['ISOSCALE_EXECUTOR']}.json"), "w") as file:
        json.dump(facts(job), file)
    model = job.model(torch.nn.Linear(2, 1))
    optimizer = job.keep("optimizer", torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in job.steps(3):
        for step in job.loader(TensorDataset(torch.ones(16, 2)), batch_size=2):
            for (x,) in step:
                model(x).sum().backward()
            optimizer.step()


if __name__ == "__main__":
    isoscale.run(train)
"""


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nobody lends warm parents: a run has its own."""
    monkeypatch.setenv(env.WARM_DIRECTORY, str(tmp_path / "nobody"))


def run(home: Path, out: str, *options: str) -> dict[str, Any]:
    (home / "script.py").write_text(SCRIPT)
    command = [ISOSCALE, "run", "script.py", "--workers", "2", "--executors", "1", "--out", out, *options]
    done = subprocess.run([*command, "--", "-x", "a b"], cwd=home, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads((home / out / "facts-0.json").read_text())
    return found


def test_a_script_cannot_tell_how_it_was_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    borrowed = run(tmp_path, "borrowed")
    assert not (tmp_path / "borrowed" / "logs" / "warm.log").exists(), "the run has started a warm parent of its own"
    monkeypatch.setenv(env.WARM_DIRECTORY, str(tmp_path / "nobody"))
    warm, cold = run(tmp_path, "warm"), run(tmp_path, "cold", "--no-warm")
    assert (tmp_path / "warm" / "logs" / "warm.log").exists()
    assert not (tmp_path / "cold" / "logs" / "warm.log").exists()
    for found in (borrowed, warm):
        assert {name: (found[name], cold[name]) for name in cold if found[name] != cold[name]} == {}
    assert warm["spawn"] == warm["fork"] == [1, 4, 9]


#: trains until there is a file
LONG = """
import os, time
import torch
from torch.utils.data import TensorDataset
import isoscale


def train(job):
    model = job.model(torch.nn.Linear(2, 1))
    optimizer = job.keep("optimizer", torch.optim.SGD(model.parameters(), lr=0.1))
    loader = job.loader(TensorDataset(torch.ones(16, 2)), batch_size=2)
    for _ in job.steps(100_000):
        for step in loader:
            for (x,) in step:
                time.sleep(0.05)
                model(x).sum().backward()
                if os.path.exists(os.path.join(job.out, "enough")):
                    job.stop("enough")  # in a turn: whoever sees the file first, all stop after this step
            optimizer.step()


if __name__ == "__main__":
    isoscale.run(train)
"""


def warm_parents(job: RunningJob) -> list[int]:
    """Children of its coordinator that fork executors."""
    pid = int(json.loads((job.directory / "control" / "coordinator.json").read_text())["pid"])
    found = []
    for child in map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
        with contextlib.suppress(OSError):
            if b"warm_parent.py" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(child)
    return found


@contextlib.contextmanager
def long_job(home: Path, executors: int) -> Iterator[RunningJob]:
    (home / "long.py").write_text(LONG)
    with start(home / "long.py", out=home / "run", workers=4, executors=executors) as job:
        job.wait_step(2)
        yield job
        (home / "run" / "enough").touch()
        assert job.wait() == 0


@pytest.mark.parametrize("signal_", [signal.SIGKILL, signal.SIGSTOP])
def test_the_warm_parent_fails_while_the_job_trains(signal_: signal.Signals, tmp_path: Path, alone: None) -> None:
    with long_job(tmp_path, executors=2) as job:
        before = set(job.pids().values())
        (parent,) = warm_parents(job)
        os.kill(parent, signal_)
        job.scale("4")
        job.wait_members(4)
        assert before <= set(job.pids().values()), "executors outlive the process that forked them"
        job.kill(1)
        lost = job.wait_for(lambda: job.events("executor_lost"), "the loss")
        assert [(event["executor"], event["reason"]) for event in lost] == [(1, "killed by SIGKILL")]
        job.wait_for(lambda: len(job.members()) == 4 and 1 not in job.members(), "the replacement")


def test_coordinator_and_warm_parent_die_together_and_the_next_one_takes_over(tmp_path: Path, alone: None) -> None:
    with long_job(tmp_path, executors=2) as job:
        before = job.pids()
        parents = warm_parents(job)
        job.kill_coordinator()
        deadline = time.monotonic() + 200
        while any(map(born, parents)):
            assert time.monotonic() < deadline, "a warm parent outlives its owner"
            time.sleep(0.02)
        job.resume()
        job.wait_for(lambda: len(job.events("coordinator_started")) == 2 and job.try_scale("3"), "the next coordinator")
        assert {*job.wait_members(3)} > {*before}
        assert before.items() <= job.pids().items(), "executors go on under the next coordinator"

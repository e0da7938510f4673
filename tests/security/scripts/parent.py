"""A job whose executors start processes of every sort and end none. Arguments: a directory for their numbers, a file
whose presence ends the job."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import TensorDataset

import isoscale

PIDS, DONE = Path(sys.argv[1]), Path(sys.argv[2])


def note(name: str, pid: int) -> None:
    (PIDS / f"{os.environ['ISOSCALE_EXECUTOR']}-{name}").write_text(str(pid))


def fork(*, detach: bool) -> None:
    if os.fork() == 0:
        if detach:
            os.setsid()
            if os.fork():  # its parent is gone, and so is its session's leader
                os._exit(0)
        note("daemon" if detach else "fork", os.getpid())
        time.sleep(1000)
        os._exit(0)


def have_children() -> None:
    sleep = ["sleep", "1000"]
    note("popen", subprocess.Popen(sleep).pid)
    note("new-session", subprocess.Popen(sleep, start_new_session=True).pid)
    note("no-environment", subprocess.Popen(sleep, env={"PATH": os.environ["PATH"]}).pid)
    kept = {name: value for name, value in os.environ.items() if name != "ISOSCALE_EXECUTOR"}
    note("detached", subprocess.Popen(sleep, env=kept, start_new_session=True).pid)
    child = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(1000,), daemon=True)
    child.start()
    note("multiprocessing", child.pid or 0)
    fork(detach=False)
    fork(detach=True)


def train(job: isoscale.Job) -> None:
    have_children()
    model = job.model(torch.nn.Linear(2, 1))
    optimizer = job.keep("optimizer", torch.optim.SGD(model.parameters(), lr=0.1))
    loader = job.loader(TensorDataset(torch.ones(16, 2)), batch_size=2)
    for _ in job.steps(100_000):
        for step in loader:
            for (x,) in step:
                model(x).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(0.02)
            if DONE.exists():
                job.stop("the test is done")


if __name__ == "__main__":
    isoscale.run(train)

"""For tests of elastic training: run a job with real processes, do things to it, compare the bits.

    from isoscale.testing import faults, start

    with start("train.py", out=tmp_path / "run", workers=4, executors=3) as job:
        faults.play(job, [faults.kill(executor=1, step=7), faults.scale("4", step=20)])
        job.wait()
        assert job.digest() == undisturbed

`python -m isoscale.testing.chaos --seeds 0:200` throws random faults at a short job (`isoscale.testing.chaos`).
Coordinators run as `isoscale run` in a process of their own, so they can be killed, too.
"""

from __future__ import annotations

from pathlib import Path

from isoscale.testing import faults
from isoscale.testing.nursery import Nursery
from isoscale.testing.running import BrokenPromiseError, JobEndedError, RunningJob, start

__all__ = ["BrokenPromiseError", "JobEndedError", "Nursery", "RunningJob", "faults", "short_job_path", "start"]


def short_job_path() -> Path:
    """The script of a job of a few seconds; its arguments are in its docstring."""
    return Path(__file__).with_name("short_job.py")

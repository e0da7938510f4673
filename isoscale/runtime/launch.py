"""`isoscale.run`: the last line of every script, and the place where it turns out what this process is.

Above everything that can run a training function (an executor, a rank of the reference, a replay, all logical workers
alone), so that none of them has to know the others. Imports only the one that is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from isoscale import env

if TYPE_CHECKING:
    from isoscale.runtime.training.job import Job

__all__ = ["run"]


def run(train: Callable[[Job], None], *, workers: int | None = None, seed: int | None = None) -> None:
    """Run a training function: the last line of every script.

    Started by `isoscale run` the process is one executor of many. Started alone, all logical workers run
    here; their number is `workers`, or the variable ISOSCALE_WORKERS, or 1.
    """
    if env.is_reference():
        from isoscale.runtime.reference.run import run_reference

        run_reference(train)
    elif env.replay() is not None:
        from isoscale.runtime.tools.rerun import run_replay

        run_replay(train)
    elif env.coordinator() is not None:
        from isoscale.runtime.executor.process import run_executor

        run_executor(train)
    else:
        from isoscale.runtime.alone import run_alone

        run_alone(train, workers=workers, seed=seed)

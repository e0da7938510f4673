"""`isoscale.run`: the last line of every script, and the place where it turns out what this process is.

Above everything that can run a training function (an executor, a rank of the reference, a replay, all logical workers
alone), so that none of them has to know the others. Imports only the one that is needed.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from isoscale import env
from isoscale.errors import UserError
from isoscale.runtime.code.script_end import at_script_end

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from isoscale.runtime.reference.rank import Rank
    from isoscale.runtime.training.job import Job
    from isoscale.runtime.training.loop import TrainingLoop

__all__ = ["enter", "run", "warm_up"]


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


def enter(*, workers: int | None = None, seed: int | None = None) -> TrainingLoop | Rank:
    """For integrations, whose scripts have no training function: the rest of the script is the training.

    The job ends with the script, however that ends. Called once per process.
    """
    if env.replay() is not None:
        raise UserError(
            field="isoscale replay",
            value=sys.argv[0],
            problem="a script without isoscale.run(train) has no training function to begin again",
            remedy="run the script alone, as python SCRIPT, under a debugger",
        )
    session: AbstractContextManager[TrainingLoop | Rank]
    if env.is_reference():
        from isoscale.runtime.reference.run import reference_session

        session = reference_session()
    elif env.coordinator() is not None:
        from isoscale.runtime.executor.process import executor_session

        session = executor_session(None)
    else:
        from isoscale.runtime.alone import alone_session

        session = alone_session(None, workers=workers, seed=seed)
    from isoscale.core.streams import rng

    with rng.isolated():  # the script may have seeded itself
        entered = session.__enter__()
    at_script_end(lambda error: session.__exit__(type(error) if error else None, error, None))
    return entered


def warm_up() -> None:
    """What every process of a job does first, in the one from which they are forked. No thread may be left running."""
    from isoscale.core.numerics.fingerprint import kernel_digests

    # The last one is imported by the first optimizer, and takes most of a second.
    for module in ("isoscale.runtime.executor.process", "isoscale.runtime.reference.run", "torch._dynamo"):
        importlib.import_module(module)

    if env.num_threads() == 1:
        # Code that oneDNN makes for this CPU is made once. With more threads they would be started here.
        kernel_digests()

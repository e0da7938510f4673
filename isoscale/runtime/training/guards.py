"""What a process of a job must not do behind the job's back, caught where it happens.

`optimizer.step()` inside a turn and collectives of the user's are intercepted for as long as a job
runs in the process. The interception is undone afterwards, so that a notebook stays usable.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import torch.distributed
import torch.distributed.distributed_c10d as c10d
from torch.optim.optimizer import register_optimizer_step_pre_hook

from isoscale.core.engine import StepEngine

__all__ = ["guarded"]


@contextmanager
def guarded(engine: StepEngine) -> Iterator[None]:
    def refuse(*args: object, **kwargs: object) -> NoReturn:
        if engine.turn.logical_rank is not None:
            raise engine.turn.error(
                "a torch.distributed call inside a turn would meet other logical workers of the same process",
                "report numbers with step.sum or step.log; read step.totals after the inner loop",
            )
        raise engine.turn.error(
            "torch.distributed has no default group in a job: the number of processes is not the script's business",
            "use step.sum, loader.totals and job.is_main",
        )

    hook = register_optimizer_step_pre_hook(lambda optimizer, args, kwargs: engine.before_optimizer_step())
    # Functions look the default group up in their own module; `init_process_group` is also exported by name.
    replaced = [(c10d, "_get_default_group"), (c10d, "init_process_group"), (torch.distributed, "init_process_group")]
    saved = [getattr(module, name) for module, name in replaced]
    for module, name in replaced:
        setattr(module, name, refuse)
    try:
        yield
    finally:
        hook.remove()
        for (module, name), original in zip(replaced, saved, strict=True):
            setattr(module, name, original)

"""What this process is to the trainers in it: the job it belongs to, and what accelerate is told about processes.

The job begins where a stock script joins its process group: when the first `TrainingArguments` are made. Accelerate is
told of one process that is logical worker r of N: its number is that of the worker whose turn it is, and outside turns
that of the lowest worker that lives here, so that exactly one executor takes itself for the first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from accelerate.state import AcceleratorState, PartialState

from isoscale import env
from isoscale.runtime.launch import enter

if TYPE_CHECKING:
    from isoscale.runtime.reference.rank import Rank
    from isoscale.runtime.training.loop import TrainingLoop

__all__ = ["describe", "enter_reference", "is_first", "is_main", "loop", "number_here"]

_entered: list[TrainingLoop | Rank] = []


def loop() -> TrainingLoop:
    """The training loop of this process; the job begins with the first call."""
    assert not env.is_reference()
    return _once()  # type: ignore[return-value]


def enter_reference() -> Rank:
    """The rank that this process of the reference is."""
    assert env.is_reference()
    return _once()  # type: ignore[return-value]


def _once() -> TrainingLoop | Rank:
    if not _entered:
        # A job refuses an Accelerator that a script makes for itself. This one is told what it has to believe.
        initialize = PartialState.__init__
        _entered.append(enter())
        PartialState.__init__ = initialize
    return _entered[0]


def is_main() -> bool:
    """True on one executor at a time."""
    return loop().is_main


def is_first() -> bool:
    """Whether a stock script would take this for process 0: in a turn, that of logical worker 0."""
    rank = loop().engine.turn.logical_rank
    return is_main() if rank is None else rank == 0


def number_here() -> int:
    """What a stock script would call its process index."""
    job = loop()
    rank = job.engine.turn.logical_rank
    if rank is not None:
        return rank
    return 0 if job.is_main else max(1, job.engine.ranks[0])


def describe() -> None:
    """Tell accelerate how many processes there are to all appearances, and which one this is now."""
    for state in (PartialState._shared_state, AcceleratorState._shared_state):
        if state:
            state["num_processes"] = loop().spec.workers
            state["process_index"] = state["local_process_index"] = number_here()

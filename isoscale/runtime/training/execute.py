"""Runs a training function in this process, from seeding to the digest of the result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from types import CodeType, TracebackType

from isoscale import limits
from isoscale.core.streams import rng
from isoscale.errors import UserError
from isoscale.runtime.training.guards import guarded
from isoscale.runtime.training.job import Job
from isoscale.runtime.training.loop import TrainingLoop
from isoscale.types import JobSpec

__all__ = ["check_seed", "code_of", "execute", "executing", "exit_of"]


def execute(loop: TrainingLoop, train: Callable[[Job], object]) -> str:
    """Train under the job's seed and return the digest. Errors of the script leave as they are."""
    with executing(loop):
        train(Job(loop))
    return loop.digest


@contextmanager
def executing(loop: TrainingLoop, *, watches_files: bool = True) -> Iterator[None]:
    """What is done inside is the training of the job; at its end `loop.digest` is known.

    `watches_files`: what set-up looks for must not be written by training. Not where a trainer's own resume is known.
    """
    try:
        with guarded(loop.engine), loop.own_files.watched() if watches_files else nullcontext():
            rng.seed_all(loop.spec.seed)
            yield
            loop.digest = loop.finish()
    finally:
        loop.close()


def code_of(train: Callable[[Job], object]) -> CodeType | None:
    """The code object by which the training function's frame is found."""
    while isinstance(train, partial):
        train = train.func
    method = vars(type(train)).get("__call__")  # of an object that is called like a function
    return getattr(train, "__code__", None) or getattr(method, "__code__", None)


def exit_of(error: SystemExit) -> tuple[str, int]:
    """A script that ended itself, in one line, and its exit code. Python shows no traceback then, and nor do we."""
    if not error.code:
        return "the script called sys.exit() before training was done", 1
    if not isinstance(error.code, int):
        return f"the script ended itself: {error.code}", 1
    refused = _refused_arguments(error.__traceback__)
    summary = f"the script refused its arguments: {refused}" if refused else ""
    return summary or f"the script ended itself with exit code {error.code}", error.code & 0xFF or 1


def _refused_arguments(trace: TracebackType | None) -> str:
    """What argparse has said on standard error, which some commands do not show."""
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_code.co_name == "error" and frame.f_globals.get("__name__") == "argparse":
            return str(frame.f_locals.get("message", ""))
        trace = trace.tb_next
    return ""


def check_seed(spec: JobSpec) -> None:
    """`numpy.random.seed` takes 32 bits, and logical worker r is seeded with seed + r."""
    limits.within(spec.workers, "workers", limits.LOGICAL_WORKERS)
    last_seed = int(limits.SEED.most) - spec.workers
    if not 0 <= spec.seed <= last_seed:
        raise UserError(
            field="seed",
            value=spec.seed,
            problem="seed + logical rank must fit 32 bits",
            remedy=f"choose 0 .. {last_seed}",
        )

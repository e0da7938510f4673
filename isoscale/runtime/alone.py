"""`python train.py`: all logical workers in this process, for debuggers and notebooks.

Same numbers as any other placement. Writes no event log; the console gets a line now and then.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType

from isoscale import env
from isoscale.core.numerics import determinism
from isoscale.core.reduction.exchange import LocalExchange
from isoscale.core.totals import Combined
from isoscale.runtime.training.batches import Rebatched
from isoscale.runtime.training.execute import check_seed, code_of, executing
from isoscale.runtime.training.job import Job
from isoscale.runtime.training.loader import Place
from isoscale.runtime.training.loop import TrainingLoop
from isoscale.runtime.training.sink import Value
from isoscale.types import JobSpec

__all__ = ["ConsoleSink", "alone_session", "run_alone"]


class ConsoleSink:
    """At most one line a second, on standard error."""

    def __init__(self) -> None:
        self._last = 0.0

    def step(
        self,
        *,
        step: int,
        epoch: int,
        values: Combined,
        seconds: float,
        samples: int,
        total: int,
        place: Place,
        noise_scale: float | None = None,
        noise_skipped: int = 0,
    ) -> None:
        now = time.monotonic()
        if now - self._last >= 1.0:
            self._last = now
            means = "  ".join(f"{name} {value:.4f}" for name, value in values.means.items())
            print(f"step {step}{f'/{total}' if total else ''}  epoch {epoch}  {means}", file=sys.stderr)

    def logged(self, *, step: int, epoch: int, values: dict[str, Value]) -> None:
        print(f"step {step}  " + "  ".join(f"{name}={value}" for name, value in values.items()), file=sys.stderr)

    def audited(self, *, step: int, digest: str) -> None:
        pass

    def streamed(self, *, event: str, stream: str, step: int, fields: dict[str, object]) -> None:
        pass

    def rebatched(self, change: Rebatched, /) -> None:
        if not change.awaited:
            told = f"step {change.step}  batch size {change.old} -> {change.new}  {change.error}"
            print(told.rstrip(), file=sys.stderr)

    def warned(self, *, message: str) -> None:
        print(f"isoscale: {message}", file=sys.stderr)


def run_alone(train: Callable[[Job], object], *, workers: int | None = None, seed: int | None = None) -> None:
    with alone_session(code_of(train), workers=workers, seed=seed) as loop:
        train(Job(loop))


@contextmanager
def alone_session(
    train_code: CodeType | None, *, workers: int | None = None, seed: int | None = None
) -> Iterator[TrainingLoop]:
    """What is done inside is the training of a job without other processes."""
    given = env.seed()
    spec = JobSpec(
        workers=env.num_logical_workers() or workers or 1,
        seed=given if given is not None else seed or 0,
        out=str(env.out() or Path("runs") / Path(sys.argv[0]).stem),
        script=sys.argv[0],
        script_args=tuple(sys.argv[1:]),
    )
    check_seed(spec)
    determinism.apply(spec.determinism, spec.threads, spec.profile)
    loop = TrainingLoop(spec, LocalExchange(spec.workers), ConsoleSink(), train_code=train_code)
    try:
        with executing(loop, watches_files=train_code is not None):
            yield loop
    finally:
        loop.main_objects.close()
    print(f"done: {loop.step} steps, {spec.workers} logical workers, digest {loop.digest[:16]}", file=sys.stderr)

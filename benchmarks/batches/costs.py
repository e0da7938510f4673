"""What live batch sizes cost: declaring them, changing them, and measuring the noise scale every 10 steps.

2 logical workers on one executor. Declaring and measuring: steps of the same job with and without, compared round by
round beside a control; the noise scale is measured in every step of its side, and a tenth of what that adds is its
price every ten steps. A change: how much longer the step takes before which the size changes, over the
median of steps of that size, with a rule that scales learning rates.

    python -m benchmarks.batches.costs
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import torch

from benchmarks.lib.measure import as_executor
from benchmarks.lib.models import TINY, Workload, workload
from benchmarks.lib.options import options as chosen
from benchmarks.lib.paired import Compared, compare, in_rounds
from benchmarks.lib.result import save
from benchmarks.lib.sides import Quiet, endless
from isoscale.core.reduction.exchange import LocalExchange
from isoscale.runtime.training.guards import guarded
from isoscale.runtime.training.job import Job
from isoscale.runtime.training.loop import TrainingLoop
from isoscale.types import JobSpec

RESULT, MINUTES = "batch_costs", 3
WORKERS, EVERY = 2, 10


@dataclass(frozen=True)
class Wish:
    id: int
    size: int
    reason: str = "benchmark"


class Asking:
    """Wants another size before every tenth step."""

    def __init__(self, sizes: tuple[int, int]) -> None:
        self._sizes = sizes

    def wish(self, loop: TrainingLoop) -> Wish | None:
        number, rest = divmod(loop.step + 1, EVERY)
        return None if rest else Wish(number, self._sizes[number % 2])

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


def side(load: Workload, *, declares: bool = False, noise: int = 0, asking: Asking | None = None) -> Callable[[], None]:
    """One step of a job."""
    torch.manual_seed(0)
    loop = TrainingLoop(JobSpec(workers=WORKERS, measure_noise=noise), LocalExchange(WORKERS), Quiet())
    loop.elastic = asking
    job = Job(loop)
    model = job.model(load.make())
    optimizer = job.keep("optimizer", torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9))
    live: Any = {"batch_sizes": (load.batch, 2 * load.batch), "batch_rule": "linear"} if declares else {}
    loader = job.loader(load.data, batch_size=load.batch, shuffle=True, **live)
    steps = endless(lambda: loader)

    def step() -> None:
        with guarded(loop.engine):
            for x, y in next(steps):
                load.loss(model, x, y).backward()
            optimizer.step()
            optimizer.zero_grad()

    return step


def change_cost(load: Workload, changes: int) -> dict[str, float]:
    """Seconds by which a step is longer before which the size changes, and of the step itself: medians."""
    step = side(load, declares=True, asking=Asking((load.batch, 2 * load.batch)))
    times = []
    for _ in range(EVERY * (changes + 1)):
        begun = perf_counter()
        step()
        times.append(perf_counter() - begun)
    extra = []
    for at in range(EVERY, EVERY * changes, EVERY):
        # `next()` of step number at + 1 makes the change.
        extra.append(times[at] - median(times[at + 1 : at + EVERY]))
    return {"step_ms": round(1e3 * median(times), 3), "extra_ms": round(1e3 * median(extra), 3)}


def thinned(compared: Compared, every: int) -> dict[str, float]:
    """Ratios of a side that does in each step what a job does in every `every`-th, as such a job would see them."""
    figures = (("cpu", compared.cpu), ("wall", compared.wall))
    return {
        f"{kind}_{name}": round(value, 5)
        for kind, figure in figures
        for name, value in (
            ("ratio", 1 + (figure.ratio - 1) / every),
            ("half_width", figure.half_width / every),
            ("step_ms", figure.a_ms),
        )
    }


def main() -> None:
    options = chosen(__doc__)
    load = workload(options.pick(smoke=TINY, quick=1, full=1))
    blocks, rounds = options.pick(smoke=(1, 2), quick=(2, 10), full=(4, 25))
    as_executor()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    makers = {
        "plain": partial(side, load),
        "control": partial(side, load),
        "declared": partial(side, load, declares=True),
        "measured": partial(side, load, noise=1),
    }
    found = in_rounds(makers, blocks=blocks, rounds=rounds)
    rows: list[dict[str, Any]] = []
    for name, what, every in (
        ("declared", "batch sizes declared, never changed", 1),
        ("measured", f"noise scale every {EVERY} steps", EVERY),
    ):
        compared = compare(found, "plain", name, "control")
        rows.append({"what": what, "model": load.name, **thinned(compared, every), "rounds": compared.rounds})
        print(f"{what}: {compared}", flush=True)
    cost = change_cost(load, options.pick(smoke=2, quick=6, full=20))
    rows.append({"what": "change of the batch size", "model": load.name, **cost})
    print(f"change of the batch size: {cost['extra_ms']:.2f} ms beyond a step of {cost['step_ms']:.1f} ms")
    save(RESULT, rows, options, workers=WORKERS)


if __name__ == "__main__":
    main()

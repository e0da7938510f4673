"""What a context switch costs: k logical workers on one executor against plain gradient accumulation.

Both sides take the same micro-batches from a stock DataLoader each, run forward and backward k times and
step the optimizer once. EasyScale reports at most 1.0197x and 1.0042x on average over eight GPU models.
Also the absolute cost of a switch, on a model so small that nothing else is left.

    python -m benchmarks.overhead.context_switch
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.lib.measure import as_executor, interleave, percentile, quick_option, save
from benchmarks.lib.models import Workload, megabytes, workloads
from benchmarks.lib.sides import Quiet, endless
from isoscale.core.context import ContextSwitch
from isoscale.core.reduction.exchange import LocalExchange
from isoscale.runtime.training.guards import guarded
from isoscale.runtime.training.job import Job
from isoscale.runtime.training.loop import TrainingLoop
from isoscale.types import JobSpec


def plain_side(load: Workload, k: int) -> Any:
    torch.manual_seed(0)
    model = load.make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    batches = endless(lambda: DataLoader(load.data, load.batch, shuffle=True))

    def step() -> None:
        for _ in range(k):
            x, y = next(batches)
            (load.loss(model, x, y) / k).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def isoscale_side(load: Workload, k: int, order: Any) -> Any:
    torch.manual_seed(0)
    loop = TrainingLoop(JobSpec(workers=k, order=order), LocalExchange(k), Quiet())
    job = Job(loop)
    model = job.model(load.make())
    optimizer = job.keep("optimizer", torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9))
    loader = job.loader(load.data, batch_size=load.batch, shuffle=True)
    steps = endless(lambda: loader)

    def step() -> None:
        with guarded(loop.engine):
            for x, y in next(steps):
                load.loss(model, x, y).backward()
            optimizer.step()
            optimizer.zero_grad()

    return step


def switch_us() -> dict[str, float]:
    """Seconds of one switch: random streams only, and a whole empty turn of the engine."""
    contexts = ContextSwitch(2, 0)
    contexts.start()
    times = []
    for i in range(2000):
        start = time.perf_counter()
        contexts.enter(i % 2)
        times.append(time.perf_counter() - start)
    data = TensorDataset(torch.zeros(4096, 1))
    tiny = Workload("tiny", lambda: nn.Linear(1, 1), lambda m, x, y: m(x).sum(), data, 1)
    engine = _turn_overhead(tiny)
    return {"streams_us": round(percentile(times, 10) * 1e6, 1), "turn_us": round(engine * 1e6, 1)}


def _turn_overhead(load: Workload) -> float:
    """Engine time per turn: opening and closing turns around an empty user body with one backward."""
    loop = TrainingLoop(JobSpec(workers=16), LocalExchange(16), Quiet())
    model = Job(loop).model(load.make())
    engine, one = loop.engine, torch.ones(1, 1)
    engine.contexts.start()
    spent: list[float] = []
    for _ in range(200):
        engine.begin(True, "")
        total = 0.0
        for rank in range(16):
            start = time.perf_counter()
            engine.open_turn(rank, last=rank == 15)
            total += time.perf_counter() - start
            model(one).sum().backward()
            start = time.perf_counter()
            engine.close_turn(rank)
            total += time.perf_counter() - start
        spent.append(total / 16)
        from isoscale.core.totals import Tally

        engine.finish(Tally(), digest="", stop=False)
    return percentile(spent, 10)


def main() -> None:
    quick = quick_option(__doc__ or "").quick
    as_executor()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    rows = []
    absolute = switch_us()
    print(f"one switch of random streams {absolute['streams_us']} us; engine per turn {absolute['turn_us']} us")
    for load in workloads():
        for k in (1, 4, 16) if quick or megabytes(load.make()) > 20 else (1, 2, 4, 8, 16):
            for order in ("ddp", "tree"):
                pairs = max(1, 8 // k)
                plain, ours = partial(plain_side, load, k), partial(isoscale_side, load, k, order)
                found = interleave(plain, ours, blocks=3 if quick else 12, pairs=pairs)
                row = {
                    "model": load.name,
                    "mb": round(megabytes(load.make()), 1),
                    "k": k,
                    "order": order,
                    **vars(found),
                }
                row["meets 1.02"] = found.meets(1.02)
                rows.append(row)
                print(
                    f"{load.name:18} k={k:2} {order:4} {found.a_ms:8.1f} -> {found.b_ms:8.1f} ms  "
                    f"ratio {found.ratio:.4f}  control {found.control:.4f} +- {found.half_width:.4f}"
                )
    if not quick:
        save("context_switch", rows, absolute=absolute)


if __name__ == "__main__":
    main()

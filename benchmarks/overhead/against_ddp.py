"""Two executors against two processes of stock DDP, on the same model in the same processes.

E = N = 2: one logical worker per executor against one rank per process. N = 8 on E = 2: four turns per
executor against four micro-batches per rank, three of them under `no_sync`. Also the bare exchange of the
model's bytes in each order, beside a plain all-reduce.

    python -m benchmarks.overhead.against_ddp
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed
import torch.multiprocessing
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from benchmarks.lib.measure import as_executor, quick_option, ratio_of, save
from benchmarks.lib.models import Workload, megabytes, workloads
from benchmarks.lib.sides import Quiet, endless
from isoscale.runtime.training.job import Job
from isoscale.runtime.training.loop import TrainingLoop
from isoscale.runtime.transport.gloo import connect
from isoscale.types import JobSpec, Placement

# torch ships no complete type stubs for these.
dist: Any = torch.distributed
spawn: Any = torch.multiprocessing.spawn  # type: ignore[attr-defined]
Step = Callable[[], None]


def stock_side(load: Workload, micro_batches: int) -> Step:
    torch.manual_seed(0)
    model = DistributedDataParallel(load.make())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    batches = endless(lambda: DataLoader(load.data, load.batch, shuffle=True))

    def step() -> None:
        for i in range(micro_batches):
            x, y = next(batches)
            with nullcontext() if i == micro_batches - 1 else model.no_sync():
                (load.loss(model, x, y) / micro_batches).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def isoscale_side(
    load: Workload, placement: Placement, rank: int, order: Any, store: Path
) -> tuple[Step, TrainingLoop]:
    torch.manual_seed(0)
    loop = TrainingLoop(
        JobSpec(workers=placement.num_logical_workers, order=order), connect(str(store), placement, rank), Quiet()
    )
    job = Job(loop)
    model = job.model(load.make())
    optimizer = job.keep("optimizer", torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9))
    loader = job.loader(load.data, batch_size=load.batch, shuffle=True)
    steps = endless(lambda: loader)

    def step() -> None:
        for x, y in next(steps):
            load.loss(model, x, y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, loop


def interleaved(make: Callable[[int], dict[str, Step]], blocks: int, pairs: int) -> dict[str, list[list[float]]]:
    """All sides in an order that is random but the same in both processes; every block builds them anew."""
    order = random.Random(1)
    times: dict[str, list[list[float]]] = {}
    for block in range(blocks):
        sides = make(block)
        for name, side in sides.items():
            times.setdefault(name, []).append([])
            for _ in range(3):
                side()
        for _ in range(pairs):
            for name in order.sample(list(sides), len(sides)):
                dist.barrier()
                start = time.perf_counter()
                sides[name]()
                times[name][block].append(time.perf_counter() - start)
    return times


def exchange_times(load: Workload, loop: TrainingLoop, repeats: int) -> float:
    """10th percentile of one exchange of all gradients, without any overlap, in milliseconds."""
    model = loop.engine.models[0]
    spent = []
    for _ in range(repeats):
        model.begin_step()
        for rank in loop.engine.ranks:
            model.sync.take(rank, [torch.ones_like(p) for p in model.params])
        dist.barrier()
        start = time.perf_counter()
        model.sync.finish()
        spent.append(time.perf_counter() - start)
    return sorted(spent)[len(spent) // 10] * 1e3


def plain_all_reduce(numel: int, repeats: int) -> float:
    flat, spent = torch.ones(numel), []
    for _ in range(repeats):
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(flat)
        spent.append(time.perf_counter() - start)
    return sorted(spent)[len(spent) // 10] * 1e3


def rank_main(rank: int, directory: str, quick: bool) -> None:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    dist.init_process_group("gloo", store=dist.FileStore(f"{directory}/ddp", 2), rank=rank, world_size=2)
    rows: list[dict[str, Any]] = []
    for load in workloads():
        for n, orders in ((2, ("ddp", "tree")), (8, ("ddp", "tree"))):
            rows += compare(load, n, orders, rank, Path(directory), quick)
    if rank == 0 and not quick:
        save("against_ddp", rows)
    dist.barrier()
    dist.destroy_process_group()


def compare(
    load: Workload, n: int, orders: tuple[str, ...], rank: int, directory: Path, quick: bool
) -> list[dict[str, Any]]:
    placement = Placement.even(n, 2)
    loops: dict[str, TrainingLoop] = {}

    def make(block: int) -> dict[str, Step]:
        sides: dict[str, Step] = {"a": stock_side(load, n // 2), "control": stock_side(load, n // 2)}
        for order in orders:
            store = directory / f"{load.name}-{n}-{order}-{block}"
            sides[order], loops[order] = isoscale_side(load, placement, rank, order, store)
        return sides

    times = interleaved(make, 2, max(4, 12 // (n // 2)))
    rows = []
    model = load.make()
    plain_ms = plain_all_reduce(sum(p.numel() for p in model.parameters()), 30)
    for order in orders:
        found = ratio_of({"a": times["a"], "control": times["control"], "b": times[order]})
        exchange_ms = exchange_times(load, loops[order], 30)
        limit = 1 / 0.98 if n == 2 else {"ddp": 1.10, "tree": 1.03}[order]
        rows.append(
            {
                "model": load.name,
                "mb": round(megabytes(model), 1),
                "workers": n,
                "executors": 2,
                "order": order,
                **vars(found),
                "exchange_ms": round(exchange_ms, 2),
                "plain_all_reduce_ms": round(plain_ms, 2),
                "limit": round(limit, 4),
                "meets": found.meets(limit),
            }
        )
        if rank == 0:
            print(
                f"{load.name:18} N={n} E=2 {order:4} stock {found.a_ms:7.1f} ms  ours {found.b_ms:7.1f} ms  "
                f"ratio {found.ratio:.4f}  control {found.control:.4f} +- {found.half_width:.4f}  "
                f"exchange {exchange_ms:.1f} ms, plain all-reduce {plain_ms:.1f} ms",
                flush=True,
            )
    return rows


def main() -> None:
    quick = quick_option(__doc__ or "").quick
    as_executor()
    with tempfile.TemporaryDirectory() as directory:
        spawn(rank_main, (directory, quick), nprocs=2)


if __name__ == "__main__":
    main()

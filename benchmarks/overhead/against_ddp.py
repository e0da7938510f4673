"""Two executors against two processes of stock DDP: the same steps in the same processes and the same memory.

E = N = 2: one logical worker per executor against one rank per process. N = 8 on E = 2: four turns per
executor against four micro-batches per rank, three of them under `no_sync`. Also the bare exchange of the
model's bytes in each order, beside a plain all-reduce.

How it tells a percent from noise: all sides train one set of parameters and momenta (their modules are copies
that share that memory), so where a model happens to lie costs all alike; every round runs each side once, in an
order that is random and the same in both processes; beside wall-clock it takes the processor time of all threads
of both processes, which other processes disturb little; sides are compared within rounds, and the median
over many rounds counts. The control is stock DDP against a second stock DDP on the same memory. Blocks build all
sides anew, for buckets have memory of their own.

    python -m benchmarks.overhead.against_ddp
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed
import torch.multiprocessing
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from benchmarks.lib.measure import as_executor
from benchmarks.lib.models import Workload, megabytes, workloads
from benchmarks.lib.options import parsed, parser
from benchmarks.lib.paired import Sample, compare
from benchmarks.lib.result import save
from benchmarks.lib.sides import Quiet, endless
from isoscale.runtime.training.job import Job
from isoscale.runtime.training.loop import TrainingLoop
from isoscale.runtime.transport.gloo import connect
from isoscale.types import JobSpec, Placement

# torch ships no complete type stubs for these.
dist: Any = torch.distributed
spawn: Any = torch.multiprocessing.spawn  # type: ignore[attr-defined]
Step = Callable[[], None]


@dataclass(frozen=True)
class Length:
    """How long to measure: sides are built `blocks` times, and each build runs `rounds` rounds."""

    blocks: int
    #: at one turn per process; with more turns a round takes longer, and tells as much
    rounds: int
    #: of the bare exchange
    repeats: int


RESULT, MINUTES = "against_ddp", 8
LENGTHS = {"smoke": Length(1, 2, 2), "quick": Length(2, 25, 15), "full": Length(5, 40, 30)}


class Twins:
    """Copies of one model and its optimizer that train the same parameters and momenta."""

    def __init__(self, load: Workload) -> None:
        torch.manual_seed(0)
        self._model = load.make()
        self._momenta = [torch.zeros_like(p) for p in self._model.parameters()]

    def model(self) -> torch.nn.Module:
        twin = copy.deepcopy(self._model)
        for mine, shared in zip(twin.parameters(), self._model.parameters(), strict=True):
            mine.data = shared.data
        return twin

    def optimizer(self, model: torch.nn.Module) -> torch.optim.SGD:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
        for param, momentum in zip(model.parameters(), self._momenta, strict=True):
            optimizer.state[param] = {"momentum_buffer": momentum}
        return optimizer


def stock_side(load: Workload, twins: Twins, micro_batches: int) -> Step:
    bare = twins.model()
    model = DistributedDataParallel(bare)
    optimizer = twins.optimizer(bare)
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
    load: Workload, twins: Twins, placement: Placement, rank: int, order: Any, store: Path
) -> tuple[Step, TrainingLoop]:
    exchange = connect(str(store), placement, rank)
    loop = TrainingLoop(JobSpec(workers=placement.num_logical_workers, order=order), exchange, Quiet())
    job = Job(loop)
    model = job.model(twins.model())
    optimizer = job.keep("optimizer", twins.optimizer(model))
    loader = job.loader(load.data, batch_size=load.batch, shuffle=True)
    steps = endless(lambda: loader)

    def step() -> None:
        for x, y in next(steps):
            load.loss(model, x, y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, loop


def timed(step: Step) -> Sample:
    """One step of all processes together: the longest time of one, the processor time of all."""
    dist.barrier()
    wall, cpu = time.perf_counter(), time.process_time()
    step()
    spent = torch.tensor([time.perf_counter() - wall, time.process_time() - cpu], dtype=torch.float64)
    everybody = [torch.empty_like(spent) for _ in range(dist.get_world_size())]
    dist.all_gather(everybody, spent)
    return Sample(max(float(one[0]) for one in everybody), sum(float(one[1]) for one in everybody))


def interleaved(make: Callable[[int], dict[str, Step]], length: Length) -> Iterator[dict[str, list[Sample]]]:
    """By block: the samples of every side, those at the same place being of the same round."""
    order = random.Random(1)
    for block in range(length.blocks):
        sides = make(block)
        for side in sides.values():
            for _ in range(min(4, length.rounds)):
                side()
        samples: dict[str, list[Sample]] = {name: [] for name in sides}
        for _ in range(length.rounds):
            for name in order.sample(list(sides), len(sides)):
                samples[name].append(timed(sides[name]))
        yield samples


def exchange_ms(loop: TrainingLoop, repeats: int) -> float:
    """10th percentile of one exchange of all gradients, without any overlap, in milliseconds."""
    model = loop.engine.models[0]
    grads = [torch.ones_like(p) for p in model.params]
    spent = []
    for _ in range(repeats):
        model.begin_step()
        for rank in loop.engine.ranks:
            model.sync.take(rank, grads)
        dist.barrier()
        start = time.perf_counter()
        model.sync.finish()
        spent.append(time.perf_counter() - start)
    return sorted(spent)[len(spent) // 10] * 1e3


def plain_all_reduce_ms(numel: int, repeats: int) -> float:
    flat, spent = torch.ones(numel), []
    for _ in range(repeats):
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(flat)
        spent.append(time.perf_counter() - start)
    return sorted(spent)[len(spent) // 10] * 1e3


def rank_main(rank: int, directory: str, options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    dist.init_process_group("gloo", store=dist.FileStore(f"{directory}/ddp", 2), rank=rank, world_size=2)
    rows: list[dict[str, Any]] = []
    smoke = options.length == "smoke"
    for load in workloads()[: 1 if smoke else None]:
        for n in options.workers[: 1 if smoke else None]:
            rows += compared(load, n, rank, Path(directory), options)
    if rank == 0:
        (Path(directory) / "rows.json").write_text(json.dumps(rows))
    dist.barrier()
    dist.destroy_process_group()


def compared(load: Workload, n: int, rank: int, directory: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    placement, length = Placement.even(n, 2), LENGTHS[options.length]
    length = replace(length, rounds=max(2, length.rounds * 2 // n))
    loops: dict[str, TrainingLoop] = {}

    def make(block: int) -> dict[str, Step]:
        twins = Twins(load)
        sides = {"stock": stock_side(load, twins, n // 2), "control": stock_side(load, twins, n // 2)}
        for order in options.orders:
            store = directory / f"{load.name}-{n}-{order}-{block}".replace(" ", "-")
            sides[order], loops[order] = isoscale_side(load, twins, placement, rank, order, store)
        return sides

    blocks = list(interleaved(make, length))
    mb = megabytes(load.make())
    plain = plain_all_reduce_ms(int(mb * 2**20 / 4), length.repeats)
    rows = []
    for order in options.orders:
        found = compare(blocks, "stock", order, "control")
        exchange = exchange_ms(loops[order], length.repeats)
        limit = 1.0 if n == 2 else {"ddp": 1.10, "tree": 1.03}[order]
        rows.append(
            {
                "model": load.name,
                "mb": round(mb, 1),
                "workers": n,
                "executors": 2,
                "order": order,
                **found.as_row(),
                "exchange_ms": round(exchange, 2),
                "plain_all_reduce_ms": round(plain, 2),
                "limit": limit,
                "meets": found.meets(limit),
            }
        )
        if rank == 0:
            print(f"{load.name:18} N={n} E=2 {order:4} {found}", flush=True)
            print(f"{'':31} exchange {exchange:.1f} ms, plain all-reduce {plain:.1f} ms", flush=True)
    return rows


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--workers", type=int, nargs="+", choices=(2, 4, 8), default=[2, 8], help="logical workers")
    made.add_argument("--orders", nargs="+", choices=("ddp", "tree"), default=["ddp", "tree"])
    options = parsed(made)
    as_executor()
    with tempfile.TemporaryDirectory() as directory:
        spawn(rank_main, (directory, options), nprocs=2)
        save(RESULT, json.loads((Path(directory) / "rows.json").read_text()), options)


if __name__ == "__main__":
    main()

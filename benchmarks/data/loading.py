"""Shared data workers against stock DataLoaders: throughput, memory, time to the first batch.

Throughput is that of a full pipeline: both sides, and stock a second time as control, stand ready side by side; in
random order each reads as many batches as it has under way, and then those that are timed. (What a side has read ahead
when its clock starts would otherwise count as speed, the more so the more processes it has.) Eight logical workers have
W loader processes together, stock has 8 x W. Memory is the proportional set size of all loader processes. The time to
the first batch is taken from nothing to the batch: of a fresh stock loader; of ours at the beginning of an epoch and
resumed in its middle; and where an executor that reads for one logical worker takes over another one.

    python -m benchmarks.data.loading
"""

from __future__ import annotations

import gc
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from benchmarks.lib import measure
from benchmarks.lib.options import options as chosen
from benchmarks.lib.result import save
from isoscale.data.loader import LogicalLoaders

RESULT, MINUTES = "data_loading", 8
BATCH, W, AHEAD = 32, 2, 2
ONE, EIGHT, FIRST_BATCH = 0.97, 0.97, 1.5

Pass = Iterator[Any]


class Images(Dataset[Any]):
    """Small images; `heavy` crops, flips, jitters and adds noise with all three generators."""

    def __init__(self, size: int, heavy: bool) -> None:
        self._data = torch.randint(0, 255, (64, 3, 40, 40), dtype=torch.uint8)
        self._size, self._heavy = size, heavy

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = self._data[index % 64].float().div_(255)
        if self._heavy:
            for _ in range(4):
                x, y = random.randrange(8), int(np.random.randint(8))
                image = image[:, y : y + 32, x : x + 32]
                image = torch.nn.functional.pad(image, (4, 4, 4, 4))
                if random.random() < 0.5:
                    image = image.flip(2)
                image = image * (1 + 0.1 * torch.randn(3, 1, 1)) + 0.01 * torch.randn_like(image)
        return image, index % 10


class Stock:
    """What N ranks of a stock script read, a batch each in turn."""

    def __init__(self, dataset: Images, n: int) -> None:
        loaders = [
            DataLoader(dataset, BATCH, sampler=DistributedSampler(dataset, n, rank, True, seed=0), num_workers=W)
            for rank in range(n)
        ]
        self._iterators = [iter(loader) for loader in loaders]

    def __iter__(self) -> Pass:
        while (batches := [next(iterator, None) for iterator in self._iterators])[0] is not None:
            yield from batches

    def close(self) -> None:
        self._iterators.clear()
        gc.collect()


class Ours:
    """What an executor with all N logical workers does at every step, but for the model."""

    def __init__(self, dataset: Images, n: int, state: dict[str, Any] | None = None, index: int = 0) -> None:
        self.loaders = LogicalLoaders(
            dataset,
            num_logical_workers=n,
            seed=0,
            batch_size=BATCH,
            shuffle=True,
            train=True,
            options={"num_workers": W, "prefetch_factor": AHEAD},
        )
        self.loaders.begin(0, [1000 + rank for rank in range(n)], lambda rank, work: work())
        self.ranks, self.index = range(n), index
        if state is not None:
            self.loaders.load_state(state)

    def __iter__(self) -> Pass:
        while self.index < self.loaders.num_steps:
            yield from self.step(self.ranks)
            self.index += 1

    def step(self, ranks: range) -> Pass:
        loaders = self.loaders
        loaders.mark()
        loaders.open(ranks, self.index)
        for rank in ranks:
            yield loaders.fetch(rank, self.index, None)
            loaders.adopt(rank, loaders.changes_of(rank), here=True)

    def close(self) -> None:
        self.loaders.stop()


def throughput(dataset: Images, n: int, *, blocks: int, rounds: int, batches: int) -> measure.Ratio:
    """Seconds of ours over those of stock for as many batches."""
    order = random.Random(0)
    times: dict[str, list[list[float]]] = {name: [] for name in ("a", "b", "control")}
    under_way = n * W * AHEAD
    for _ in range(blocks):
        sides: dict[str, Stock | Ours] = {"a": Stock(dataset, n), "b": Ours(dataset, n), "control": Stock(dataset, n)}
        passes = {name: iter(side) for name, side in sides.items()}
        block: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(rounds):
            for name in order.sample(list(sides), len(sides)):
                read(passes[name], 2 * under_way + W)
                start = time.perf_counter()
                read(passes[name], batches)
                block[name].append(time.perf_counter() - start)
        for name, side in sides.items():
            times[name].append(block[name])
            side.close()
    return measure.ratio_of(times)


def read(batches: Pass, count: int) -> None:
    got = sum(1 for _ in islice(batches, count))
    assert got == count, "the data set is too small"


def first_batch(dataset: Images, rounds: int) -> dict[str, float]:
    """Medians, in seconds."""
    middle = len(dataset) // BATCH // 2
    known = Ours(dataset, 1)
    read(iter(known), W)  # both virtual workers have streams
    state = known.loaders.state()
    known.close()
    ways: dict[str, Callable[[], float]] = {
        "stock": lambda: timed(lambda: Stock(dataset, 1)),
        "at the beginning": lambda: timed(lambda: Ours(dataset, 1)),
        "resumed in the middle": lambda: timed(lambda: Ours(dataset, 1, state, middle)),
        "taken over": lambda: taken_over(dataset),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            times[name].append(way())
    return {name: round(statistics.median(values), 5) for name, values in times.items()}


def timed(make: Callable[[], Stock | Ours]) -> float:
    start = time.perf_counter()
    side = make()
    next(iter(side))
    elapsed = time.perf_counter() - start
    side.close()
    return elapsed


def taken_over(dataset: Images) -> float:
    """Logical worker 1 comes to an executor that reads for worker 0; the latter's next batches go on being read."""
    ours = Ours(dataset, 2)
    for ours.index in range(2 * W):
        list(ours.step(range(1)))
    start = time.perf_counter()
    step = ours.step(range(2))
    next(step)
    next(step)
    elapsed = time.perf_counter() - start
    ours.close()
    return elapsed


def memory_mb(side: Stock | Ours) -> float:
    read(iter(side), 40)
    total = sum(pss_kb(pid) for pid in children())
    side.close()
    return round(total / 1024, 1)


def children() -> list[int]:
    own, found = os.getpid(), []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(stat[1]) == own:
                found.append(int(entry.name))
    return found


def pss_kb(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def main() -> None:
    options = chosen(__doc__)
    torch.set_num_threads(1)
    blocks, rounds, starts = options.pick(smoke=(1, 1, 1), quick=(1, 4, 3), full=(4, 8, 15))
    most = options.pick(smoke=2, quick=8, full=8)
    rows: list[dict[str, Any]] = []
    for name, heavy in (("cheap", False), ("augmented", True))[options.smoke :]:
        for n, target in ((1, ONE), (most, EIGHT)):
            batches = (400 if n == 1 else 240) // (8 if heavy and n == 1 else 3 if heavy else 1)
            batches = options.pick(smoke=8, quick=batches, full=batches)
            size = (batches + 2 * n * W * AHEAD + W) * (rounds + 1) * BATCH
            ratio = throughput(Images(size, heavy), n, blocks=blocks, rounds=rounds, batches=batches)
            speed, meets = 1 / ratio.ratio, 1 / (ratio.ratio - ratio.half_width) >= target
            print(
                f"{name:9} {n} logical workers, {W} loader processes: {speed:.3f} of stock with {n * W} "
                f"(control {ratio.control:.3f} +- {ratio.half_width:.3f})  {'met' if meets else 'MISSED'}",
                flush=True,
            )
            rows.append({"data": name, "logical_workers": n, "speed": round(speed, 3)} | asdict(ratio))
        dataset = Images(6400, heavy)
        memory = {"ours": memory_mb(Ours(dataset, most)), "stock": memory_mb(Stock(dataset, most))}
        first = first_batch(dataset, starts)
        worst = max(value for way, value in first.items() if way != "stock") / first["stock"]
        print(f"{name:9} memory of loader processes in MB for {most} logical workers: {memory}")
        print(
            f"{name:9} first batch in s: {first}; at most {worst:.2f} x  {'met' if worst <= FIRST_BATCH else 'MISSED'}"
        )
        rows.append({"data": name, "memory_mb": memory, "first_batch_s": first, "first_batch_ratio": round(worst, 2)})
    targets = {"one": ONE, "eight": EIGHT, "first_batch": FIRST_BATCH}
    save(RESULT, rows, options, targets=targets, batch=BATCH, loader_processes=W)


if __name__ == "__main__":
    main()

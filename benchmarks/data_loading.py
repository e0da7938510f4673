"""Loading throughput of shared data workers against stock DataLoaders, in one run.

    python benchmarks/data_loading.py [--out benchmarks/results/data_loading.json]

Ratios are samples per second over stock's in interleaved passes; memory is the proportional set size of all loader
processes; the time to the first batch is taken at the beginning and in the middle of an epoch.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from isoscale.core import rng
from isoscale.data.loader import LogicalLoaders

BATCH, W = 32, 2


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


def stock_loaders(dataset: Images, n: int) -> list[DataLoader[Any]]:
    return [
        DataLoader(dataset, BATCH, sampler=DistributedSampler(dataset, n, rank, True, seed=0), num_workers=W)
        for rank in range(n)
    ]


def stock_pass(dataset: Images, n: int) -> Iterator[Any]:
    """What N ranks of a stock script read, a batch each in turn."""
    iterators = [iter(loader) for loader in stock_loaders(dataset, n)]
    while True:
        batches = [next(iterator, None) for iterator in iterators]
        if batches[0] is None:
            return
        yield from batches


def our_pass(dataset: Images, n: int, start: int = 0) -> Iterator[Any]:
    loaders = LogicalLoaders(
        dataset,
        num_logical_workers=n,
        seed=0,
        batch_size=BATCH,
        shuffle=True,
        train=True,
        options={"num_workers": W},
    )
    loaders.begin(0, [1000 + rank for rank in range(n)], lambda rank, work: work())
    if start:
        streams = rng.capture()
        loaders._streams = [[streams] * W for _ in range(n)]
    try:
        for index in range(start, loaders.num_steps):
            loaders.mark()
            loaders.open(range(n), index)
            for rank in range(n):
                yield loaders.fetch(rank, index, None)
                loaders.adopt(rank, loaders.changes_of(rank), here=True)
    finally:
        loaders.stop()


def seconds(make: Callable[[], Iterator[Any]]) -> tuple[float, int]:
    """From the first batch on: starting processes is measured apart."""
    iterator = make()
    next(iterator)
    begun, count = time.perf_counter(), 0
    for batch in iterator:
        count += len(batch[1])
    return time.perf_counter() - begun, count


def first_batch(make: Callable[[], Iterator[Any]]) -> float:
    begun = time.perf_counter()
    iterator = make()
    next(iterator)
    elapsed = time.perf_counter() - begun
    if hasattr(iterator, "close"):
        iterator.close()
    del iterator
    gc.collect()
    return elapsed


def memory_mb(make: Callable[[], Iterator[Any]]) -> float:
    iterator = make()
    for _ in range(40):
        next(iterator)
    total = sum(pss_kb(pid) for pid in children())
    if hasattr(iterator, "close"):
        iterator.close()
    return total / 1024


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


def ratio(a: Callable[[], Iterator[Any]], b: Callable[[], Iterator[Any]], blocks: int) -> dict[str, float]:
    """Throughput of `a` over that of `b`, interleaved; and of `b` over itself."""
    rates: dict[str, list[float]] = {"a": [], "b": [], "b again": []}
    for _ in range(blocks):
        order = [("a", a), ("b", b), ("b again", b)]
        random.shuffle(order)
        for name, make in order:
            elapsed, count = seconds(make)
            rates[name].append(count / elapsed)
            gc.collect()
    best = {name: sorted(values)[-max(1, len(values) // 4)] for name, values in rates.items()}
    return {
        "ratio": round(best["a"] / best["b"], 4),
        "control": round(best["b again"] / best["b"], 4),
        "samples_per_s": round(statistics.median(rates["a"]), 1),
        "stock_samples_per_s": round(statistics.median(rates["b"]), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/data_loading.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    result: dict[str, Any] = {"command": " ".join(["python", *sys.argv]), "workers": W, "batch": BATCH}
    for name, heavy, size in (("cheap", False, 6400), ("augmented", True, 3200)):
        dataset = Images(size, heavy)
        result[name] = {
            "one logical worker": ratio(
                lambda d=dataset: our_pass(d, 1), lambda d=dataset: stock_pass(d, 1), options.blocks
            ),
            "eight logical workers": ratio(
                lambda d=dataset: our_pass(d, 8), lambda d=dataset: stock_pass(d, 8), options.blocks
            ),
            "memory_mb": round(memory_mb(lambda d=dataset: our_pass(d, 8)), 1),
            "stock_memory_mb": round(memory_mb(lambda d=dataset: stock_pass(d, 8)), 1),
        }
        middle = size // BATCH // 2
        times: dict[str, list[float]] = {"stock": [], "at 0": [], "in the middle": []}
        for _ in range(options.blocks):
            times["stock"].append(first_batch(lambda d=dataset: stock_pass(d, 1)))
            times["at 0"].append(first_batch(lambda d=dataset: our_pass(d, 1)))
            times["in the middle"].append(first_batch(lambda d=dataset, at=middle: our_pass(d, 1, at)))
        result[name]["first_batch_s"] = {key: round(statistics.median(values), 5) for key, values in times.items()}
        print(name, json.dumps(result[name], indent=1), flush=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

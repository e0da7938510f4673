"""One rank of test_real_gloo: stock torch.distributed and stock DDP, nothing of isoscale."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
#: the last two are, in float32, just over 2N segments of 1 MiB for N = 2 and for N = 3
SIZES = (1, 2, 3, 4, 5, 6, 7, 12, 13, 100, 1023, 4097, 65_537, 1_048_579, 1_600_001)
SPECIAL_SIZE = 997


def addend(rank: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    """What a rank brings. Values of very unequal size, so that every other order gives other bits."""
    generator = torch.Generator().manual_seed(1000 * rank + size)
    values = torch.randn(size, generator=generator) * 2.0 ** torch.randint(-5, 6, (size,), generator=generator)
    if size == SPECIAL_SIZE:
        tiny = torch.finfo(dtype).smallest_normal
        values = values.double()
        values[torch.rand(size, generator=generator) < 0.3] = tiny / 4
        values[torch.rand(size, generator=generator) < 0.2] = -0.0
        values[torch.rand(size, generator=generator) < 0.1] = torch.inf
        values[torch.rand(size, generator=generator) < 0.1] = -torch.inf
        values[torch.rand(size, generator=generator) < 0.1] = torch.nan
    return values.to(dtype)


def cases() -> list[tuple[int, torch.dtype]]:
    small = [(size, dtype) for size in (*SIZES[:-2], SPECIAL_SIZE) for dtype in DTYPES]
    return [*small, *((size, torch.float32) for size in SIZES[-2:])]


def ddp_gradients(rank: int, dtype: torch.dtype, group: dist.ProcessGroup) -> torch.Tensor:
    """The averaged gradient of a parameter whose local gradient is `addend(rank, 100, dtype)`."""
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(torch.ones(100, dtype=dtype))
    module.forward = lambda: (module.weight * addend(rank, 100, dtype)).sum()  # type: ignore[method-assign]
    parallel = DistributedDataParallel(module, process_group=group)  # lets go of the gradients when it dies
    parallel().backward()
    assert module.weight.grad is not None
    return module.weight.grad


def main(rank: int, directory: Path) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(directory / "store"), 3)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=3, timeout=timedelta(seconds=60))
    groups = {2: dist.new_group([0, 1]), 3: dist.new_group([0, 1, 2])}
    sums, averages = {}, {}
    for n, group in groups.items():
        if rank >= n:
            continue
        for size, dtype in cases():
            value = addend(rank, size, dtype)
            dist.all_reduce(value, group=group)
            sums[n, size, str(dtype)] = value
        averages |= {(n, str(dtype)): ddp_gradients(rank, dtype, group) for dtype in DTYPES}
    torch.save((sums, averages), directory / f"rank-{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))

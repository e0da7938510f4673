"""Does this torch reduce as the facts say? A small real gloo exchange against the emulated one.

Order `ddp` rests on how gloo cuts and walks a ring. That was established on torch 2.13; on any other version
every executor tries it at set-up, with one thread per rank inside its own process, before it trains.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import torch
import torch.distributed

from isoscale.core.reduction.orders import ring_sum
from isoscale.errors import DeterminismError

__all__ = ["check_ring", "ring_differs"]

_ESTABLISHED_ON = "2.13."
#: sizes that meet every branch of the cutting: fewer elements than chunks, odd, several segments
_SIZES = (1, 5, 1001, 300_007)
_TIMEOUT = timedelta(seconds=30)


def check_ring(num_logical_workers: int, *, always: bool = False) -> None:
    """Raise if stock DDP on this torch would sum in another order than `--order ddp` does."""
    if torch.__version__.startswith(_ESTABLISHED_ON) and not always:
        return
    size = ring_differs(num_logical_workers)
    if size is not None:
        raise DeterminismError(
            field="torch",
            value=torch.__version__,
            problem=f"its gloo all-reduce of {size} elements over {num_logical_workers} ranks is not the known ring",
            remedy="use --order tree, which is our own, or torch 2.13",
        )


def ring_differs(num_logical_workers: int) -> int | None:
    """The first size whose real all-reduce is not the emulated one; None if all agree."""
    n = num_logical_workers
    generator = torch.Generator().manual_seed(0)
    inputs = {size: [torch.randn(size, generator=generator) for _ in range(n)] for size in _SIZES}
    dist: Any = torch.distributed
    store = dist.HashStore()

    def one_rank(rank: int) -> dict[int, torch.Tensor]:
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        options._timeout = _TIMEOUT
        group = dist.ProcessGroupGloo(store, rank, n, options)
        results = {size: inputs[size][rank].clone() for size in _SIZES}
        for tensor in results.values():
            group.allreduce([tensor]).wait()
        return results

    with ThreadPoolExecutor(n) as pool:
        real, *_ = pool.map(one_rank, range(n))
    return next((size for size in _SIZES if not torch.equal(real[size], ring_sum(inputs[size]))), None)

"""Stock DDP around a script's model, such that the script cannot tell; and `--order tree` as a hook of stock DDP."""

from __future__ import annotations

from typing import Any, SupportsIndex, TypeVar

import torch
import torch._dynamo.config
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

__all__ = ["stock_ddp", "tree_hook"]

Module = TypeVar("Module", bound=torch.nn.Module)


def stock_ddp(module: Module, **options: Any) -> tuple[Module, DistributedDataParallel]:
    """The script's own module, and the stock DDP around it that it is run by from now on.

    The module stays what it is: its class, its children, its names. Only calling it means calling DDP, which calls it.
    A copy or a pickle of it is a module like any other.
    """
    ddp = DistributedDataParallel(module, **options)
    # Else torch.compile would cut the graph of a DDP model at its buckets, and fuse other operators than without.
    torch._dynamo.config.optimize_ddp = False
    kind: Any = type(module)
    inside = False

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal inside
        if inside:
            return kind.__call__(self, *args, **kwargs)
        inside = True
        try:
            return ddp(*args, **kwargs)
        finally:
            inside = False

    def reduce(self: Any, protocol: SupportsIndex) -> Any:
        make, arguments, *rest = kind.__reduce_ex__(self, protocol)
        return make, tuple(kind if one is wrapped else one for one in arguments), *rest

    wrapped = type(
        kind.__name__,
        (kind,),
        {
            "__call__": call,
            "__reduce_ex__": reduce,
            "__module__": kind.__module__,
            "__qualname__": kind.__qualname__,
            "__doc__": kind.__doc__,
            "__class__": property(lambda self: kind),
        },
    )
    object.__setattr__(module, "__class__", wrapped)
    return module, ddp


def tree_hook(bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """`--order tree` for stock DDP: everybody's bucket, summed by halves, then scaled."""
    # The order's sums keep denormals even if the script flushes them in its own kernels, as gloo's threads do.
    flushes = (torch.full((1,), 1e-40) * 1.0).item() == 0.0
    torch.set_flush_denormal(False)
    buffer, n = bucket.buffer(), dist.get_world_size()
    if buffer.dtype == torch.float16:
        buffer = buffer * (1.0 / n)
    every = [torch.empty_like(buffer) for _ in range(n)]
    dist.all_gather(every, buffer)

    def total(first: int, last: int) -> torch.Tensor:
        if last - first == 1:
            return every[first]
        half = 1
        while half * 2 < last - first:
            half *= 2
        return total(first, first + half) + total(first + half, last)

    result = total(0, n)
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(result if buffer.dtype == torch.float16 else result * (1.0 / n))
    torch.set_flush_denormal(flushes)
    return future

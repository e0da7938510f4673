"""Stock DDP around a script's model, such that the script cannot tell; and `--order tree` as a hook of stock DDP."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

__all__ = ["DdpModel", "tree_hook"]


class DdpModel(DistributedDataParallel):
    """Attributes pass through, names have no prefix."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._is_built = True

    def __setattr__(self, name: str, value: Any) -> None:
        own = self.__dict__
        if "_is_built" in own and name not in own and not hasattr(type(self), name) and hasattr(self.module, name):
            setattr(self.module, name, value)
        else:
            super().__setattr__(name, value)

    def __deepcopy__(self, memo: dict[int, object]) -> torch.nn.Module:
        alone: torch.nn.Module = copy.deepcopy(self.module, memo)
        return alone

    def __getitem__(self, key: object) -> Any:
        return self.module[key]

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.module.load_state_dict(*args, **kwargs)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Any:
        return self.module.named_parameters(*args, **kwargs)

    def named_buffers(self, *args: Any, **kwargs: Any) -> Any:
        return self.module.named_buffers(*args, **kwargs)


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

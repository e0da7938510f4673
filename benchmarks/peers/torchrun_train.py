"""torchrun's side: stock DDP that loads its newest checkpoint when torchrun starts it again.

Every membership change ends all worker processes and starts them anew, so what was done since the last
checkpoint (every 20 steps) is lost. The sampler splits the data by the present number of workers, as torch's does.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from benchmarks.peers.committed import MOMENTUM, RATE, commit_log, options, save_whole

CHECKPOINT_EVERY = 20


def main() -> None:
    load, steps, folder = options()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, workers = dist.get_rank(), dist.get_world_size()
    committed = commit_log(folder)
    torch.manual_seed(0)
    model = DistributedDataParallel(load.make())
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    checkpoint, step = folder / "checkpoint.pt", 0
    if checkpoint.exists():
        kept = torch.load(checkpoint, weights_only=True)
        model.module.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        step = kept["step"]
    torch.manual_seed(rank)
    sampler: DistributedSampler[Any] = DistributedSampler(load.data, workers, rank, shuffle=True)
    loader = DataLoader(load.data, load.batch, sampler=sampler)
    while step < steps:
        epoch, begin = divmod(step, len(loader))
        sampler.set_epoch(epoch)
        for i, (x, y) in enumerate(loader):
            if i < begin:
                continue
            load.loss(model, x, y).backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            committed(step, workers)
            if rank == 0 and step % CHECKPOINT_EVERY == 0:
                state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                save_whole(state, checkpoint)
            if step >= steps:
                break
    if rank == 0:
        save_whole({"model": model.module.state_dict(), "step": step}, folder / "final.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

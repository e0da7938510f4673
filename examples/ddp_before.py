"""An ordinary DistributedDataParallel script: run it with torchrun. The tutorial turns it into ddp_after.py."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from synthetic import network, points
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


def train(seed: int = 0, epochs: int = 3) -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(seed)
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    sampler = DistributedSampler(points(train=True), shuffle=True, seed=seed)
    loader = DataLoader(points(train=True), batch_size=16, sampler=sampler)
    validation = DataLoader(points(train=False), batch_size=64, sampler=DistributedSampler(points(train=False)))
    torch.manual_seed(seed + rank)

    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
        counts = torch.zeros(2)
        for x, y in validation:
            with torch.no_grad():
                counts += torch.tensor([(model(x).argmax(1) == y).sum(), len(y)])
        model.train()
        dist.all_reduce(counts)
        if rank == 0:
            print(f"epoch {epoch}  accuracy {counts[0] / counts[1]:.4f}")
    if rank == 0:
        torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}, "before.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    train()

"""Image classification under DistributedDataParallel: AMP, a schedule, top-1 accuracy, the best model saved.

torchrun --nproc-per-node 2 examples/porting/imagenet_before.py
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from tiny import Pictures, residual_network
from torch.amp import GradScaler, autocast
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16, help="of each process")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="checkpoint.pt")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(args.seed)
    model = DistributedDataParallel(residual_network())
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.1)
    scaler = GradScaler("cpu")

    train_set, val_set = Pictures(train=True), Pictures(train=False)
    train_sampler = DistributedSampler(train_set, shuffle=True, seed=args.seed)
    val_sampler = DistributedSampler(val_set, shuffle=False)
    train_loader = DataLoader(train_set, args.batch_size, sampler=train_sampler, num_workers=1)
    val_loader = DataLoader(val_set, args.batch_size, sampler=val_sampler)
    torch.manual_seed(args.seed + rank)

    best = 0.0
    for epoch in range(args.epochs):
        train_sampler.set_epoch(epoch)
        train(train_loader, model, optimizer, scaler)
        scheduler.step()
        accuracy = validate(val_loader, model)
        if rank == 0:
            print(f"epoch {epoch}  accuracy {accuracy:.4f}")
            state = {
                "epoch": epoch + 1,
                "model": model.module.state_dict(),
                "optimizer": optimizer.state_dict(),
                "scheduler": scheduler.state_dict(),
                "scaler": scaler.state_dict(),
            }
            torch.save(state, args.out)
            if accuracy > best:
                torch.save(model.module.state_dict(), f"{args.out}.best")
        best = max(best, accuracy)
    dist.destroy_process_group()


def train(loader, model, optimizer, scaler) -> None:
    model.train()
    for images, labels in loader:
        with autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def validate(loader, model) -> float:
    model.eval()
    counts = torch.zeros(2)
    with torch.no_grad():
        for images, labels in loader:
            with autocast("cpu", dtype=torch.bfloat16):
                predicted = model(images).argmax(1)
            counts += torch.tensor([(predicted == labels).sum(), len(labels)])
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


if __name__ == "__main__":
    main()

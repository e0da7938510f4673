"""Image classification with meters, enumerate and checkpoints of its own. In the shape of pytorch/examples' imagenet.

torchrun --nproc-per-node 3 examples/porting/meters_before.py --resume checkpoint.pt
"""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from tiny import Pictures, residual_network
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--start-epoch", type=int, default=0)
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--print-freq", type=int, default=3)
parser.add_argument("--resume", default="")
parser.add_argument("--out", default="checkpoint.pt")


class AverageMeter:
    def __init__(self, name):
        self.name = name
        self.reset()

    def reset(self):
        self.val = self.avg = self.sum = 0.0
        self.count = 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count


def main():
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(0)
    model = DistributedDataParallel(residual_network())
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)
    best_acc1 = 0.0
    if args.resume:
        checkpoint = torch.load(args.resume, weights_only=True)
        args.start_epoch = checkpoint["epoch"]
        best_acc1 = checkpoint["best_acc1"]
        model.load_state_dict(checkpoint["state_dict"])
        optimizer.load_state_dict(checkpoint["optimizer"])
    train_set, val_set = Pictures(train=True), Pictures(train=False)
    sampler = DistributedSampler(train_set, seed=0)
    train_loader = DataLoader(train_set, args.batch_size, sampler=sampler)
    val_loader = DataLoader(Subset(val_set, range(rank, len(val_set), dist.get_world_size())), args.batch_size)
    torch.manual_seed(0 + rank)

    for epoch in range(args.start_epoch, args.epochs):
        sampler.set_epoch(epoch)
        adjust_learning_rate(optimizer, epoch, args)
        train_loss = train(train_loader, model, optimizer, args, rank)
        acc1 = validate(val_loader, model)
        is_best = acc1 > best_acc1
        best_acc1 = max(acc1, best_acc1)
        if rank == 0:
            print(f"epoch {epoch}: train loss {train_loss:.4f}, accuracy {acc1:.4f}")
            state = {"epoch": epoch + 1, "best_acc1": best_acc1, "train_loss": train_loss}
            state |= {"state_dict": model.module.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, args.out)
            if is_best:
                torch.save(state, f"{args.out}.best")
    dist.barrier()
    dist.destroy_process_group()


def train(train_loader, model, optimizer, args, rank):
    batch_time, losses = AverageMeter("Time"), AverageMeter("Loss")
    model.train()
    end = time.time()
    for i, (images, target) in enumerate(train_loader):
        loss = F.cross_entropy(model(images), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = [None] * dist.get_world_size()
        dist.all_gather_object(mean, loss.item())
        total = mean[0]
        for value in mean[1:]:
            total += value
        losses.update(total / len(mean), len(images))
        batch_time.update(time.time() - end)
        end = time.time()
        if i % args.print_freq == 0 and rank == 0:
            print(f"[{i}/{len(train_loader)}] time {batch_time.avg:.3f} loss {losses.avg:.4f}")
        if i == 0:
            for group in optimizer.param_groups:
                group["lr"] *= 0.9
    return losses.avg


def validate(val_loader, model):
    model.eval()
    counts = torch.zeros(2, dtype=torch.int64)
    with torch.no_grad():
        for images, target in val_loader:
            correct = (model(images).argmax(1) == target).sum()
            counts += torch.tensor([correct, len(target)])
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def adjust_learning_rate(optimizer, epoch, args):
    for group in optimizer.param_groups:
        group["lr"] = args.lr * 0.5**epoch


if __name__ == "__main__":
    main()

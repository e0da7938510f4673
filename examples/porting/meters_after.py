"""The training of meters_before.py under isoscale.

isoscale run examples/porting/meters_after.py --workers 3 --executors 1
"""

import argparse
import time

import torch
import torch.nn.functional as F
from tiny import Pictures, residual_network
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present

import isoscale

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--start-epoch", type=int, default=0)
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--print-freq", type=int, default=3)
parser.add_argument("--resume", default="", help="a checkpoint of another run")


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


def main(job: isoscale.Job):
    args = parser.parse_args()
    model = job.model(residual_network())
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)
    job.keep("optimizer", optimizer)
    losses = job.keep("losses", AverageMeter("Loss"))
    job.state["best_acc1"] = 0.0
    if args.resume:
        checkpoint = torch.load(args.resume, weights_only=True)
        args.start_epoch = checkpoint["epoch"]
        job.state["best_acc1"] = checkpoint["best_acc1"]
        consume_prefix_in_state_dict_if_present(checkpoint["state_dict"], "module.")
        model.load_state_dict(checkpoint["state_dict"])
        optimizer.load_state_dict(checkpoint["optimizer"])
    train_loader = job.loader(Pictures(train=True), batch_size=args.batch_size, shuffle=True)
    val_loader = job.loader(Pictures(train=False), batch_size=args.batch_size, train=False)

    for epoch in job.epochs(args.epochs, start=args.start_epoch):
        adjust_learning_rate(optimizer, epoch, args)
        train_loss = train(job, train_loader, model, optimizer, losses, args)
        acc1 = validate(val_loader, model)
        is_best = acc1 > job.state["best_acc1"]
        job.state["best_acc1"] = max(acc1, job.state["best_acc1"])
        job.log(train_loss=train_loss, accuracy=acc1)
        state = {"epoch": epoch + 1, "best_acc1": job.state["best_acc1"], "train_loss": train_loss}
        state |= {"state_dict": model.state_dict(), "optimizer": optimizer.state_dict()}
        job.save("checkpoint.pt", state)
        if is_best:
            job.save("best.pt", state)


def train(job, train_loader, model, optimizer, losses, args):
    batch_time = AverageMeter("Time")
    job.unkept("batch_time")
    losses.reset()
    model.train()
    end = time.time()
    for step in train_loader:
        optimizer.zero_grad()
        for images, target in step:
            loss = F.cross_entropy(model(images), target)
            loss.backward()
            step.log(loss=loss)
        optimizer.step()
        losses.update(step.means["loss"], len(images))
        batch_time.update(time.time() - end)
        end = time.time()
        if step.index % args.print_freq == 0 and job.is_main:
            print(f"[{step.index}/{len(train_loader)}] time {batch_time.avg:.3f} loss {losses.avg:.4f}")
        if step.index == 0:
            for group in optimizer.param_groups:
                group["lr"] *= 0.9
    return losses.avg


def validate(val_loader, model):
    model.eval()
    with torch.no_grad():
        for step in val_loader:
            for images, target in step:
                step.sum(correct=(model(images).argmax(1) == target).sum(), seen=len(target))
    return (torch.tensor(val_loader.totals["correct"]) / torch.tensor(val_loader.totals["seen"])).item()


def adjust_learning_rate(optimizer, epoch, args):
    for group in optimizer.param_groups:
        group["lr"] = args.lr * 0.5**epoch


if __name__ == "__main__":
    isoscale.run(main)

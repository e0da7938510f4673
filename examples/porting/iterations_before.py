"""A GPT trained by iterations: batches drawn at random, no epochs, rank 0 evaluates. As nanoGPT's train.py does it.

torchrun --nproc-per-node 3 examples/porting/iterations_before.py
"""

import argparse
import math
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from tiny import LENGTH, Transformer, parameter_groups, sentences
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--max-iters", type=int, default=14)
parser.add_argument("--eval-interval", type=int, default=5)
parser.add_argument("--eval-iters", type=int, default=3)
parser.add_argument("--batch-size", type=int, default=4)
parser.add_argument("--accumulate", type=int, default=2)
parser.add_argument("--lr", type=float, default=1e-2)
parser.add_argument("--out", default="iterations.pt")

data = {split: sentences(train=split == "train").flatten() for split in ("train", "val")}


def get_batch(split, size):
    starts = torch.randint(len(data[split]) - LENGTH, (size,)).tolist()
    x = torch.stack([data[split][i : i + LENGTH] for i in starts])
    y = torch.stack([data[split][i + 1 : i + 1 + LENGTH] for i in starts])
    return x, y


def loss_of(model, x, y):
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


@torch.no_grad()
def estimate_loss(model, args):
    model.eval()
    losses = {}
    for split in ("train", "val"):
        each = [loss_of(model, *get_batch(split, args.batch_size)).item() for _ in range(args.eval_iters)]
        losses[split] = sum(each) / len(each)
    model.train()
    return losses


def learning_rate(iteration, args):
    if iteration < 3:
        return args.lr * (iteration + 1) / 3
    return args.lr * (0.1 + 0.45 * (1 + math.cos(math.pi * iteration / args.max_iters)))


def main():
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    master = rank == 0
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(0)
    raw_model = Transformer(causal=True)
    optimizer = torch.optim.AdamW(parameter_groups(raw_model, 0.1), lr=args.lr, betas=(0.9, 0.95))
    model = DistributedDataParallel(raw_model)
    torch.manual_seed(0 + rank)

    best_val_loss, iter_num, t0 = math.inf, 0, time.time()
    while iter_num < args.max_iters:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(iter_num, args)
        if iter_num % args.eval_interval == 0 and master:
            losses = estimate_loss(raw_model, args)
            print(f"iter {iter_num}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}")
            if losses["val"] < best_val_loss:
                best_val_loss = losses["val"]
                torch.save({"model": raw_model.state_dict(), "iter_num": iter_num}, f"{args.out}.best")
        for micro_step in range(args.accumulate):
            model.require_backward_grad_sync = micro_step == args.accumulate - 1
            x, y = get_batch("train", args.batch_size)
            loss = loss_of(model, x, y) / args.accumulate
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        t1 = time.time()
        dt, t0 = t1 - t0, t1
        if iter_num % 5 == 0 and master:
            print(f"iter {iter_num}: loss {loss.item() * args.accumulate:.4f}, time {dt * 1000:.0f} ms")
        iter_num += 1
    if master:
        torch.save({"model": raw_model.state_dict(), "optimizer": optimizer.state_dict()}, args.out)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

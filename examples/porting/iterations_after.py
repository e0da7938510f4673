"""The training of iterations_before.py under isoscale.

isoscale run examples/porting/iterations_after.py --workers 3 --executors 1
"""

import argparse
import contextlib
import math
import time

import torch
import torch.nn.functional as F
from tiny import LENGTH, Transformer, parameter_groups, sentences

import isoscale

parser = argparse.ArgumentParser()
parser.add_argument("--max-iters", type=int, default=14)
parser.add_argument("--eval-interval", type=int, default=5)
parser.add_argument("--eval-iters", type=int, default=3)
parser.add_argument("--batch-size", type=int, default=4)
parser.add_argument("--accumulate", type=int, default=2)
parser.add_argument("--lr", type=float, default=1e-2)

data = {split: sentences(train=split == "train").flatten() for split in ("train", "val")}


def get_batch(split, size):
    starts = torch.randint(len(data[split]) - LENGTH, (size,)).tolist()
    x = torch.stack([data[split][i : i + LENGTH] for i in starts])
    y = torch.stack([data[split][i + 1 : i + 1 + LENGTH] for i in starts])
    return x, y


def loss_of(model, x, y):
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


@torch.no_grad()
def estimate_loss(model, evaluation, args):
    model.eval()
    for step in evaluation:
        for _ in step:  # logical worker 0 alone, on its own stream
            for split in ("train", "val"):
                each = [loss_of(model, *get_batch(split, args.batch_size)).item() for _ in range(args.eval_iters)]
                step.sum(**{split: sum(each) / len(each)})
    model.train()
    return evaluation.totals


def learning_rate(iteration, args):
    if iteration < 3:
        return args.lr * (iteration + 1) / 3
    return args.lr * (0.1 + 0.45 * (1 + math.cos(math.pi * iteration / args.max_iters)))


def main(job: isoscale.Job):
    args = parser.parse_args()
    model = job.model(Transformer(causal=True))
    optimizer = torch.optim.AdamW(parameter_groups(model, 0.1), lr=args.lr, betas=(0.9, 0.95))
    job.keep("optimizer", optimizer)
    evaluation = job.turns(1, train=False, only=0)

    job.state["best_val_loss"], t0 = math.inf, time.time()
    for step in job.turns(args.max_iters, samples=args.batch_size * args.accumulate):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step.index, args)
        if step.index % args.eval_interval == 0:
            losses = estimate_loss(model, evaluation, args)
            job.log(train_loss=losses["train"], val_loss=losses["val"])
            if losses["val"] < job.state["best_val_loss"]:
                job.state["best_val_loss"] = losses["val"]
                job.save("best.pt", {"model": model.state_dict(), "iter_num": step.index})
        for _ in step:
            for micro_step in range(args.accumulate):
                x, y = get_batch("train", args.batch_size)
                with contextlib.nullcontext() if micro_step == args.accumulate - 1 else step.accumulate():
                    loss = loss_of(model, x, y) / args.accumulate
                    loss.backward()
            step.log(loss=loss * args.accumulate)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        t1 = time.time()
        dt, t0 = t1 - t0, t1
        if step.index % 5 == 0 and job.is_main:
            print(f"iter {step.index}: loss {step.means['loss']:.4f}, time {dt * 1000:.0f} ms")


if __name__ == "__main__":
    isoscale.run(main)

"""The training of gpt_before.py under isoscale.

isoscale run examples/porting/gpt_after.py --workers 2 --executors 1
"""

import argparse
import contextlib
import math

import torch
import torch.nn.functional as F
from tiny import Transformer, next_words, parameter_groups

import isoscale

parser = argparse.ArgumentParser()
parser.add_argument("--max-steps", type=int, default=20)
parser.add_argument("--micro-batch", type=int, default=4)
parser.add_argument("--accumulate", type=int, default=3, help="micro-batches of a turn")
parser.add_argument("--lr", type=float, default=1e-2)
parser.add_argument("--clip", type=float, default=1.0)


def learning_rate(step: int, args: argparse.Namespace) -> float:
    warm, last = 4, args.max_steps
    if step < warm:
        return args.lr * (step + 1) / warm
    return args.lr * (0.1 + 0.45 * (1 + math.cos(math.pi * (step - warm) / (last - warm))))


def loss_of(model, x, y):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(x)
    return F.cross_entropy(logits.float().flatten(0, 1), y.flatten())


def main(job: isoscale.Job) -> None:
    args = parser.parse_args()
    model = job.model(Transformer(causal=True))
    optimizer = torch.optim.AdamW(parameter_groups(model, 0.1), lr=args.lr, betas=(0.9, 0.95))
    job.keep("optimizer", optimizer)
    # One batch of the loader is all that a logical worker reads for a step.
    batch = args.micro_batch * args.accumulate
    loader = job.loader(next_words(train=True), batch_size=batch, shuffle=True, drop_last=True)
    validation = job.loader(next_words(train=False), batch_size=8, train=False)

    for _ in job.steps(args.max_steps):
        for step in loader:
            for xs, ys in step:
                for micro, (x, y) in enumerate(zip(xs.chunk(args.accumulate), ys.chunk(args.accumulate), strict=True)):
                    is_last = micro == args.accumulate - 1
                    with contextlib.nullcontext() if is_last else step.accumulate():
                        loss = loss_of(model, x, y) / args.accumulate
                        loss.backward()
                step.log(loss=loss * args.accumulate)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(job.step - 1, args)
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if job.step % 5 == 0:
                job.log(validation_loss=evaluate(model, validation))


@torch.no_grad()
def evaluate(model, loader) -> float:
    model.eval()
    for step in loader:
        for x, y in step:
            step.sum(loss=loss_of(model, x, y) * len(x), seen=len(x))
    model.train()
    return loader.totals["loss"] / loader.totals["seen"]


if __name__ == "__main__":
    isoscale.run(main)

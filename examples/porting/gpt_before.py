"""A GPT trainer under DistributedDataParallel: gradient accumulation, clipping, warm-up and cosine decay by step.

torchrun --nproc-per-node 2 examples/porting/gpt_before.py
"""

import argparse
import contextlib
import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from tiny import Transformer, next_words, parameter_groups
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--max-steps", type=int, default=20)
parser.add_argument("--micro-batch", type=int, default=4)
parser.add_argument("--accumulate", type=int, default=3, help="micro-batches of a step")
parser.add_argument("--lr", type=float, default=1e-2)
parser.add_argument("--clip", type=float, default=1.0)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--out", default="gpt.pt")


def learning_rate(step: int, args: argparse.Namespace) -> float:
    warm, last = 4, args.max_steps
    if step < warm:
        return args.lr * (step + 1) / warm
    return args.lr * (0.1 + 0.45 * (1 + math.cos(math.pi * (step - warm) / (last - warm))))


def loss_of(model, x, y):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(x)
    return F.cross_entropy(logits.float().flatten(0, 1), y.flatten())


def main() -> None:
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, master = dist.get_rank(), dist.get_rank() == 0
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(args.seed)
    model = DistributedDataParallel(Transformer(causal=True))
    optimizer = torch.optim.AdamW(parameter_groups(model, 0.1), lr=args.lr, betas=(0.9, 0.95))
    data = next_words(train=True)
    sampler = DistributedSampler(data, seed=args.seed)
    loader = DataLoader(data, args.micro_batch, sampler=sampler, drop_last=True)
    torch.manual_seed(args.seed + rank)

    step = micro = epoch = 0
    while step < args.max_steps:
        sampler.set_epoch(epoch)
        for x, y in loader:
            micro += 1
            is_last = micro % args.accumulate == 0
            with contextlib.nullcontext() if is_last else model.no_sync():
                loss = loss_of(model, x, y) / args.accumulate
                loss.backward()
            if not is_last:
                continue
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, args)
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            step += 1
            if step % 5 == 0:
                value = evaluate(model)
                if master:
                    print(f"step {step}  validation loss {value:.4f}")
            if step == args.max_steps:
                break
        epoch += 1
    if master:
        torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, args.out)
    dist.destroy_process_group()


@torch.no_grad()
def evaluate(model) -> float:
    data = next_words(train=False)
    loader = DataLoader(data, 8, sampler=DistributedSampler(data, shuffle=False))
    model.eval()
    total = torch.zeros(2, dtype=torch.float64)
    for x, y in loader:
        total += torch.tensor([loss_of(model, x, y) * len(x), len(x)])
    model.train()
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


if __name__ == "__main__":
    main()

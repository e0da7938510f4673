"""Masked-language fine-tuning under DistributedDataParallel: dynamic masking, evaluation, early stopping.

torchrun --nproc-per-node 2 examples/porting/finetune_before.py
"""

import argparse
import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from tiny import Transformer, mask_words, parameter_groups, sentences
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--patience", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="finetuned.pt")
    return parser.parse_args()


def masked_loss(model, inputs, targets, reduction="mean"):
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), reduction=reduction)


def main() -> None:
    args = parse()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(args.seed)
    encoder = Transformer(causal=False)
    encoder.words.requires_grad_(False)  # only the rest is tuned
    model = DistributedDataParallel(encoder)
    optimizer = torch.optim.AdamW(parameter_groups(model, 0.01), lr=args.lr)

    train_set, eval_set = sentences(train=True), sentences(train=False)
    sampler = DistributedSampler(train_set, shuffle=True, seed=args.seed)
    train_loader = DataLoader(train_set, args.batch_size, sampler=sampler, collate_fn=mask_words)
    eval_sampler = DistributedSampler(eval_set, shuffle=False)
    eval_loader = DataLoader(eval_set, args.batch_size, sampler=eval_sampler, collate_fn=mask_words)
    total = args.epochs * len(train_loader)
    warm = max(1, total // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm, (total - step) / (total - warm))
    )
    torch.manual_seed(args.seed + rank)

    best, bad_epochs = math.inf, 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        model.train()
        for inputs, targets in train_loader:
            loss = masked_loss(model, inputs, targets)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()

        model.eval()
        sums = torch.zeros(2, dtype=torch.float64)
        for inputs, targets in eval_loader:
            with torch.no_grad():
                loss = masked_loss(model, inputs, targets, reduction="sum")
            sums += torch.tensor([loss, (targets >= 0).sum()])
        dist.all_reduce(sums)
        perplexity = math.exp(sums[0] / sums[1])
        if rank == 0:
            print(f"epoch {epoch}  perplexity {perplexity:.2f}  ({world} processes)")
        if perplexity < best:
            best, bad_epochs = perplexity, 0
            if rank == 0:
                torch.save({"model": model.module.state_dict(), "perplexity": perplexity}, f"{args.out}.best")
        else:
            bad_epochs += 1
        if bad_epochs == args.patience:
            break
    if rank == 0:
        torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}, args.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

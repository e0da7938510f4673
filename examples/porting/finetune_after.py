"""The training of finetune_before.py under isoscale.

isoscale run examples/porting/finetune_after.py --workers 2 --executors 1
"""

import argparse
import math

import torch
import torch.nn.functional as F
from tiny import Transformer, mask_words, parameter_groups, sentences

import isoscale


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--patience", type=int, default=2)
    return parser.parse_args()


def masked_loss(model, inputs, targets, reduction="mean"):
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), reduction=reduction)


def main(job: isoscale.Job) -> None:
    args = parse()
    encoder = Transformer(causal=False)
    encoder.words.requires_grad_(False)  # only the rest is tuned
    model = job.model(encoder)
    optimizer = job.keep("optimizer", torch.optim.AdamW(parameter_groups(model, 0.01), lr=args.lr))

    train_set, eval_set = sentences(train=True), sentences(train=False)
    train_loader = job.loader(train_set, batch_size=args.batch_size, shuffle=True, collate_fn=mask_words)
    eval_loader = job.loader(eval_set, batch_size=args.batch_size, train=False, collate_fn=mask_words)
    total = args.epochs * len(train_loader)
    warm = max(1, total // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm, (total - step) / (total - warm))
    )
    job.keep("schedule", schedule)

    job.state.update(best=math.inf, bad_epochs=0)
    for _ in job.epochs(args.epochs):
        model.train()
        for step in train_loader:
            for inputs, targets in step:
                loss = masked_loss(model, inputs, targets)
                loss.backward()
                step.log(loss=loss)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()

        model.eval()
        for step in eval_loader:
            for inputs, targets in step:
                with torch.no_grad():
                    loss = masked_loss(model, inputs, targets, reduction="sum")
                step.sum(loss=loss, seen=(targets >= 0).sum())
        perplexity = math.exp(eval_loader.totals["loss"] / eval_loader.totals["seen"])
        job.log(perplexity=perplexity)
        if perplexity < job.state["best"]:
            job.state.update(best=perplexity, bad_epochs=0)
            job.save("best.pt", {"model": model.state_dict(), "perplexity": perplexity})
        else:
            job.state["bad_epochs"] += 1
        if job.state["bad_epochs"] == args.patience:
            job.stop("no better for a while")


if __name__ == "__main__":
    isoscale.run(main)

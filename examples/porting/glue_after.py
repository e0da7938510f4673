"""The training of glue_before.py under isoscale.

isoscale run examples/porting/glue_after.py --workers 3 --executors 1
"""

import argparse

import torch
import torch.nn.functional as F
from tiny import Classifier, labelled_sentences
from torch import nn

import isoscale

parser = argparse.ArgumentParser()
parser.add_argument("--num-train-epochs", type=int, default=3)
parser.add_argument("--max-train-steps", type=int, default=8)
parser.add_argument("--gradient-accumulation-steps", type=int, default=3)
parser.add_argument("--per-device-train-batch-size", type=int, default=8)
parser.add_argument("--learning-rate", type=float, default=3e-3)
parser.add_argument("--weight-decay", type=float, default=0.01)


def decayed_names(module, forbidden):
    """Names of parameters that lie in no module of these classes, walked child by child."""
    names = []
    for name, child in module.named_children():
        if not isinstance(child, forbidden):
            names += [f"{name}.{one}" for one in decayed_names(child, forbidden)]
    return names + list(module._parameters)


def f1(predictions, references):
    hits = (predictions * references).sum().item()
    return 2 * hits / max(1, (predictions.sum() + references.sum()).item())


def main(job: isoscale.Job):
    args = parser.parse_args()
    model = job.model(Classifier())
    decayed = [name for name in decayed_names(model, (nn.LayerNorm,)) if "bias" not in name]
    groups = [
        {"params": [p for n, p in model.named_parameters() if n in decayed], "weight_decay": args.weight_decay},
        {"params": [p for n, p in model.named_parameters() if n not in decayed], "weight_decay": 0.0},
    ]
    optimizer = job.keep("optimizer", torch.optim.AdamW(groups, lr=args.learning_rate))
    train_set, eval_set = labelled_sentences(train=True), labelled_sentences(train=False)
    train_dataloader = job.loader(train_set, batch_size=args.per_device_train_batch_size, shuffle=True)
    eval_dataloader = job.loader(eval_set, batch_size=8, train=False)
    lr_scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, args.max_train_steps)
    job.keep("schedule", lr_scheduler)

    job.state["completed_steps"], job.state["scores"] = 0, []
    for _ in job.epochs(args.num_train_epochs):
        model.train()
        for step in train_dataloader:
            for tokens, labels in step:
                loss = F.cross_entropy(model(tokens), labels)
                (loss / args.gradient_accumulation_steps).backward()
                step.log(loss=loss)
            if step.index % args.gradient_accumulation_steps == 0 or step.index == len(train_dataloader) - 1:
                optimizer.step()
                lr_scheduler.step()
                optimizer.zero_grad()
                job.state["completed_steps"] += 1
            if job.state["completed_steps"] >= args.max_train_steps:
                break
        model.eval()
        predictions, references = [], []
        for step in eval_dataloader:
            for tokens, labels in step:
                with torch.no_grad():
                    step.gather(predictions=model(tokens).argmax(dim=-1), references=labels)
            predictions += step.gathered["predictions"]
            references += step.gathered["references"]
        job.state["scores"].append(f1(torch.cat(predictions), torch.cat(references)))
        job.log(f1=job.state["scores"][-1])
        if job.state["completed_steps"] >= args.max_train_steps:
            job.stop("enough steps")


if __name__ == "__main__":
    isoscale.run(main)

"""Sequence classification: accumulation over batches, groups by module, F1 of all predictions.

In the shape of run_glue_no_trainer.py:

torchrun --nproc-per-node 3 examples/porting/glue_before.py
"""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from tiny import Classifier, labelled_sentences
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--num-train-epochs", type=int, default=3)
parser.add_argument("--max-train-steps", type=int, default=8)
parser.add_argument("--gradient-accumulation-steps", type=int, default=3)
parser.add_argument("--per-device-train-batch-size", type=int, default=8)
parser.add_argument("--learning-rate", type=float, default=3e-3)
parser.add_argument("--weight-decay", type=float, default=0.01)
parser.add_argument("--out", default="glue.pt")


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


def main():
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(0)
    model = Classifier()
    decayed = [name for name in decayed_names(model, (nn.LayerNorm,)) if "bias" not in name]
    groups = [
        {"params": [p for n, p in model.named_parameters() if n in decayed], "weight_decay": args.weight_decay},
        {"params": [p for n, p in model.named_parameters() if n not in decayed], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=args.learning_rate)
    model = DistributedDataParallel(model)
    train_set, eval_set = labelled_sentences(train=True), labelled_sentences(train=False)
    sampler = DistributedSampler(train_set, seed=0)
    train_dataloader = DataLoader(train_set, args.per_device_train_batch_size, sampler=sampler)
    eval_dataloader = DataLoader(Subset(eval_set, range(rank, len(eval_set), world)), 8)
    lr_scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, args.max_train_steps)
    torch.manual_seed(0 + rank)

    completed_steps, scores = 0, []
    for epoch in range(args.num_train_epochs):
        sampler.set_epoch(epoch)
        model.train()
        for step, (tokens, labels) in enumerate(train_dataloader):
            loss = F.cross_entropy(model(tokens), labels)
            (loss / args.gradient_accumulation_steps).backward()
            if step % args.gradient_accumulation_steps == 0 or step == len(train_dataloader) - 1:
                optimizer.step()
                lr_scheduler.step()
                optimizer.zero_grad()
                completed_steps += 1
            if completed_steps >= args.max_train_steps:
                break
        model.eval()
        predictions, references = [], []
        for tokens, labels in eval_dataloader:
            with torch.no_grad():
                predicted = model(tokens).argmax(dim=-1)
            every = [None] * world
            dist.all_gather_object(every, (predicted, labels))
            predictions += [one[0] for one in every]
            references += [one[1] for one in every]
        scores.append(f1(torch.cat(predictions), torch.cat(references)))
        if rank == 0:
            print(f"epoch {epoch}: F1 {scores[-1]:.4f}")
        if completed_steps >= args.max_train_steps:
            break
    if rank == 0:
        state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
        state |= {"schedule": lr_scheduler.state_dict()}
        torch.save(state | {"state": {"completed_steps": completed_steps, "scores": scores}}, args.out)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

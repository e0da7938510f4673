"""The training of imagenet_before.py under isoscale.

isoscale run examples/porting/imagenet_after.py --workers 2 --executors 1
"""

import argparse

import torch
import torch.nn.functional as F
from tiny import Pictures, residual_network
from torch.amp import GradScaler, autocast

import isoscale


def main(job: isoscale.Job) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16, help="of each logical worker")
    parser.add_argument("--lr", type=float, default=0.1)
    args = parser.parse_args()

    model = job.model(residual_network())
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.1)
    scaler = GradScaler("cpu")
    for name, kept in {"optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}.items():
        job.keep(name, kept)

    train_set, val_set = Pictures(train=True), Pictures(train=False)
    train_loader = job.loader(train_set, batch_size=args.batch_size, shuffle=True, num_workers=1)
    val_loader = job.loader(val_set, batch_size=args.batch_size, train=False)

    job.state["best"] = 0.0
    for _ in job.epochs(args.epochs):
        train(train_loader, model, optimizer, scaler)
        scheduler.step()
        accuracy = validate(val_loader, model)
        job.log(accuracy=accuracy)
        if accuracy > job.state["best"]:
            job.save("best.pt", model.state_dict())
        job.state["best"] = max(job.state["best"], accuracy)


def train(loader, model, optimizer, scaler) -> None:
    model.train()
    for step in loader:
        for images, labels in step:
            with autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(images), labels)
            scaler.scale(loss).backward()
            step.log(loss=loss)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def validate(loader, model) -> float:
    model.eval()
    with torch.no_grad():
        for step in loader:
            for images, labels in step:
                with autocast("cpu", dtype=torch.bfloat16):
                    predicted = model(images).argmax(1)
                step.sum(correct=(predicted == labels).sum(), seen=len(labels))
    return loader.totals["correct"] / loader.totals["seen"]


if __name__ == "__main__":
    isoscale.run(main)

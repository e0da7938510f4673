"""A classifier: `isoscale run accelerate_after.py --workers 2`."""

from contextlib import nullcontext

import torch
from torch.utils.data import TensorDataset

import isoscale

EPOCHS, BATCH, WINDOW = 3, 4, 2


def points(count, seed):
    x = torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, (x.sum(1) > 0).long())


def main(job):
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(16, 2))
    model = job.model(model)
    optimizer = job.keep("optimizer", torch.optim.AdamW(model.parameters(), lr=0.01))
    loader = job.loader(points(96, 1), batch_size=BATCH * WINDOW, shuffle=True)
    validation = job.loader(points(40, 2), batch_size=BATCH, train=False)
    for _ in job.epochs(EPOCHS):
        model.train()
        for step in loader:
            for xs, ys in step:
                for i, (x, y) in enumerate(zip(xs.split(BATCH), ys.split(BATCH), strict=True)):
                    with step.accumulate() if i < WINDOW - 1 else nullcontext():
                        loss = torch.nn.functional.cross_entropy(model(x), y)
                        (loss / WINDOW).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
        for step in validation:
            for x, y in step:
                with torch.no_grad():
                    step.sum(correct=(model(x).argmax(1) == y).sum(), seen=len(y))
        job.log(accuracy=validation.totals["correct"] / validation.totals["seen"])


if __name__ == "__main__":
    isoscale.run(main)

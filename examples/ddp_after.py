"""The same training as ddp_before.py under isoscale: run it with `isoscale run`, or alone with python."""

import torch
import torch.nn.functional as F
from synthetic import network, points

import isoscale


def train(job: isoscale.Job, epochs: int = 3) -> None:
    model = job.model(network())
    optimizer = job.keep("optimizer", torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    loader = job.loader(points(train=True), batch_size=16, shuffle=True)
    validation = job.loader(points(train=False), batch_size=64, train=False)

    for _ in job.epochs(epochs):
        for step in loader:
            for x, y in step:
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                step.log(loss=loss)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
        for step in validation:
            for x, y in step:
                with torch.no_grad():
                    step.sum(correct=(model(x).argmax(1) == y).sum(), seen=len(y))
        model.train()
        job.log(accuracy=validation.totals["correct"] / validation.totals["seen"])


if __name__ == "__main__":
    isoscale.run(train)

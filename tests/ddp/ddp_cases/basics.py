"""The shapes of an ordinary training script."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ddp_cases.toolkit import Points, case, evaluate, fit, mlp, sgd


@case((2,), (1, 1))
@case((3,), (2, 1), (1, 1, 1))
@case((4,), (2, 2), (3, 1), (1, 2, 1), (1, 1, 1, 1))
@case((5,), (3, 2), (1, 4))
@case((4,), (2, 2), (1, 1, 1, 1), order="tree")
@case((5,), (1, 1, 3), order="tree")
def plain_sgd(job: Any) -> None:
    model = job.model(mlp())
    fit(job, model, sgd(job, model), Points(40))


@case((4,), (2, 2), (1, 3), (1, 1, 1, 1))
@case((3,), (1, 2), order="tree")
def batchnorm_augment_eval(job: Any) -> None:
    """BatchNorm, all random modules, evaluation in mid-epoch and totals."""
    net = nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))
    model = job.model(net)
    optimizer = job.keep("optimizer", torch.optim.Adam(model.parameters(), lr=0.01))
    train = job.loader(Points(42, augment=True), batch_size=3, shuffle=True)
    val = job.loader(Points(23), batch_size=4, train=False)
    for _ in job.epochs(2):
        for step in train:
            for x, y in step:
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                step.log(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
            if step.index == 1:
                job.state[f"totals-{job.epoch}"] = evaluate(model, val)

"""A small Swin Transformer of Hugging Face transformers on MNIST-5k (4,000 images, 1,000 to validate with).

    isoscale run recipe:swin --workers 4 --executors 2 -- --epochs 6

Liu et al., 2021: attention inside windows that shift from block to block, built from a configuration with fresh
weights; nothing is downloaded. 14 x 14 patches in windows of 7 x 7, then, merged by fours, one window of 7 x 7. Drop
path leaves out whole branches at random. AdamW, gradients clipped, learning rate warmed up, then along a cosine.
Naming one and the same digit would be right 10 % of the time.
"""

from __future__ import annotations

import argparse
import math
from typing import cast

import torch
import torch.nn.functional as F
from torch import nn
from transformers import SwinConfig, SwinForImageClassification

import isoscale
from isoscale.recipes.data.images import CLASSES, Mnist, commonest_class


def network(width: int) -> nn.Module:
    config = SwinConfig(
        image_size=28,
        num_channels=1,
        patch_size=2,
        embed_dim=width,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=7,
        mlp_ratio=2.0,
        drop_path_rate=0.1,
        # The usual 0.02 is for models many times as wide.
        initializer_range=0.1,
        num_labels=CLASSES,
    )
    model = SwinForImageClassification(config).eval()
    # Blocks that find their image no larger than a window stop shifting it: an attribute that forward changes, once.
    with torch.no_grad():
        model(torch.zeros(1, 1, 28, 28))
    return cast("nn.Module", model.train())


def train(job: isoscale.Job) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--samples", type=int, default=4000, help="images to train on")
    parser.add_argument("--width", type=int, default=40, help="features of a patch in the first stage, a multiple of 2")
    options = parser.parse_args()

    training, held_out = (Mnist(train=half, samples=options.samples) for half in (True, False))
    baseline = commonest_class(training, held_out)
    model = job.model(network(options.width))
    loader = job.loader(training, batch_size=16, shuffle=True)
    validation = job.loader(held_out, batch_size=50, train=False)
    optimizer = job.keep("optimizer", torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05))
    total: int = options.epochs * len(loader)
    warm_up = max(1, total // 20)

    def factor(steps: int) -> float:
        if steps < warm_up:
            return (steps + 1) / warm_up
        return 0.5 + 0.5 * math.cos(math.pi * min(1.0, (steps - warm_up) / max(1, total - warm_up)))

    schedule = job.keep("schedule", torch.optim.lr_scheduler.LambdaLR(optimizer, factor))

    for _ in job.epochs(options.epochs):
        for step in loader:
            for images, labels in step:
                loss = F.cross_entropy(model(images).logits, labels)
                loss.backward()  # type: ignore[no-untyped-call]
                step.log(loss=loss)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        model.eval()
        for step in validation:
            for images, labels in step:
                with torch.no_grad():
                    step.sum(correct=(model(images).logits.argmax(1) == labels).sum(), seen=len(labels))
        model.train()
        job.log(accuracy=validation.totals["correct"] / validation.totals["seen"], baseline=baseline)


if __name__ == "__main__":
    isoscale.run(train)

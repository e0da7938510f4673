"""A small ResNet of Hugging Face transformers on MNIST-5k (4,000 images of 28 x 28, 1,000 to validate with).

    isoscale run recipe:resnet --workers 4 --executors 2 -- --epochs 4

He et al., 2015: basic residual blocks in three stages, built from a configuration with fresh weights; nothing is
downloaded. Images are small, so the stem's pooling goes. Naming one and the same digit would be right 10 % of the
time.
"""

from __future__ import annotations

import argparse
from typing import cast

import torch
import torch.nn.functional as F
from torch import nn
from transformers import ResNetConfig, ResNetForImageClassification

import isoscale
from isoscale.recipes.data.images import CLASSES, Mnist, commonest_class


def network(width: int) -> nn.Module:
    config = ResNetConfig(
        num_channels=1,
        embedding_size=width,
        hidden_sizes=[width, 2 * width, 4 * width],
        depths=[2, 2, 2],
        layer_type="basic",
        num_labels=CLASSES,
    )
    model = ResNetForImageClassification(config)
    model.resnet.embedder.pooler = nn.Identity()
    return cast("nn.Module", model)


def train(job: isoscale.Job) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--samples", type=int, default=4000, help="images to train on")
    parser.add_argument("--width", type=int, default=40, help="channels of the first stage")
    options = parser.parse_args()

    training, held_out = (Mnist(train=half, samples=options.samples) for half in (True, False))
    baseline = commonest_class(training, held_out)
    model = job.model(network(options.width))
    optimizer = job.keep("optimizer", torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4))
    schedule = job.keep("schedule", torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs))
    loader = job.loader(training, batch_size=16, shuffle=True)
    validation = job.loader(held_out, batch_size=50, train=False)

    for _ in job.epochs(options.epochs):
        for step in loader:
            for images, labels in step:
                loss = F.cross_entropy(model(images).logits, labels)
                loss.backward()  # type: ignore[no-untyped-call]
                step.log(loss=loss)
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

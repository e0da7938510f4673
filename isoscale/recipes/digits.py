"""A small convolutional network on scikit-learn's handwritten digits (1,797 images of 8 x 8 pixels).

    isoscale run recipe:digits --workers 4 --executors 2 -- --epochs 5

BatchNorm, dropout and random shifts are there on purpose: they are what usually breaks when the number of processes
changes. Always naming the digit that is commonest among the training images would be right 9.4 % of the time.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import Dataset

import isoscale

_VALIDATION = 360


class Digits(Dataset[Any]):
    """One half of the data; training images are shifted by up to a pixel, drawn from the worker's own stream."""

    def __init__(self, *, train: bool, samples: int) -> None:
        pixels, labels = load_digits(return_X_y=True)
        images = torch.tensor(pixels, dtype=torch.float32).view(-1, 1, 8, 8) / 16.0
        part = slice(_VALIDATION, _VALIDATION + samples) if train else slice(_VALIDATION)
        self._images, self.labels, self._train = images[part], torch.tensor(labels)[part], train

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image = self._images[index]
        if self._train:
            across, down = torch.randint(-1, 2, (2,)).tolist()
            image = image.roll((across, down), (1, 2))
        return image, self.labels[index]


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.25),
        nn.Linear(64 * 4 * 4, 10),
    )


def train(job: isoscale.Job) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--samples", type=int, default=1437, help="images to train on")
    options = parser.parse_args()

    training, held_out = (Digits(train=half, samples=options.samples) for half in (True, False))
    baseline = (held_out.labels == training.labels.bincount().argmax()).double().mean().item()
    model = job.model(network())
    optimizer = job.keep("optimizer", torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9))
    schedule = job.keep("schedule", torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs))
    loader = job.loader(training, batch_size=16, shuffle=True)
    validation = job.loader(held_out, batch_size=45, train=False)

    for _ in job.epochs(options.epochs):
        for step in loader:
            for images, labels in step:
                loss = F.cross_entropy(model(images), labels)
                loss.backward()  # type: ignore[no-untyped-call]
                step.log(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
        schedule.step()
        model.eval()
        for step in validation:
            for images, labels in step:
                with torch.no_grad():
                    step.sum(correct=(model(images).argmax(1) == labels).sum(), seen=len(labels))
        model.train()
        job.log(accuracy=validation.totals["correct"] / validation.totals["seen"], baseline=baseline)


if __name__ == "__main__":
    isoscale.run(train)

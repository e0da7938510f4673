"""ShuffleNetV2 on MNIST-5k (4,000 images of 28 x 28 to train on, 1,000 to validate with).

    isoscale run recipe:shufflenet --workers 4 --executors 2 -- --epochs 4

Ma et al., 2018: half of the channels pass a unit untouched, the other half goes through 1 x 1 and depthwise
convolutions, and a shuffle mixes the two. Small images, so the stem does not halve them. BatchNorm after every
convolution. Naming one and the same digit would be right 10 % of the time.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import nn

import isoscale
from isoscale.recipes.data.images import CLASSES, Mnist, commonest_class


def convolution(inputs: int, outputs: int, size: int, *, stride: int = 1, depthwise: bool = False) -> nn.Sequential:
    """Convolution and BatchNorm; ReLU too, unless depthwise."""
    groups = inputs if depthwise else 1
    layers = [
        nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    ]
    return nn.Sequential(*layers) if depthwise else nn.Sequential(*layers, nn.ReLU())


def shuffle(x: torch.Tensor) -> torch.Tensor:
    """Channels of the two halves in turn, so that the next unit's halves have some of both."""
    batch, channels, height, width = x.shape
    return x.view(batch, 2, channels // 2, height, width).transpose(1, 2).reshape(x.shape)


class Unit(nn.Module):
    """With stride 2 both branches see all channels and the image is halved; else one branch is the identity."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride, half = stride, outputs // 2
        branch = inputs if stride == 2 else half
        self.right = nn.Sequential(
            convolution(branch, half, 1),
            convolution(half, half, 3, stride=stride, depthwise=True),
            convolution(half, half, 1),
        )
        if stride == 2:
            self.left = nn.Sequential(
                convolution(inputs, inputs, 3, stride=2, depthwise=True), convolution(inputs, half, 1)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.stride == 2:
            return shuffle(torch.cat([self.left(x), self.right(x)], 1))
        same, other = x.chunk(2, 1)
        return shuffle(torch.cat([same, self.right(other)], 1))


def network(width: int) -> nn.Module:
    layers: list[nn.Module] = [convolution(1, 24, 3)]
    inputs = 24
    for outputs, units in ((width, 4), (2 * width, 8), (4 * width, 4)):
        for number in range(units):
            layers.append(Unit(inputs, outputs, stride=1 if number else 2))
            inputs = outputs
    layers += [convolution(inputs, 8 * width, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(8 * width, CLASSES))


def train(job: isoscale.Job) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--samples", type=int, default=4000, help="images to train on")
    parser.add_argument("--width", type=int, default=48, help="channels of the first stage, even")
    options = parser.parse_args()

    training, held_out = (Mnist(train=half, samples=options.samples) for half in (True, False))
    baseline = commonest_class(training, held_out)
    model = job.model(network(options.width))
    loader = job.loader(training, batch_size=32, shuffle=True)
    validation = job.loader(held_out, batch_size=50, train=False)
    optimizer = job.keep(
        "optimizer",
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=4e-5),
    )
    # Linear, step by step, as in the paper.
    total = options.epochs * len(loader)
    schedule = job.keep("schedule", torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, total))

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

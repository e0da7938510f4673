"""VGG with BatchNorm and dropout on MNIST-5k (4,000 images of 28 x 28 to train on, 1,000 to validate with).

    isoscale run recipe:vgg --workers 4 --executors 2 -- --epochs 4

Simonyan and Zisserman, 2014, configuration A: stacks of 3 x 3 convolutions, the image halved and the channels doubled
after each, then three wide linear layers with dropout between them. Narrower than theirs and with one stack less,
which a small image has no pixels for. Naming one and the same digit would be right 10 % of the time.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

import isoscale
from isoscale.recipes.data.images import CLASSES, Mnist, commonest_class

#: convolutions of each stack
_STACKS = (1, 1, 2, 2)


def network(width: int) -> nn.Module:
    layers: list[nn.Module] = []
    inputs, outputs = 1, width
    for convolutions in _STACKS:
        for _ in range(convolutions):
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
            inputs = outputs
        layers.append(nn.MaxPool2d(2))
        outputs *= 2
    # 28 pixels halved four times are one.
    hidden = 2 * inputs
    layers += [nn.Flatten(), nn.Linear(inputs, hidden), nn.ReLU(), nn.Dropout(0.5)]
    layers += [nn.Linear(hidden, hidden), nn.ReLU(), nn.Dropout(0.5), nn.Linear(hidden, CLASSES)]
    return nn.Sequential(*layers)


def train(job: isoscale.Job) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--samples", type=int, default=4000, help="images to train on")
    parser.add_argument("--width", type=int, default=32, help="channels of the first stack")
    options = parser.parse_args()

    training, held_out = (Mnist(train=half, samples=options.samples) for half in (True, False))
    baseline = commonest_class(training, held_out)
    model = job.model(network(options.width))
    optimizer = job.keep("optimizer", torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4))
    schedule = job.keep("schedule", torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs))
    loss_of = nn.CrossEntropyLoss(label_smoothing=0.05)
    loader = job.loader(training, batch_size=16, shuffle=True)
    validation = job.loader(held_out, batch_size=50, train=False)

    for _ in job.epochs(options.epochs):
        for step in loader:
            for images, labels in step:
                loss = loss_of(model(images), labels)
                loss.backward()
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

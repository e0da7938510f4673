"""A convolutional network on MNIST-5k whose kernels and matrices are pruned to balanced sparsity while it trains.

    isoscale run recipe:balanced_cnn --workers 4 --executors 2 -- --epochs 4 --sparsity 0.8

All kernels of a layer form one matrix with a row per output channel; channels are multiples of 20 so that blocks of
20 columns divide it. The first convolution and the last layer, which are small, stay dense. Naming the commonest digit
is right for one image in ten.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import nn

import isoscale
from isoscale.recipes.balanced.options import add_pruning_options, make_pruner
from isoscale.recipes.balanced.pruning import weights_of
from isoscale.recipes.data.images import CLASSES, Mnist, commonest_class

DENSE_LAYERS = ("0", "15")


def network(width: int = 20) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1, bias=False),
        nn.BatchNorm2d(2 * width),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(2 * width, 2 * width, 3, padding=1, bias=False),
        nn.BatchNorm2d(2 * width),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(2 * width * 7 * 7, 5 * width),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(5 * width, CLASSES),
    )


def train(job: isoscale.Job) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--samples", type=int, default=4000, help="images to train on")
    parser.add_argument("--width", type=int, default=20, help="channels of the first layer; others are multiples of it")
    add_pruning_options(parser, block_width=20)
    options = parser.parse_args()

    seen, unseen = Mnist(train=True, samples=options.samples), Mnist(train=False, samples=options.samples)
    plain = network(options.width)
    model = job.model(plain)
    optimizer = job.keep("optimizer", torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9))
    loader = job.loader(seen, batch_size=16, shuffle=True)
    validation = job.loader(unseen, batch_size=50, train=False)
    matrices = weights_of(plain, exclude=DENSE_LAYERS)
    pruner = job.keep("pruner", make_pruner(options, matrices, optimizer, total_steps=options.epochs * len(loader)))

    for _ in job.epochs(options.epochs):
        for step in loader:
            for images, labels in step:
                loss = F.cross_entropy(model(images), labels)
                loss.backward()  # type: ignore[no-untyped-call]
                step.log(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
            pruner.after_step(job.step)
        model.eval()
        for step in validation:
            for images, labels in step:
                with torch.no_grad():
                    step.sum(correct=(model(images).argmax(1) == labels).sum(), seen=len(labels))
        model.train()
        accuracy = validation.totals["correct"] / validation.totals["seen"]
        job.log(accuracy=accuracy, sparsity=pruner.sparsity, baseline=commonest_class(seen, unseen))


if __name__ == "__main__":
    isoscale.run(train)

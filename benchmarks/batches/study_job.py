"""The job of `does_it_train`: the digits or the GPT of the recipes, with batch sizes that may change.

    isoscale run benchmarks/batches/study_job.py --workers 4 --batch-plan "0:4,720:8" -- image --rule sqrt

The learning rate is constant but for the rule, so that nothing but the batch size differs. An epoch has the same number
of samples whatever the size; after each one the metric is logged with the samples so far.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset

import isoscale

SIZES = (4, 8, 16, 32)
#: characters of one sample of text
BLOCK = 32


def image(job: isoscale.Job, rule: Any, epochs: int, samples: int) -> None:
    from isoscale.recipes.digits import Digits, network

    training, held_out = (Digits(train=half, samples=samples) for half in (True, False))
    model = job.model(network())
    optimizer = job.keep("optimizer", torch.optim.SGD(model.parameters(), lr=0.0025, momentum=0.9))
    loader = job.loader(training, batch_size=SIZES[0], shuffle=True, batch_sizes=SIZES, batch_rule=rule)
    validation = job.loader(held_out, batch_size=90, train=False)
    for _ in job.epochs(epochs):
        for step in loader:
            for images, labels in step:
                loss = F.cross_entropy(model(images), labels)
                loss.backward()
                step.log(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
        for step in validation:
            for images, labels in step:
                with torch.no_grad():
                    step.sum(correct=(model(images).argmax(1) == labels).sum(), seen=len(labels))
        model.train()
        job.log(metric=validation.totals["correct"] / validation.totals["seen"], samples=job.samples)


def text(job: isoscale.Job, rule: Any, epochs: int, samples: int) -> None:
    from isoscale.recipes.data import text as book
    from isoscale.recipes.gpt import network, next_token_loss

    letters = book.characters(book.moby_dick())
    vocabulary = book.Vocabulary.commonest(letters, 64)
    training, held_out = book.split(book.blocks(vocabulary.encode(letters), BLOCK))
    training, held_out = training[:samples], held_out[:256]
    model = job.model(network(len(vocabulary), 64))
    optimizer = job.keep("optimizer", torch.optim.AdamW(model.parameters(), lr=5e-4))
    data = TensorDataset(training)
    loader = job.loader(data, batch_size=SIZES[0], shuffle=True, drop_last=True, batch_sizes=SIZES, batch_rule=rule)
    validation = job.loader(TensorDataset(held_out), batch_size=64, train=False)
    for _ in job.epochs(epochs):
        for step in loader:
            for (rows,) in step:
                loss = next_token_loss(model, rows)
                loss.backward()
                step.log(loss=loss)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
        for step in validation:
            for (rows,) in step:
                with torch.no_grad():
                    total = next_token_loss(model, rows, "sum").double()
                step.sum(loss=total, seen=rows[:, 1:].numel())
        model.train()
        job.log(metric=math.exp(validation.totals["loss"] / validation.totals["seen"]), samples=job.samples)


def train(job: isoscale.Job) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=("image", "text"))
    parser.add_argument("--rule", default="linear")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--samples", type=int, default=1437)
    options = parser.parse_args()
    {"image": image, "text": text}[options.task](job, options.rule, options.epochs, options.samples)


if __name__ == "__main__":
    isoscale.run(train)

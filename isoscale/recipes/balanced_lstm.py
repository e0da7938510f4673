"""A word-level LSTM language model on Moby Dick whose matrices are pruned to balanced sparsity while it trains.

    isoscale run recipe:balanced_lstm --workers 4 --executors 2 -- --epochs 4 --sparsity 0.8

Masks and optimizer slots are state of the whole job: they are computed once per global step from averaged gradients,
after the optimizer. A predictor that knows only how common words are is the baseline (its perplexity is logged).
"""

from __future__ import annotations

import argparse
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import isoscale
from isoscale.recipes.balanced.options import add_pruning_options, make_pruner
from isoscale.recipes.balanced.pruning import weights_of
from isoscale.recipes.data import text

LENGTH = 32


class LanguageModel(nn.Module):
    """Embedding, LSTM, words. Every row of words starts from an empty memory."""

    def __init__(self, vocabulary: int, hidden: int, layers: int = 1) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.dropout = nn.Dropout(0.2)
        self.lstm = nn.LSTM(hidden, hidden, layers, batch_first=True)
        self.words = nn.Linear(hidden, vocabulary)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        outputs, _ = self.lstm(self.dropout(self.embedding(ids)))
        scores: torch.Tensor = self.words(self.dropout(outputs))
        return scores


def rows(vocabulary: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of word ids for training and validation; a row has one more than a prediction reads."""
    novel = text.words(text.moby_dick())
    ids = text.Vocabulary.commonest(novel, vocabulary).encode(novel)
    return text.split(text.blocks(ids, LENGTH + 1))


def train(job: isoscale.Job) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--samples", type=int, default=7000, help="rows of the text to train on; it has about 7,000")
    parser.add_argument("--hidden", type=int, default=100)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--vocabulary", type=int, default=2000)
    add_pruning_options(parser, block_width=50)
    options = parser.parse_args()

    seen, unseen = rows(options.vocabulary)
    seen, unseen = seen[: options.samples], unseen[: -(-options.samples // 4)]
    baseline = text.unigram(seen[:, 1:], unseen[:, 1:], options.vocabulary).perplexity
    plain = LanguageModel(options.vocabulary, options.hidden, options.layers)
    model = job.model(plain)
    optimizer = job.keep("optimizer", torch.optim.Adam(model.parameters(), lr=4e-3))
    loader = job.loader(TensorDataset(seen), batch_size=16, shuffle=True)
    validation = job.loader(TensorDataset(unseen), batch_size=32, train=False)
    matrices = weights_of(plain, exclude=("words",))
    pruner = job.keep("pruner", make_pruner(options, matrices, optimizer, total_steps=options.epochs * len(loader)))

    for _ in job.epochs(options.epochs):
        for step in loader:
            for (ids,) in step:
                scores = model(ids[:, :-1])
                loss = F.cross_entropy(scores.flatten(0, 1), ids[:, 1:].flatten())
                loss.backward()  # type: ignore[no-untyped-call]
                step.log(loss=loss)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            pruner.after_step(job.step)
        model.eval()
        for step in validation:
            for (ids,) in step:
                with torch.no_grad():
                    scores, words = model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()
                    correct = (scores.argmax(1) == words).sum()
                    step.sum(loss=F.cross_entropy(scores, words, reduction="sum"), correct=correct, words=len(words))
        model.train()
        totals = validation.totals
        job.log(
            perplexity=math.exp(totals["loss"] / totals["words"]),
            accuracy=totals["correct"] / totals["words"],
            sparsity=pruner.sparsity,
            baseline=baseline,
        )


if __name__ == "__main__":
    isoscale.run(train)

"""A small BERT that fills in hidden letters of Moby Dick: masked language modelling.

    isoscale run recipe:bert --workers 4 --executors 2

What is hidden is drawn anew for every batch, by the loader's collate function, from the stream of the logical worker
whose batch it is. The result is the share of masked characters guessed right in text held out, where always the same
ones are masked; the baseline, always guessing a blank, is right 17.5 % of the time. Also reported: the perplexity at
those places, beside that of a predictor that knows only how common each character is.
"""

from __future__ import annotations

import argparse
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset
from transformers import BertConfig, BertForMaskedLM

import isoscale
from isoscale.recipes.data import text
from isoscale.recipes.data.masking import IGNORED, Masking

#: characters in a row; docs/recipes.md says what happened with 64
_LENGTH = 16
_BATCH = 32


def network(vocabulary_size: int, width: int) -> nn.Module:
    config = BertConfig(
        vocab_size=vocabulary_size,
        hidden_size=width,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=4 * width,
        max_position_embeddings=_LENGTH,
        type_vocab_size=1,
        hidden_dropout_prob=0.05,
        attention_probs_dropout_prob=0.05,
        initializer_range=0.08,
    )
    model: nn.Module = BertForMaskedLM(config)
    return model


def train(job: isoscale.Job) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--samples", type=int, default=51200, help="rows of text to train on (of 66,768)")
    parser.add_argument("--width", type=int, default=64)
    options = parser.parse_args()

    letters = text.characters(text.moby_dick())
    vocabulary = text.Vocabulary.commonest(letters, 64)
    training, held_out = text.split(text.blocks(vocabulary.encode(letters), _LENGTH))
    training, held_out = training[: options.samples], held_out[: max(options.samples // 12, 64)]
    unigram = text.unigram(training, held_out, len(vocabulary))

    model = job.model(network(len(vocabulary), options.width))
    optimizer = job.keep("optimizer", torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01))
    loader = job.loader(
        TensorDataset(training), batch_size=_BATCH, shuffle=True, drop_last=True, collate_fn=Masking(vocabulary)
    )
    # Masked for good, always by MASK: a character left in its place would be right for nothing.
    masked = Masking(vocabulary, masked=1.0).hide(held_out, torch.Generator().manual_seed(0))
    validation = job.loader(TensorDataset(*masked), batch_size=128, train=False)
    steps = options.epochs * len(loader)
    schedule = job.keep("schedule", torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, steps, pct_start=0.1))

    for _ in job.epochs(options.epochs):
        for step in loader:
            for seen, labels in step:
                logits = model(input_ids=seen).logits
                loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
                loss.backward()  # type: ignore[no-untyped-call]
                step.log(loss=loss)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        model.eval()
        for step in validation:
            for seen, labels in step:
                hidden = labels != IGNORED
                with torch.no_grad():
                    guesses = model(input_ids=seen).logits[hidden]
                nats = F.cross_entropy(guesses, labels[hidden], reduction="sum")
                step.sum(nats=nats, right=(guesses.argmax(-1) == labels[hidden]).sum(), hidden=len(guesses))
        model.train()
        totals = validation.totals
        job.log(
            accuracy=totals["right"] / totals["hidden"],
            baseline=unigram.accuracy,
            perplexity=math.exp(totals["nats"] / totals["hidden"]),
            unigram_perplexity=unigram.perplexity,
        )


if __name__ == "__main__":
    isoscale.run(train)

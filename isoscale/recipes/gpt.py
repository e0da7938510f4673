"""A small GPT-2 that learns to write Moby Dick letter by letter, in bfloat16.

    isoscale run recipe:gpt --workers 4 --executors 2

What large language models are trained with, in small: autocast to bfloat16 over float32 parameters, AdamW,
gradient clipping, a cosine schedule with warm-up, dropout in attention, and an output layer that is the embedding
itself (one parameter with two names). The result is the perplexity per character of text held out; the baseline
is that of a predictor that knows only how common each character is, 19.5.
"""

from __future__ import annotations

import argparse
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel, get_cosine_schedule_with_warmup

import isoscale
from isoscale.recipes.data import text

_LENGTH = 64
_BATCH = 8
_CLIP = 1.0


def network(vocabulary_size: int, width: int) -> nn.Module:
    config = GPT2Config(
        vocab_size=vocabulary_size,
        n_positions=_LENGTH,
        n_embd=width,
        n_layer=2,
        n_head=4,
        resid_pdrop=0.05,
        embd_pdrop=0.05,
        attn_pdrop=0.05,
        bos_token_id=text.CLS,
        eos_token_id=text.SEP,
        use_cache=False,
    )
    model: nn.Module = GPT2LMHeadModel(config)
    return model


def next_token_loss(model: nn.Module, rows: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
    """Each token from those before it. The loss itself is taken in float32."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(input_ids=rows).logits
    return F.cross_entropy(logits[:, :-1].float().flatten(0, 1), rows[:, 1:].flatten(), reduction=reduction)


def train(job: isoscale.Job) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--samples", type=int, default=9600, help="rows of text to train on (of 16,692)")
    parser.add_argument("--width", type=int, default=128)
    options = parser.parse_args()

    letters = text.characters(text.moby_dick())
    vocabulary = text.Vocabulary.commonest(letters, 64)
    training, held_out = text.split(text.blocks(vocabulary.encode(letters), _LENGTH))
    training, held_out = training[: options.samples], held_out[: max(options.samples // 10, 64)]
    baseline = text.unigram(training, held_out[:, 1:], len(vocabulary)).perplexity

    model = job.model(network(len(vocabulary), options.width))
    optimizer = job.keep("optimizer", torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01))
    loader = job.loader(TensorDataset(training), batch_size=_BATCH, shuffle=True, drop_last=True)
    validation = job.loader(TensorDataset(held_out), batch_size=32, train=False)
    steps = options.epochs * len(loader)
    schedule = job.keep("schedule", get_cosine_schedule_with_warmup(optimizer, steps // 20, steps))

    for _ in job.epochs(options.epochs):
        for step in loader:
            for (rows,) in step:
                loss = next_token_loss(model, rows)
                loss.backward()  # type: ignore[no-untyped-call]
                step.log(loss=loss)
            nn.utils.clip_grad_norm_(model.parameters(), _CLIP)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        model.eval()
        for step in validation:
            for (rows,) in step:
                with torch.no_grad():
                    step.sum(nats=next_token_loss(model, rows, "sum"), tokens=rows[:, 1:].numel())
        model.train()
        perplexity = math.exp(validation.totals["nats"] / validation.totals["tokens"])
        job.log(perplexity=perplexity, baseline=baseline)


if __name__ == "__main__":
    isoscale.run(train)

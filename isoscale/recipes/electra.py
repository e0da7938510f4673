"""A small ELECTRA (Clark et al., 2020) on the letters of Moby Dick: a generator forges, a discriminator detects.

    isoscale run recipe:electra --workers 4 --executors 2

The generator fills in hidden characters; what it would put there is drawn from its own distribution, from the stream
of the logical worker whose turn it is. The discriminator tells for every character whether it is the author's. Both
are trained at once and share parameters: the embeddings, which are the generator's output layer too (one parameter with
three names), and the first layer, which is all that the generator has. The result is the area under the discriminator's
ROC curve on text held out; knowing nothing gives 0.5. Also reported: its accuracy beside that of calling everything
genuine, and the generator's perplexity beside that of a predictor that knows only how common each character is.
"""

from __future__ import annotations

import argparse
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset
from transformers import ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining

import isoscale
from isoscale.recipes.data import text
from isoscale.recipes.data.masking import IGNORED, Masking

#: characters in a row; docs/recipes.md says what happened with 64
_LENGTH = 16
_BATCH = 32
#: weight of the discriminator's loss; the paper has 50. Not tuned by itself
_LAMBDA = 5.0
_SCORE_BINS = 1000


class Electra(nn.Module):
    """Both networks as one model, so that one backward serves both."""

    def __init__(self, vocabulary_size: int, width: int) -> None:
        super().__init__()
        self.discriminator = ElectraForPreTraining(_config(vocabulary_size, width, layers=2))
        self.generator = ElectraForMaskedLM(_config(vocabulary_size, width, layers=1))
        mine, shared = self.generator.electra, self.discriminator.electra
        mine.embeddings, mine.encoder.layer[0] = shared.embeddings, shared.encoder.layer[0]
        self.generator.generator_lm_head.weight = shared.embeddings.word_embeddings.weight

    def forward(self, seen: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The generator's logits at hidden places, the discriminator's for every place, and what is forged."""
        hidden = labels != IGNORED
        guesses = self.generator(input_ids=seen).logits[hidden]
        with torch.no_grad():
            drawn = torch.multinomial(guesses.softmax(-1), 1).squeeze(1)
        forged = seen.masked_scatter(hidden, drawn)
        return guesses, self.discriminator(input_ids=forged).logits, hidden & (forged != labels)


def _config(vocabulary_size: int, width: int, layers: int) -> ElectraConfig:
    return ElectraConfig(
        vocab_size=vocabulary_size,
        embedding_size=width,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=4 * width,
        max_position_embeddings=_LENGTH,
        type_vocab_size=1,
        hidden_dropout_prob=0.05,
        attention_probs_dropout_prob=0.05,
        initializer_range=0.08,
    )


def losses(
    guesses: torch.Tensor, verdicts: torch.Tensor, forged: torch.Tensor, labels: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The generator's at hidden places, the discriminator's at all of them."""
    generator = F.cross_entropy(guesses, labels[labels != IGNORED])
    return generator, F.binary_cross_entropy_with_logits(verdicts, forged.to(verdicts.dtype))


def scores(verdicts: torch.Tensor, forged: torch.Tensor) -> torch.Tensor:
    """Counts by (genuine or forged, bin of the discriminator's probability): integers, so order does not matter."""
    bins = (verdicts.sigmoid() * _SCORE_BINS).long().clamp(0, _SCORE_BINS - 1)
    flat = (forged.long() * _SCORE_BINS + bins).flatten()
    return torch.bincount(flat, minlength=2 * _SCORE_BINS).view(2, _SCORE_BINS)


def area_under_roc(counts: torch.Tensor) -> float:
    """How often a forged character is found more suspicious than a genuine one; in the same bin counts half."""
    genuine, forged = counts.double()
    below = genuine.cumsum(0) - genuine
    return float((forged * (below + genuine / 2)).sum() / (genuine.sum() * forged.sum()))


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
    unigram = text.unigram(training, held_out, len(vocabulary)).perplexity
    masking = Masking(vocabulary, fraction=0.25, masked=1.0)

    model = job.model(Electra(len(vocabulary), options.width))
    optimizer = job.keep("optimizer", torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01))
    loader = job.loader(TensorDataset(training), batch_size=_BATCH, shuffle=True, drop_last=True, collate_fn=masking)
    # The same places are hidden in every evaluation and on any machine.
    hidden = masking.hide(held_out, torch.Generator().manual_seed(0))
    validation = job.loader(TensorDataset(*hidden), batch_size=128, train=False)
    steps = options.epochs * len(loader)
    schedule = job.keep("schedule", torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, steps, pct_start=0.1))

    for _ in job.epochs(options.epochs):
        for step in loader:
            for seen, labels in step:
                guesses, verdicts, forged = model(seen, labels)
                generator, discriminator = losses(guesses, verdicts, forged, labels)
                loss = generator + _LAMBDA * discriminator
                loss.backward()  # type: ignore[no-untyped-call]
                step.log(loss=loss, generator=generator, discriminator=discriminator)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        model.eval()
        for step in validation:
            for seen, labels in step:
                with torch.no_grad():
                    guesses, verdicts, forged = model(seen, labels)
                    generator, _ = losses(guesses, verdicts, forged, labels)
                right = ((verdicts > 0) == forged).sum()
                step.sum(
                    scores=scores(verdicts, forged), nats=generator * len(guesses), hidden=len(guesses), right=right
                )
        model.train()
        totals = validation.totals
        counts = torch.as_tensor(totals["scores"])
        genuine, fake = counts.sum(1).tolist()
        job.log(
            auc=area_under_roc(counts),
            baseline=0.5,
            accuracy=totals["right"] / (genuine + fake),
            all_genuine=genuine / (genuine + fake),
            generator_perplexity=math.exp(totals["nats"] / totals["hidden"]),
            unigram_perplexity=unigram,
        )


if __name__ == "__main__":
    isoscale.run(train)

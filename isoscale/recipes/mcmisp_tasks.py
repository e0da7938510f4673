"""What the McMisP recipe trains on and how it is examined: the planted language, or a real text.

A task has training sentences (`with_masks` hides some of their words), a validation set that is the same at every
examination, and the value that a trivial predictor reaches. Examining never changes counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch.utils.data import Dataset, TensorDataset

from isoscale.recipes.data.planted import Planted, Sentences
from isoscale.recipes.data.text import unigram

__all__ = ["PlantedTask", "Task", "TextTask", "mask_of", "with_masks"]

#: share of the words of a sentence that are masked
_MASKED = 0.15


class Task(Protocol):
    #: of the vocabulary, and of a sentence
    size: int
    length: int
    #: share of the words of a sentence that are masked in training
    masked: float
    train: Dataset[Any]
    validation: Dataset[Any]

    def examine(self, model: Any, batch: Any) -> dict[str, Any]:
        """Sums over one batch of the validation set."""

    def result(self, totals: Mapping[str, Any]) -> dict[str, float]:
        """Metrics out of the sums over all of it, and `baseline`."""


class PlantedTask:
    """Fill in a sentence's outcome. Who knows topics only reaches the share of common cues, and no cue sentence."""

    def __init__(self, samples: int, *, language: Planted | None = None, seed: int = 0) -> None:
        self.language = language or Planted()
        self.size, self.length, self.masked = self.language.size, self.language.length, _MASKED
        self.train: Dataset[Any] = TensorDataset(self.language.sentences(samples, 2 * seed).words)
        held_out = self.language.sentences(512, 2 * seed + 1)
        self.validation: Dataset[Any] = self._questions(held_out)
        self._baseline = (held_out.cue_class == 0).double().mean().item()

    def examine(self, model: Any, batch: Any) -> dict[str, Any]:
        words, masked, candidates, is_cue = batch
        right = model.choose(words, masked, candidates) == words[masked]
        return {"right": right.sum(), "seen": len(words), "cue_right": (right & is_cue).sum(), "cues": is_cue.sum()}

    def result(self, totals: Mapping[str, Any]) -> dict[str, float]:
        accuracy, of_cues = totals["right"] / totals["seen"], totals["cue_right"] / totals["cues"]
        return {"accuracy": accuracy, "cue_accuracy": of_cues, "baseline": self._baseline}

    def _questions(self, held_out: Sentences) -> TensorDataset:
        last = torch.arange(self.length) == self.length - 1
        masked = last.expand(len(held_out.words), -1)
        return TensorDataset(held_out.words, masked, self.language.outcomes(held_out.topic), held_out.cue_class > 0)


class TextTask:
    """Fill in masked words of a text that is given as rows of ids. The baseline always says the commonest word.

    For models that detect forgeries there are forged words, drawn by frequency, the same at every examination.
    """

    def __init__(self, train: torch.Tensor, validation: torch.Tensor, size: int, *, masked: float = _MASKED) -> None:
        self.size, self.length, self.masked = size, train.shape[1], masked
        self.train: Dataset[Any] = TensorDataset(train)
        draw = torch.Generator().manual_seed(0)
        hidden = mask_of(torch.rand(validation.shape, generator=draw), masked)
        flat = train.flatten()
        forged = flat[torch.randint(len(flat), validation.shape, generator=draw)]
        self.validation: Dataset[Any] = TensorDataset(validation, hidden, forged)
        trivial = unigram(train, validation[hidden], size)
        self._baseline = trivial.accuracy
        wrong = (hidden & (forged != validation)).double().mean()
        #: by backbone: of knowing how common words are, or how often one is forged, and nothing else
        self.trivial_loss = {
            "bert": math.log(trivial.perplexity),
            "electra": torch.special.entr(torch.stack([wrong, 1 - wrong])).sum().item(),
        }

    def examine(self, model: Any, batch: Any) -> dict[str, Any]:
        words, masked, forged = batch
        guess = model(words, masked)
        loss = model.examination_loss(words, masked, forged)
        return {
            "right": (masked & ~guess.wrong).sum(),
            "masks": masked.sum(),
            "loss": loss.double() * len(words),
            "seen": len(words),
        }

    def result(self, totals: Mapping[str, Any]) -> dict[str, float]:
        return {
            "accuracy": totals["right"] / totals["masks"],
            "validation_loss": totals["loss"] / totals["seen"],
            "baseline": self._baseline,
        }


def with_masks(samples: Sequence[tuple[torch.Tensor]], share: float) -> tuple[torch.Tensor, torch.Tensor]:
    """A loader's `collate_fn`: sentences and their masks, drawn anew from the logical worker's own stream."""
    words = torch.stack([sample[0] for sample in samples])
    return words, mask_of(torch.rand(words.shape), share)


def mask_of(noise: torch.Tensor, share: float = _MASKED) -> torch.Tensor:
    """True at the places of the smallest values of each row: that share of them, at least one."""
    count = max(1, round(share * noise.shape[-1]))
    places = noise.argsort(dim=-1, stable=True)[..., :count]
    return torch.zeros(noise.shape, dtype=torch.bool).scatter_(-1, places, True)

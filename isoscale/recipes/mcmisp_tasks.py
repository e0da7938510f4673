"""What the McMisP recipe trains on and how it is examined: the planted language, or a real text.

A task has training sentences with random masks, a validation set that is the same at every examination, and the value
that a trivial predictor reaches. Examining never changes counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch.utils.data import Dataset, TensorDataset

from isoscale.recipes.data.planted import Planted, Sentences
from isoscale.recipes.data.text import unigram

__all__ = ["PlantedTask", "RandomlyMasked", "Task", "TextTask", "mask_of"]

_MASKED = 0.15


class Task(Protocol):
    #: of the vocabulary, and of a sentence
    size: int
    length: int
    train: Dataset[Any]
    validation: Dataset[Any]

    def examine(self, model: Any, batch: Any) -> dict[str, Any]:
        """Sums over one batch of the validation set."""

    def result(self, totals: Mapping[str, Any]) -> dict[str, float]:
        """Metrics out of the sums over all of it, and `baseline`."""


class RandomlyMasked(Dataset[Any]):
    """Sentences with 15 % of their places (at least one) masked, drawn anew from the logical worker's own stream."""

    def __init__(self, words: torch.Tensor) -> None:
        self._words = words

    def __len__(self) -> int:
        return len(self._words)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self._words[index], mask_of(torch.rand(self._words.shape[1]))


class PlantedTask:
    """Fill in a sentence's outcome. Who knows topics only reaches the share of common cues, and no cue sentence."""

    def __init__(self, samples: int, *, language: Planted | None = None, seed: int = 0) -> None:
        self.language = language or Planted()
        self.size, self.length = self.language.size, self.language.length
        self.train: Dataset[Any] = RandomlyMasked(self.language.sentences(samples, 2 * seed).words)
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
    """Fill in masked words of a text that is given as rows of ids. The baseline always says the commonest word."""

    def __init__(self, train: torch.Tensor, validation: torch.Tensor, size: int) -> None:
        self.size, self.length = size, train.shape[1]
        self.train: Dataset[Any] = RandomlyMasked(train)
        noise = torch.rand(validation.shape, generator=torch.Generator().manual_seed(0))
        self.validation: Dataset[Any] = TensorDataset(validation, torch.stack([mask_of(row) for row in noise]))
        self._baseline = unigram(train, validation, size).accuracy

    def examine(self, model: Any, batch: Any) -> dict[str, Any]:
        words, masked = batch
        guess = model(words, masked)
        masks = masked.sum()
        return {"right": (masked & ~guess.wrong).sum(), "masks": masks, "loss": guess.loss.double() * masks}

    def result(self, totals: Mapping[str, Any]) -> dict[str, float]:
        masks = totals["masks"]
        return {
            "accuracy": totals["right"] / masks,
            "validation_loss": totals["loss"] / masks,
            "baseline": self._baseline,
        }


def mask_of(noise: torch.Tensor) -> torch.Tensor:
    """True at the places of the smallest 15 % of the values, at least one."""
    count = max(1, round(_MASKED * len(noise)))
    places = noise.argsort(stable=True)[:count]
    return torch.zeros(len(noise), dtype=torch.bool).index_fill_(0, places, True)

"""Masked language modelling: which tokens are hidden, and behind what. Used as a loader's `collate_fn`.

Draws come from torch's stream of the moment. In a loader that is the stream of the logical worker whose batch it
is, so what is masked depends on neither the number of executors nor that of loader processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from isoscale.recipes.data import text

__all__ = ["IGNORED", "Masking"]

#: label of a position that is not to be predicted; what `cross_entropy` ignores by default
IGNORED = -100


@dataclass(frozen=True, slots=True)
class Masking:
    """`fraction` of the tokens are to be predicted. Of those, `masked` are replaced by MASK; of the rest one half by
    random ordinary tokens, while the other half stays. The defaults are BERT's.

    Every row has exactly the same number of them, at least one, so that no turn is left without a loss.
    """

    vocabulary: text.Vocabulary
    fraction: float = 0.15
    masked: float = 0.8

    def __call__(self, samples: Sequence[tuple[torch.Tensor, ...]]) -> tuple[torch.Tensor, torch.Tensor]:
        """A batch: what the model sees, and labels (IGNORED where nothing was hidden)."""
        return self.hide(torch.stack([sample[0] for sample in samples]))

    def hide(self, rows: torch.Tensor, generator: torch.Generator | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """The same for rows that are one tensor already; drawn from `generator` if one is given."""
        shape, count = rows.shape, max(1, round(self.fraction * rows.shape[1]))
        # Ties of equal draws are broken by place, so the choice is a function of the draws alone.
        order = torch.rand(shape, generator=generator).argsort(dim=1, stable=True)
        chosen = torch.zeros(shape, dtype=torch.bool).scatter_(1, order[:, :count], True)
        fate = torch.rand(shape, generator=generator)
        first, last = self.vocabulary.num_special, len(self.vocabulary)
        others = torch.randint(first, last, shape, generator=generator)
        seen = torch.where(chosen & (fate < self.masked), text.MASK, rows)
        seen = torch.where(chosen & (fate >= (1 + self.masked) / 2), others, seen)
        return seen, torch.where(chosen, rows, IGNORED)

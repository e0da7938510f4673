"""Which words keep company: exact counts that all logical workers share and that change between steps only.

The counts are integers, so the order in which sentences are added is of no consequence. A turn only reads them; what
the turns of a step have seen is added once, after the step, on every executor alike. It gets there as one integer sum
over logical workers, in which each fills rows of its own (`own_rows`) and leaves the others zero. Sentences are sent,
not counts: a batch is a hundred numbers where a table of V x V is ten thousand or a million. Counting is additive, so
what all sentences give together is the sum of what the workers would have counted.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["Cooccurrence", "count_pairs", "everybodys", "own_rows"]


class Cooccurrence:
    """Kept by the job: how often two words stood at most `window` places apart in a sentence, and how often each stood.

    With `merge_every` above 1 sentences wait until so many steps have come together. They are part of the state.
    """

    def __init__(self, size: int, *, num_special: int, window: int, merge_every: int = 1) -> None:
        self._num_special, self._window, self._merge_every = num_special, window, merge_every
        self.pairs = torch.zeros(size, size, dtype=torch.int64)
        self.words = torch.zeros(size, dtype=torch.int64)
        self._waiting: list[torch.Tensor] = []

    def add(self, sentences: torch.Tensor) -> None:
        """What all logical workers have read in one step. Call it outside turns, once per step."""
        self._waiting.append(sentences)
        if len(self._waiting) == self._merge_every:
            for rows in self._waiting:
                count_pairs(self.pairs, rows, num_special=self._num_special, window=self._window)
                flat = rows.flatten()
                self.words.index_add_(0, flat, (flat >= self._num_special).to(torch.int64))
            self._waiting = []

    def log_counts(self, word: torch.Tensor, companion: torch.Tensor) -> torch.Tensor:
        """log(1 + how often `word` [B, Q] and `companion` [B, K] have met), as [B, Q, K]."""
        return self.pairs[word[:, :, None], companion[:, None, :]].float().log1p()

    def mutual_information(self, word: torch.Tensor, companion: torch.Tensor) -> torch.Tensor:
        """The logarithm of how much oftener they have met than by chance, each count plus one; as [B, Q, K]."""
        alone = (self.words + 1).float().log()
        chance = alone[word][:, :, None] + alone[companion][:, None, :] - (self.words.sum() + 1).float().log()
        return self.log_counts(word, companion) - chance

    def state_dict(self) -> dict[str, Any]:
        """Most pairs of words never meet: only those that have, by their place in the table, in ascending order."""
        flat = self.pairs.flatten()
        place = flat.nonzero().flatten()
        return {"place": place, "count": flat[place], "words": self.words, "waiting": list(self._waiting)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.pairs.zero_()
        self.pairs.view(-1)[state["place"]] = state["count"]
        self.words.copy_(state["words"])
        self._waiting = [rows.clone() for rows in state["waiting"]]


def count_pairs(pairs: torch.Tensor, sentences: torch.Tensor, *, num_special: int, window: int) -> None:
    """Add every pair of different words at most `window` places apart, in both directions; special tokens keep none."""
    size, flat = len(pairs), pairs.view(-1)
    for distance in range(1, min(window, sentences.shape[1] - 1) + 1):
        left, right = sentences[:, :-distance].flatten(), sentences[:, distance:].flatten()
        # Adding zeros to some place is cheaper than taking the others out.
        one = ((left >= num_special) & (right >= num_special) & (left != right)).to(torch.int64)
        flat.index_add_(0, left * size + right, one)
        flat.index_add_(0, right * size + left, one)


def own_rows(sentences: torch.Tensor, logical_rank: int, num_logical_workers: int) -> torch.Tensor:
    """What one worker adds to the sum, [N, batch, length]: its batch in its own rows. Batches must be equally large."""
    rows = torch.zeros(num_logical_workers, *sentences.shape, dtype=torch.int64)
    rows[logical_rank] = sentences
    return rows


def everybodys(total: int | float | torch.Tensor) -> torch.Tensor:
    """The sum, out of `step.totals`, as sentences of all workers, [N x batch, length]."""
    return torch.as_tensor(total).flatten(0, 1)

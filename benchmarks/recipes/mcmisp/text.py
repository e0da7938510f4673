"""The State of the Union addresses for the McMisP study: rows to pre-train on, passages to tell parties by.

Every fifth address by year is held out, from pre-training and from fine-tuning alike. A passage is several rows in a
row out of one address; its party is that of the president, Democratic or Republican. An address is judged by all its
passages together.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from isoscale.recipes.data.text import UNK, Vocabulary, blocks, state_of_the_union, words

VOCABULARY = 300
LENGTH = 8
#: rows of a passage
ROWS = 16
#: words outside the vocabulary that a row may have to be pre-trained on; a passage may have any number
UNKNOWN = 2
HELD_OUT_EVERY = 5
#: passages in a step of fine-tuning
BATCH = 32
VALIDATION_ROWS = 384
TEST_PASSAGES = 400


@dataclass(frozen=True)
class Passages:
    rows: torch.Tensor  # [passages, ROWS, LENGTH]
    party: torch.Tensor  # 1 is Republican
    address: torch.Tensor  # which of the addresses it is from

    def some(self, count: int) -> Passages:
        """So many of them, spread evenly over all."""
        at = torch.arange(count) * len(self.rows) // count
        return Passages(self.rows[at], self.party[at], self.address[at])

    def by_address(self, value: torch.Tensor) -> torch.Tensor:
        """The mean over the passages of each address, in order of addresses."""
        _, at, count = self.address.unique(return_inverse=True, return_counts=True)
        return torch.zeros(len(count)).index_add_(0, at, value.float()) / count

    @property
    def majority(self) -> dict[str, float]:
        """Accuracy of always naming the commoner party: of passages and of addresses."""
        shares = {"party": self.party, "party_of_address": self.by_address(self.party)}
        return {name: max(share.mean().item(), 1 - share.mean().item()) for name, share in shares.items()}


@dataclass(frozen=True)
class Addresses:
    size: int
    train: torch.Tensor
    validation: torch.Tensor
    party_train: Passages
    party_test: Passages


def addresses(directory: Path) -> Addresses:
    speeches = sorted(state_of_the_union(directory), key=lambda speech: (speech.year, speech.president))
    tokens = [words(speech.text) for speech in speeches]
    held_out = [i % HELD_OUT_EVERY == HELD_OUT_EVERY - 1 for i in range(len(speeches))]
    seen = [word for speech, out in zip(tokens, held_out, strict=True) if not out for word in speech]
    vocabulary = Vocabulary.commonest(seen, VOCABULARY)
    rows = [blocks(vocabulary.encode(speech), LENGTH) for speech in tokens]
    validation = _known(torch.cat([r for r, out in zip(rows, held_out, strict=True) if out]))
    every = len(validation) // VALIDATION_ROWS
    parties = [speech.party for speech in speeches]
    return Addresses(
        size=len(vocabulary),
        train=_known(torch.cat([r for r, out in zip(rows, held_out, strict=True) if not out])),
        validation=validation[: every * VALIDATION_ROWS : every],
        party_train=_passages(rows, parties, [not out for out in held_out]),
        party_test=_passages(rows, parties, held_out).some(TEST_PASSAGES),
    )


def _known(rows: torch.Tensor) -> torch.Tensor:
    return rows[(rows == UNK).sum(1) <= UNKNOWN]


def _passages(rows: list[torch.Tensor], parties: list[str], wanted: list[bool]) -> Passages:
    found, labels, addresses = [], [], []
    for i, (speech, party, take) in enumerate(zip(rows, parties, wanted, strict=True)):
        if take and party in ("d", "r"):
            cut = speech[: len(speech) // ROWS * ROWS].view(-1, ROWS, LENGTH)
            found.append(cut)
            labels.append(torch.full((len(cut),), float(party == "r")))
            addresses.append(torch.full((len(cut),), i))
    return Passages(torch.cat(found), torch.cat(labels), torch.cat(addresses))


def fine_tune(
    model: Any, width: int, data: Addresses, *, steps: int, seed: int, rate: float = 1e-3
) -> dict[str, float]:
    """Train the encoder and a linear layer on the mean of its output; accuracy on held-out addresses.

    The mean of a hundred words differs little from passage to passage, so it is normalised over the batch. The new
    layer learns ten times as fast as what is there already.
    """
    torch.manual_seed(seed)
    head = torch.nn.Sequential(torch.nn.BatchNorm1d(width, affine=False), torch.nn.Linear(width, 1))
    parameters: list[dict[str, Any]] = [{"params": model.parameters()}, {"params": head.parameters(), "lr": 10 * rate}]
    optimizer = torch.optim.AdamW(parameters, lr=rate)

    def logits(rows: torch.Tensor) -> torch.Tensor:
        features = model.features(rows.flatten(0, 1)).mean(1).view(*rows.shape[:2], width).mean(1)
        out: torch.Tensor = head(features).squeeze(1)
        return out

    model.train()
    for _ in range(steps):
        at = torch.randint(len(data.party_train.rows), (BATCH,))
        loss = F.binary_cross_entropy_with_logits(logits(data.party_train.rows[at]), data.party_train.party[at])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.eval()
    head.eval()
    test = data.party_test
    with torch.no_grad():
        found = torch.cat([logits(rows) for rows in test.rows.split(100)])
    right = (found > 0) == (test.party > 0)
    right_address = (test.by_address(found) > 0) == (test.by_address(test.party) > 0)
    return {"party": right.double().mean().item(), "party_of_address": right_address.double().mean().item()}

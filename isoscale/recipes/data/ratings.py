"""Implicit feedback from a seed: who took which item, out of latent tastes and popularity.

A user u takes item i the more likely, the larger `bias_i + <taste_u, trait_i>`; a fixed number of different items
each, one of which, drawn at random, is held out. So popularity explains a part and taste the rest.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["Feedback", "feedback", "ranks"]

_FACTORS = 4
#: standard deviations of an item's popularity, and of how well an item suits a user
_POPULARITY = 0.7
_TASTE = 2.0


@dataclass(frozen=True, slots=True)
class Feedback:
    num_items: int
    #: (users, taken): items that each user took, to train on
    taken: torch.Tensor
    #: (users, num_items - taken - 1): items that each user did not take, ascending
    untaken: torch.Tensor
    #: (users, 1 + candidates): the item held out, then candidates that the user did not take, for ranking
    ranking: torch.Tensor

    def pairs(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Users and the items they took, to train on."""
        return torch.arange(len(self.taken)).repeat_interleave(self.taken.shape[1]), self.taken.flatten()

    def popularity(self) -> torch.Tensor:
        """How many users took each item, of those to train on."""
        return torch.bincount(self.taken.flatten(), minlength=self.num_items)


def feedback(num_users: int, num_items: int, per_user: int, candidates: int, seed: int) -> Feedback:
    """`per_user` items to train on for each user, one held out, and `candidates` untaken ones to rank it among."""
    random = torch.Generator().manual_seed(seed)
    bias = _POPULARITY * torch.randn(num_items, generator=random, dtype=torch.float64)
    tastes = torch.randn(num_users, _FACTORS, generator=random, dtype=torch.float64)
    traits = torch.randn(num_items, _FACTORS, generator=random, dtype=torch.float64)
    liking = bias + (tastes[:, None] * traits[None]).sum(-1) * (_TASTE / _FACTORS**0.5)
    # The largest of likings with Gumbel noise are a draw without replacement in proportion to exp(liking).
    noise = -(-torch.rand(liking.shape, generator=random, dtype=torch.float64).clamp(min=1e-12).log()).log()
    order = (liking + noise).argsort(dim=1, descending=True, stable=True)
    chosen = order[:, : per_user + 1]
    # Which of them is held out must not depend on how much it is liked.
    shuffled = chosen.gather(1, torch.rand(chosen.shape, generator=random).argsort(dim=1, stable=True))
    untaken = order[:, per_user + 1 :].sort(dim=1).values
    draw = torch.rand(untaken.shape, generator=random).argsort(dim=1, stable=True)[:, :candidates]
    return Feedback(
        num_items=num_items,
        taken=shuffled[:, 1:],
        untaken=untaken,
        ranking=torch.cat([shuffled[:, :1], untaken.gather(1, draw)], dim=1),
    )


def ranks(scores: torch.Tensor) -> torch.Tensor:
    """Where the first item of each row stands among the others, from 0; of ties half stand before it."""
    first, others = scores[:, :1], scores[:, 1:]
    return (others > first).sum(1) + (others == first).sum(1) / 2

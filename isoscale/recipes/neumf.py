"""Neural matrix factorisation (NeuMF; He et al., 2017) on implicit feedback from a seeded generator.

    isoscale run recipe:neumf --workers 4 --executors 2

Two models of a user and an item side by side, each with embeddings of its own: their elementwise product (GMF) and
a perceptron (MLP); one layer joins both. Users only ever took items, so for each item taken a few that were not are
drawn in every turn, from the logical worker's own stream. The result is the hit ratio at 10: how often the item held
out is among the first ten of a hundred. The baseline ranks by popularity.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import isoscale
from isoscale.recipes.data.ratings import feedback, ranks

_ITEMS = 500
_TAKEN = 24
_CANDIDATES = 99
_NEGATIVES = 4
_FIRST = 10


class NeuMF(nn.Module):
    def __init__(self, num_users: int, num_items: int, width: int) -> None:
        super().__init__()
        self.users_product = nn.Embedding(num_users, width)
        self.items_product = nn.Embedding(num_items, width)
        self.users_mlp = nn.Embedding(num_users, width)
        self.items_mlp = nn.Embedding(num_items, width)
        layers = [nn.Linear(2 * width, 2 * width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(2 * width, width), nn.ReLU()]
        self.mlp = nn.Sequential(*layers)
        self.join = nn.Linear(2 * width, 1)
        for table in (self.users_product, self.items_product, self.users_mlp, self.items_mlp):
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        """How likely each user is to take each item, as logits."""
        product = self.users_product(users) * self.items_product(items)
        perceptron = self.mlp(torch.cat([self.users_mlp(users), self.items_mlp(items)], -1))
        logits: torch.Tensor = self.join(torch.cat([product, perceptron], -1)).squeeze(-1)
        return logits


def with_negatives(
    users: torch.Tensor, items: torch.Tensor, untaken: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Each pair followed by _NEGATIVES of the same user that are none, drawn from the stream of the turn; labels."""
    draw = torch.randint(untaken.shape[1], (len(users), _NEGATIVES))
    both = torch.cat([items[:, None], untaken[users[:, None], draw]], 1)
    labels = torch.zeros(both.shape)
    labels[:, 0] = 1.0
    return users[:, None].expand_as(both), both, labels


def train(job: isoscale.Job) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--samples", type=int, default=1000, help="users to train on")
    parser.add_argument("--width", type=int, default=32, help="size of each embedding")
    options = parser.parse_args()

    data = feedback(options.samples, _ITEMS, _TAKEN, _CANDIDATES, seed=1)
    popular = ranks(data.popularity()[data.ranking])
    baseline = (popular < _FIRST).double().mean().item()

    model = job.model(NeuMF(options.samples, _ITEMS, options.width))
    optimizer = job.keep("optimizer", torch.optim.Adam(model.parameters(), lr=4e-3))
    loader = job.loader(TensorDataset(*data.pairs()), batch_size=128, shuffle=True)
    validation = job.loader(TensorDataset(torch.arange(options.samples), data.ranking), batch_size=50, train=False)

    for _ in job.epochs(options.epochs):
        for step in loader:
            for users, items in step:
                *pairs, labels = with_negatives(users, items, data.untaken)
                loss = F.binary_cross_entropy_with_logits(model(*pairs), labels)
                loss.backward()  # type: ignore[no-untyped-call]
                step.log(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
        for step in validation:
            for users, ranking in step:
                with torch.no_grad():
                    rank = ranks(model(users[:, None].expand_as(ranking), ranking))
                step.sum(hits=(rank < _FIRST).sum(), seen=len(users))
        model.train()
        job.log(hit_ratio=validation.totals["hits"] / validation.totals["seen"], baseline=baseline)


if __name__ == "__main__":
    isoscale.run(train)

"""Generated feedback, ranking, and the negatives of NeuMF."""

from __future__ import annotations

import torch

from isoscale.recipes import neumf
from isoscale.recipes.data.ratings import feedback, ranks


def test_items_of_a_user_are_taken_held_out_or_neither() -> None:
    data = feedback(30, 50, per_user=6, candidates=20, seed=3)
    assert data.taken.shape == (30, 6)
    assert data.untaken.shape == (30, 43)
    assert data.ranking.shape == (30, 21)
    for user in range(30):
        taken, untaken, ranking = (set(t[user].tolist()) for t in (data.taken, data.untaken, data.ranking))
        held_out = data.ranking[user, 0].item()
        assert len(taken) == 6
        assert len(ranking) == 21
        assert taken | untaken | {held_out} == set(range(50))
        assert held_out not in taken | untaken
        assert ranking - {held_out} <= untaken


def test_a_seed_gives_the_same_feedback() -> None:
    one, same, other = (feedback(10, 20, 3, 5, seed) for seed in (1, 1, 2))
    assert torch.equal(one.taken, same.taken)
    assert torch.equal(one.ranking, same.ranking)
    assert not torch.equal(one.taken, other.taken)


def test_pairs_and_popularity_count_what_is_trained_on() -> None:
    data = feedback(10, 20, 3, 5, seed=1)
    users, items = data.pairs()
    assert [(u.item(), i.item()) for u, i in zip(users[:4], items[:4], strict=True)] == [
        *((0, i) for i in data.taken[0].tolist()),
        (1, data.taken[1, 0].item()),
    ]
    assert data.popularity().sum() == 30
    assert data.popularity()[data.taken[0, 0]] == (data.taken == data.taken[0, 0]).sum()


def test_ranks_count_what_is_better_and_half_of_what_is_equal() -> None:
    assert ranks(torch.tensor([[3, 1, 2], [1, 2, 3], [2, 2, 2]])).tolist() == [0, 2, 1]


def test_negatives_are_the_users_own_and_come_from_the_stream() -> None:
    data = feedback(10, 20, 3, 5, seed=1)
    users, items = data.pairs()
    draws = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        draws.append(neumf.with_negatives(users, items, data.untaken))
    drawn_users, drawn_items, labels = draws[0]
    assert torch.equal(drawn_items, draws[1][1])
    assert not torch.equal(drawn_items, draws[2][1])
    assert torch.equal(drawn_items[:, 0], items)
    assert labels.tolist() == [[1, 0, 0, 0, 0]] * 30
    for user, negatives in zip(drawn_users[:, 0].tolist(), drawn_items[:, 1:].tolist(), strict=True):
        assert set(negatives) <= set(data.untaken[user].tolist())

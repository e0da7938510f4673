"""Co-occurrence counts of the McMisP recipe against counting by hand; the integer sum that carries sentences."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from isoscale.recipes.mcmisp_counts import Cooccurrence, count_pairs, everybodys, own_rows

SIZE, SPECIAL = 9, 3


def sentences(rows: int, length: int = 7, seed: int = 0) -> torch.Tensor:
    return torch.randint(SIZE, (rows, length), generator=torch.Generator().manual_seed(seed))


def by_hand(rows: torch.Tensor, window: int) -> torch.Tensor:
    pairs = torch.zeros(SIZE, SIZE, dtype=torch.int64)
    for row in rows.tolist():
        for i, a in enumerate(row):
            for j, b in enumerate(row):
                if i != j and abs(i - j) <= window and a != b and min(a, b) >= SPECIAL:
                    pairs[a, b] += 1
    return pairs


def counted(*parts: torch.Tensor, window: int = 3, merge_every: int = 1) -> Cooccurrence:
    counts = Cooccurrence(SIZE, num_special=SPECIAL, window=window, merge_every=merge_every)
    for part in parts:
        counts.add(part)
    return counts


@pytest.mark.parametrize("window", [1, 3, 6, 50])
def test_pairs_are_those_counted_by_hand(window: int) -> None:
    rows = sentences(20)
    pairs = torch.zeros(SIZE, SIZE, dtype=torch.int64)
    count_pairs(pairs, rows, num_special=SPECIAL, window=window)
    assert torch.equal(pairs, by_hand(rows, window))
    assert pairs.sum() > 0
    assert torch.equal(pairs, pairs.T)
    assert not pairs.diagonal().any()
    assert not pairs[:SPECIAL].any()


def test_a_sentence_of_one_word_has_no_pairs() -> None:
    assert not counted(torch.full((4, 1), SPECIAL)).pairs.any()


def test_words_are_counted_and_special_tokens_are_not() -> None:
    counts = counted(torch.tensor([[5, 5, 0, 8], [2, 1, 5, 3]]))
    assert counts.words.tolist() == [0, 0, 0, 1, 0, 3, 0, 0, 1]


def test_neither_order_nor_grouping_matters() -> None:
    rows = sentences(12)
    whole = counted(rows)
    parts = counted(rows[7:], rows[2:7], rows[:2])
    assert torch.equal(whole.pairs, parts.pairs)
    assert torch.equal(whole.words, parts.words)


def test_counts_come_into_force_every_so_many_steps() -> None:
    first, second, third = sentences(2, seed=1), sentences(2, seed=2), sentences(2, seed=3)
    counts = counted(first, merge_every=2)
    assert not counts.pairs.any()
    counts.add(second)
    assert torch.equal(counts.pairs, by_hand(torch.cat([first, second]), 3))
    counts.add(third)
    assert torch.equal(counts.pairs, by_hand(torch.cat([first, second]), 3))


def test_state_goes_on_from_between_two_merges() -> None:
    parts = [sentences(3, seed=seed) for seed in range(6)]
    before = counted(*parts[:4], merge_every=3)
    state: dict[str, Any] = before.state_dict()
    assert len(state["waiting"]) == 1
    assert state["place"].tolist() == sorted(state["place"].tolist())
    after = counted(sentences(9, seed=99), merge_every=1)  # what it held is gone
    after._merge_every = 3
    after.load_state_dict(state)
    for part in parts[4:]:
        after.add(part)
        before.add(part)
    assert torch.equal(after.pairs, by_hand(torch.cat(parts), 3))
    assert torch.equal(after.words, before.words)


def test_loaded_state_is_not_shared() -> None:
    one = counted(sentences(3))
    two = counted()
    two.load_state_dict(one.state_dict())
    two.add(sentences(3))
    assert torch.equal(one.pairs, by_hand(sentences(3), 3))
    assert one.words.sum() * 2 == two.words.sum()


def test_scores_are_the_formulas() -> None:
    counts = counted(sentences(30))
    word, companion = torch.tensor([[4, 7], [8, 3]]), torch.tensor([[3, 5, 6], [5, 8, 0]])
    log_counts, information = counts.log_counts(word, companion), counts.mutual_information(word, companion)
    assert log_counts.shape == information.shape == (2, 2, 3)
    total = int(counts.words.sum())
    for b in range(2):
        for q in range(2):
            for k in range(3):
                a, c = int(word[b, q]), int(companion[b, k])
                met, alone, other = int(counts.pairs[a, c]), int(counts.words[a]), int(counts.words[c])
                assert log_counts[b, q, k].item() == pytest.approx(math.log(1 + met), rel=1e-6)
                expected = math.log((met + 1) * (total + 1) / ((alone + 1) * (other + 1)))
                assert information[b, q, k].item() == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_an_integer_sum_of_own_rows_is_everybodys_sentences() -> None:
    batches = [sentences(4, seed=seed) for seed in range(3)]
    total = torch.zeros(3, 4, 7, dtype=torch.int64)
    for rank in (2, 0, 1):
        total += own_rows(batches[rank], rank, 3)
    assert torch.equal(everybodys(total), torch.cat(batches))
    assert torch.equal(counted(everybodys(total)).pairs, by_hand(torch.cat(batches), 3))

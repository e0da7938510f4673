"""Text as numbers: tokens, vocabularies, rows, and what a predictor without context reaches."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import pytest
import torch

import isoscale
from isoscale.recipes.data import text


def test_the_novel_is_whole() -> None:
    novel = text.moby_dick()
    assert novel.startswith("CHAPTER 1. Loomings.\n\nCall me Ishmael.")
    assert novel.rstrip().endswith("as it rolled five thousand years ago.")
    assert len(text.words(novel)) == 253_599


@pytest.mark.parametrize(
    "packed", [gzip.compress(b"Call me Ahab.", mtime=0), b"no gzip at all", gzip.compress(b"Call", mtime=0)[:-9]]
)
def test_another_text_is_refused(packed: bytes) -> None:
    with pytest.raises(isoscale.UserError, match=r"moby_dick\.txt\.gz=.*SHA-256 is not fe282a57094ed62e.*again"):
        text._checked(packed)


def test_words_and_characters() -> None:
    assert text.words("“Don\u2019t!” he said—twice, in 1851.") == [
        *("“", "don\u2019t", "!", "”", "he", "said", "—", "twice", ",", "in", "1851", ".")
    ]
    assert "".join(text.characters(" The\n\n WHALE ")) == "the whale"


def test_a_vocabulary_is_the_commonest_tokens_ties_by_alphabet() -> None:
    vocabulary = text.Vocabulary.commonest(list("cbabcdac"), 8)
    assert vocabulary.tokens[vocabulary.num_special :] == ("c", "a", "b")
    assert len(vocabulary) == 8
    ids = vocabulary.encode(["a", "d", "[MASK]", "c"])
    assert ids.tolist() == [6, text.UNK, text.MASK, 5]
    assert vocabulary.decode(ids) == ["a", "[UNK]", "[MASK]", "c"]


def test_rows_are_split_without_overlap_and_nothing_but_the_rest_is_lost() -> None:
    rows = text.blocks(torch.arange(103), 5)
    train, validation = text.split(rows, every=4)
    assert rows.shape == (20, 5)
    assert validation[:, 0].tolist() == [15, 35, 55, 75, 95]
    assert sorted([*train.flatten().tolist(), *validation.flatten().tolist()]) == list(range(100))


def test_unigram_against_arithmetic_by_hand() -> None:
    # Counts 3, 1, 0, 0 plus one each: probabilities 4/8, 2/8, 1/8, 1/8.
    result = text.unigram(torch.tensor([[0, 0], [0, 1]]), torch.tensor([[0, 1, 2, 0]]), 4)
    assert result.perplexity == pytest.approx(math.exp((math.log(2) + math.log(4) + math.log(8) + math.log(2)) / 4))
    assert result.accuracy == 0.5


def test_speeches_come_by_year_with_their_party(tmp_path: Path) -> None:
    (tmp_path / "1861_abraham_lincoln_r.txt").write_text("Fellow citizens")
    (tmp_path / "1801_thomas_jefferson_dr.txt").write_text("Gentlemen", "utf-8")
    (tmp_path / "notes.txt").write_text("not a speech")
    assert text.state_of_the_union(tmp_path) == [
        text.Speech(1801, "thomas jefferson", "dr", "Gentlemen"),
        text.Speech(1861, "abraham lincoln", "r", "Fellow citizens"),
    ]


def test_a_directory_without_speeches_is_refused(tmp_path: Path) -> None:
    with pytest.raises(isoscale.UserError, match=r"1861_abraham_lincoln_r\.txt"):
        text.state_of_the_union(tmp_path)

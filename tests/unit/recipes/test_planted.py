"""The planted language: seeded, and decided by topic and cue alone."""

from __future__ import annotations

import pytest
import torch

from isoscale.recipes.data.planted import Planted


def test_same_seed_same_sentences() -> None:
    language = Planted()
    one, again, other = (language.sentences(50, seed) for seed in (3, 3, 4))
    assert torch.equal(one.words, again.words)
    assert not torch.equal(one.words, other.words)
    # Pinned: published figures are of this language.
    assert language.sentences(1, 0).words.tolist() == PINNED


PINNED = [[10, 97, 6, 6, 16, 11, 8, 11, 16, 77]]


def test_topic_and_cue_decide_the_outcome() -> None:
    language = Planted(topics=3, words_per_topic=5, classes=2, cues_per_class=4, length=6)
    made = language.sentences(400, 0)
    first_outcome, first_cue = 5 + 15, 5 + 15 + 6
    assert language.size == first_cue + 8
    for words, topic, cue_class in zip(made.words.tolist(), made.topic.tolist(), made.cue_class.tolist(), strict=True):
        cues = [word for word in words if word >= first_cue]
        assert len(cues) == 1
        assert (cues[0] - first_cue) // 4 == cue_class
        assert words[-1] == first_outcome + 2 * topic + cue_class
        others = [word for word in words[:-1] if word < first_cue]
        assert len(others) == 4
        assert {(word - 5) // 5 for word in others} == {topic}
    assert torch.equal(language.outcome(made.topic, made.cue_class), made.words[:, -1])
    assert language.outcomes(torch.tensor([0, 2])).tolist() == [[20, 21], [24, 25]]


def test_the_share_of_common_cues_is_as_told_and_the_rest_is_even() -> None:
    classes = Planted(common=0.6).sentences(20_000, 1).cue_class
    shares = torch.bincount(classes, minlength=3) / 20_000
    assert shares[0].item() == pytest.approx(0.6, abs=0.02)
    assert shares[1:].tolist() == pytest.approx([0.2, 0.2], abs=0.02)

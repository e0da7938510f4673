"""Executors of a stream in one process: each holds its own state, and hears of the others only what a seal carries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from isoscale.data.stream import LogicalStream
from isoscale.data.stream_rule import Rule
from isoscale.types import Placement

Sample = tuple[int, int]


class ListSource:
    """Partitions of (partition, place) pairs, read `chunk` at a time."""

    def __init__(self, sizes: Sequence[int], chunk: int = 3) -> None:
        self.sizes, self._chunk = list(sizes), chunk
        self.num_partitions = len(self.sizes)
        self.identity = f"list {self.sizes}"

    def open(self, partition: int, position: int | None) -> ListReader:
        return ListReader(partition, self.sizes[partition], self._chunk, position or 0)

    def decode(self, stored: list[Any]) -> Sequence[Any]:
        return stored

    def label(self, partition: int) -> str:
        return str(partition)


class ListReader:
    def __init__(self, partition: int, size: int, chunk: int, position: int) -> None:
        self._partition, self._size, self._chunk, self.position = partition, size, chunk, position

    def read(self) -> tuple[int, list[Sample]]:
        before, self.position = self.position, min(self._size, self.position + self._chunk)
        return before, [(self._partition, i) for i in range(before, self.position)]

    def close(self) -> None:
        pass


class Fleet:
    """What the runtime does with a stream, without its processes."""

    def __init__(self, sizes: Sequence[int], rule: Rule, shares: Sequence[int], *, ledger: bool = True) -> None:
        self._sizes, self._rule, self._ledger = sizes, rule, ledger
        self._made = 0
        self.streams: list[LogicalStream] = []
        self.place(shares)

    def _make(self) -> LogicalStream:
        self._made += 1
        # Executors read in chunks of different sizes: what is carried must not depend on that.
        return LogicalStream(ListSource(self._sizes, 1 + self._made % 5), self._rule, ledger=self._ledger)

    def place(self, shares: Sequence[int], *, lost: int | None = None) -> None:
        """Other executors: some leave, newcomers get the state of one that stays."""
        self.placement = Placement(shares=tuple(shares))
        stay = [stream for e, stream in enumerate(self.streams) if e != lost]
        self.streams = stay[: len(shares)]
        while len(self.streams) < len(shares):
            newcomer = self._make()
            if stay:
                newcomer.begin(7)  # what it does on its way has no effect
                newcomer.load_state(stay[0].state())
            self.streams.append(newcomer)
        for e, stream in enumerate(self.streams):
            stream.open(self.placement.ranks_of(e))

    def begin(self, epoch: int) -> None:
        for stream in self.streams:
            stream.begin(epoch)

    def advance(self) -> str:
        """Rounds until a step or the end is due; all must agree."""
        while True:
            moves = {stream.next_move() for stream in self.streams}
            assert len(moves) == 1
            (move,) = moves
            if move == "hand out":
                handed = [stream.hand_out() for stream in self.streams]
                assert all(one == handed[0] for one in handed)
                assert handed[0]
            elif move == "count":
                for stream in self.streams:
                    stream.count()
            else:
                return move
            for stream in self.streams:
                stream.mark()
            self._exchange()
            for stream in self.streams:
                stream.end_round()

    def step(self) -> list[list[Sample]]:
        """One step: the samples of each logical rank."""
        out = [samples for e in range(len(self.streams)) for samples in self._turns(e)]
        self._exchange()
        for stream in self.streams:
            stream.end_step()
        return out

    def broken_step(self, turns: int, shares: Sequence[int], *, lost: int | None) -> None:
        """A step in which executors are lost after some turns: it leaves nothing behind."""
        for e in range(len(self.streams)):
            self._turns(e, at_most=turns)
        for stream in self.streams:
            stream.rewind()
        self.place(shares, lost=lost)

    def _turns(self, executor: int, *, at_most: int | None = None) -> list[list[Sample]]:
        stream, ranks = self.streams[executor], self.placement.ranks_of(executor)
        stream.mark()
        stream.open(ranks)
        return [stream.fetch(rank, here=True) for rank in ranks[:at_most]]

    def _exchange(self) -> None:
        changes = {}
        for e, stream in enumerate(self.streams):
            changes |= {rank: (e, stream.changes_of(rank)) for rank in self.placement.ranks_of(e)}
        for e, stream in enumerate(self.streams):
            for rank, (owner, change) in changes.items():
                if change:
                    stream.adopt(rank, change, here=owner == e)

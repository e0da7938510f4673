"""Executors of a stream in one process: each holds its own state, and hears of the others only what a seal carries."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from isoscale.data.stream import LogicalStream
from isoscale.data.stream_batches import StreamBatches
from isoscale.data.stream_rule import Rule
from isoscale.data.virtual import WorkerOptions
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


class FakeWorkers:
    """Virtual workers without processes: batches are what was asked for, and must be asked for and used in order."""

    def __init__(self, dataset: Any, collate: Any, options: WorkerOptions, *, num_logical_workers: int) -> None:
        self._read, self._collate = dataset.__getitems__, collate
        self._next: dict[int, int] = {}
        self._asked: dict[tuple[int, int], Any] = {}
        self._pending: dict[int, int] = {}
        #: by logical rank, how many batches of the pass are sealed
        self.sealed = [0] * num_logical_workers
        self.draws = True
        self.is_fresh = True

    def begin_anew(self, seeds: list[int]) -> None:
        self.begin(seeds)

    def begin(self, seeds: list[int]) -> None:
        self.forget()
        self.sealed = [0] * len(self.sealed)

    def keep_only(self, ranks: Collection[int]) -> None:
        self._next = {rank: index for rank, index in self._next.items() if rank in ranks}
        self._asked = {key: batch for key, batch in self._asked.items() if key[0] in ranks}

    def next_of(self, rank: int) -> int | None:
        return self._next.get(rank)

    def sit(self, rank: int, index: int) -> None:
        assert index == self.sealed[rank]
        self._next[rank] = index

    def ask(self, rank: int, samples: list[Any]) -> None:
        self._asked[rank, self._next[rank]] = self._collate(self._read(samples))
        self._next[rank] += 1

    def get(self, rank: int, index: int) -> Any:
        self._pending[rank] = index
        return self._asked.pop((rank, index))

    def forget(self) -> None:
        self._pending.clear()
        self.keep_only(())

    stop = forget

    def mark(self) -> None:
        self._pending.clear()

    def changes_of(self, rank: int) -> bytes:
        return str(self._pending[rank]).encode() if rank in self._pending else b""

    def adopt(self, rank: int, changes: bytes) -> None:
        assert int(changes) == self.sealed[rank]
        self.sealed[rank] += 1

    def state(self) -> dict[str, Any]:
        return {"sealed": list(self.sealed)}

    def load_state(self, state: dict[str, Any]) -> None:
        self.forget()
        self.sealed = list(state["sealed"])


class Fleet:
    """What the runtime does with a stream, without its processes. With `ahead` batches are read ahead."""

    def __init__(
        self, sizes: Sequence[int], rule: Rule, shares: Sequence[int], *, ledger: bool = True, ahead: int = 0
    ) -> None:
        self._sizes, self._rule, self._ledger, self._ahead = sizes, rule, ledger, ahead
        self._made = 0
        self.batches: list[StreamBatches] = []
        self.index = 0
        self.place(shares)

    @property
    def streams(self) -> list[LogicalStream]:
        return [batches.stream for batches in self.batches]

    def _make(self) -> StreamBatches:
        self._made += 1
        # Executors read in chunks of different sizes: what is carried must not depend on that.
        source = ListSource(self._sizes, 1 + self._made % 5)
        stream = LogicalStream(source, self._rule, ledger=self._ledger, is_live=True)
        n = self._rule.num_logical_workers
        made = StreamBatches(stream, None, list, None, num_logical_workers=n)
        if self._ahead:
            options = WorkerOptions(num_workers=1, prefetch_factor=self._ahead)
            made._workers = FakeWorkers(made._samples, list, options, num_logical_workers=n)  # type: ignore[assignment]
            made._ahead = options.ahead
        return made

    def place(self, shares: Sequence[int], *, lost: int | None = None) -> None:
        """Other executors: some leave, newcomers get the state of one that stays."""
        self.placement = Placement(shares=tuple(shares))
        stay = [one for e, one in enumerate(self.batches) if e != lost]
        self.batches = stay[: len(shares)]
        while len(self.batches) < len(shares):
            newcomer = self._make()
            if stay:
                newcomer.begin(7, [])  # what it does on its way has no effect
                newcomer.carried.load_state(stay[0].carried.state())
            self.batches.append(newcomer)

    def resize(self, size: int) -> None:
        """Another batch size from here on, with other loader processes where there are any."""
        for one in self.batches:
            one.resize(size)
            if one.needs_draw(self.index):
                one.renew(self.index, [])

    def begin(self, epoch: int) -> None:
        self.index = 0
        for one in self.batches:
            one.begin(epoch, [])

    def resume(self, shares: Sequence[int]) -> Fleet:
        """Others go on from what was saved."""
        later = Fleet(self._sizes, self._rule, shares, ledger=self._ledger, ahead=self._ahead)
        for one in later.batches:
            one.carried.load_state(self.batches[0].carried.state())
        later.index = self.index
        return later

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
            elif move == "look":
                for stream in self.streams:
                    stream.look()
            elif move == "count":
                for one in self.batches:
                    one.count()
            else:
                return move
            for one in self.batches:
                one.carried.mark()
            self._exchange()
            for stream in self.streams:
                stream.end_round()

    def step(self) -> list[list[Sample]]:
        """One step: the samples of each logical rank."""
        out = [samples for e in range(len(self.batches)) for samples in self._turns(e)]
        self._exchange()
        for stream in self.streams:
            stream.end_step()
        self.index += 1
        return out

    def broken_step(self, turns: int, shares: Sequence[int], *, lost: int | None) -> None:
        """A step in which executors are lost after some turns: it leaves nothing behind."""
        for e in range(len(self.batches)):
            self._turns(e, at_most=turns)
        for one in self.batches:
            one.carried.rewind()
        self.place(shares, lost=lost)

    def _turns(self, executor: int, *, at_most: int | None = None) -> list[list[Sample]]:
        one, ranks = self.batches[executor], self.placement.ranks_of(executor)
        one.carried.mark()
        one.open(ranks, self.index)
        return [one.fetch(rank, self.index, [], here=True) for rank in ranks[:at_most]]

    def _exchange(self) -> None:
        changes = {}
        for e, one in enumerate(self.batches):
            changes |= {rank: (e, one.carried.changes_of(rank)) for rank in self.placement.ranks_of(e)}
        for e, one in enumerate(self.batches):
            for rank, (owner, change) in changes.items():
                if change:
                    one.carried.adopt(rank, change, here=owner == e)

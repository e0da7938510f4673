"""A stream's state as all executors know it, and the samples of the logical workers that live here.

After every seal all executors hold the same places of all N workers and the same pool of partitions, so each computes
alike who is given what; only the executor on which a worker lives reads its samples. What a worker's turn changed rides
with the step's exchange (`core.sharing.Carried`); where somebody ran dry, rounds without turns tell everybody who still
needs more. Whoever takes a worker over reads from its place. When to do what is the caller's
(`runtime.training.stream`); the rule itself is in `data.stream_rule`.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from isoscale.core.encoding import codec
from isoscale.data.readers.source import Position, Source
from isoscale.data.stream_ledger import content_sum
from isoscale.data.stream_rest import Rest
from isoscale.data.stream_rule import Rule, deal, partition_order
from isoscale.data.stream_worker import Place, WorkerSamples
from isoscale.errors import UserError

__all__ = ["LogicalStream", "Move", "PassCounts"]

Move = Literal["hand out", "look", "count", "step", "end"]

_MASK = 2**64 - 1
#: a place whose position is a number, or none (-1); others are larger
_NUMBERS = struct.Struct("<QQQqQQ")


@dataclass(frozen=True, slots=True)
class PassCounts:
    """What a pass has come to. Equal on all executors."""

    epoch: int
    #: partitions given out, and how many there are
    handed_out: int
    partitions: int
    #: samples used in this pass
    samples: int
    #: samples of earlier passes that this one began with; what it leaves, by the tail rule (-1: not counted yet)
    carried_in: int
    rest: int
    #: sum of the hashes of the samples used in this pass; None without a ledger
    content: int | None


@dataclass(slots=True)
class _Tail:
    """The rest of an epoch, dealt to all."""

    #: where the workers stood when it began
    places: list[Place]
    bounds: list[int]
    step: int = 0


@dataclass(slots=True)
class _Before:
    """What all workers together had when the pass began."""

    used: int = 0
    left: int = 0
    content: int = 0


class LogicalStream:
    def __init__(
        self, source: Source, rule: Rule, *, ledger: bool = False, training: bool = True, is_live: bool = False
    ) -> None:
        """`is_live`: the batch size may change between two steps."""
        self.source, self._ledger, self._training, self._is_live = source, ledger, training, is_live
        self._use(rule)
        self._epoch = 0
        self._order: list[int] = []
        self._next = 0
        self._places = [Place()] * rule.num_logical_workers
        self._marked = list(self._places)
        #: places of workers elsewhere, as they were told; only of those who have, and had, all that they look ahead, so
        #: that nothing is to be decided by them. What one tells next replaces it, and most are never unpacked.
        self._heard: dict[int, bytes] = {}
        #: what workers have left is known up to less than they look ahead now
        self._must_look = False
        self._is_counted = False
        self._tail: _Tail | None = None
        self._before = _Before()
        #: what a round is for, and which workers it asks
        self._round: Literal["", "ahead", "count"] = ""
        self._asked: set[int] = set()
        self._ranks: Sequence[int] = ()
        self._samples: dict[int, WorkerSamples] = {}
        self._rest: Rest | None = None
        #: of batches that were taken and not used yet: where the worker will stand after each, as far as that is known
        #: before it is used, and how many samples the batch has
        self._taken: dict[int, deque[tuple[Place, int]]] = {}

    def _use(self, rule: Rule) -> None:
        self._rule, self._ahead = rule, rule.ahead
        #: with no partition left, all must have so many samples for a full step
        enough = {"drop": rule.batch_size, "carry": rule.need, "partial": rule.batch_size + 1}
        self._enough = enough[rule.tail]
        self._much = self._ahead.to_bytes(8, "little")

    @property
    def batch_size(self) -> int:
        """The present one."""
        return self._rule.batch_size

    # ---- between steps, on all executors alike ----

    def resize(self, size: int) -> None:
        """From here on the rule runs with this batch size. Partitions that were given stay with their workers, and what
        was taken ahead of the turns goes back to its place."""
        self._unpack_heard()
        self.stop()
        before = self._ahead
        self._use(replace(self._rule, batch_size=size))
        if self._tail is not None:
            start = self._tail.bounds[self._tail.step * self._rule.num_logical_workers]
            rest = deal([self._tail.bounds[-1] - start], self._rule)
            self._tail = _Tail(self._tail.places, [start + bound for bound in rest] or [start])
            return
        self._must_look = self._ahead > before
        self._places = [place._replace(left=min(place.left, self._ahead)) for place in self._places]

    def begin(self, epoch: int) -> None:
        """A pass begins, with all partitions in the epoch's order."""
        self.stop()
        self._unpack_heard()
        if self._rule.tail != "carry":
            self._places = [Place(content=place.content) for place in self._places]
        self._epoch, self._next, self._is_counted, self._tail = epoch, 0, False, None
        self._must_look = False
        self._order = partition_order(self.source.num_partitions, self._rule, epoch)
        left = sum(place.left for place in self._places)
        self._before = _Before(sum(place.used for place in self._places), left, self._content())

    def next_move(self) -> Move:
        """What all do next: give partitions out, count what is left, take a step, or end the pass."""
        if self._tail is not None:
            return "step" if self._tail.step < self._num_tail_steps else "end"
        if self._must_look:
            return "look"
        fewest = min([place.left for place in self._places])
        if fewest < self._ahead and self._next < len(self._order):
            return "hand out"
        if fewest >= self._enough:
            return "step"
        if not self._is_counted:
            return "count"
        if self._rule.tail == "partial" and self._deal():
            return "step"
        return "end"

    def hand_out(self) -> list[tuple[int, int]]:
        """The next partitions to those who have too few samples, by logical rank: (partition, logical rank)."""
        handed = []
        for rank, place in enumerate(self._places):
            if place.left < self._ahead and self._next < len(self._order):
                partition = self._order[self._next]
                self._next += 1
                self._places[rank] = place._replace(partitions=(*place.partitions, partition))
                if rank in self._samples:
                    self._samples[rank].extend(partition)
                handed.append((partition, rank))
        self._round, self._asked = "ahead", {rank for _, rank in handed}
        return handed

    def look(self) -> None:
        """The round to come tells how far every worker can see, who looks further ahead than before."""
        self._round, self._asked = "ahead", set(range(self._rule.num_logical_workers))

    def count(self) -> None:
        """The round to come counts what every worker has left, batches that were taken and not used among it."""
        for rank in [rank for rank, taken in self._taken.items() if taken]:
            self._let_go(rank)
        self._round, self._asked = "count", set(range(self._rule.num_logical_workers))

    def end_round(self) -> None:
        """Its seal is left: everybody knows what everybody has."""
        self._is_counted |= self._round == "count"
        self._must_look = False
        self._round, self._asked = "", set()

    def end_step(self) -> None:
        """The step's seal is left."""
        if self._tail is not None:
            self._tail.step += 1

    def counts(self) -> PassCounts:
        self._unpack_heard()
        used = sum(place.used for place in self._places) - self._before.used
        rest = sum(place.left for place in self._places) if self._is_counted else -1
        if self._tail is not None:
            dealt = self._tail.bounds[self._tail.step * self._rule.num_logical_workers]
            used, rest = used + dealt, self._tail.bounds[-1] - dealt
        content = (self._content() - self._before.content) & _MASK if self._ledger else None
        return PassCounts(self._epoch, self._next, len(self._order), used, self._before.left, rest, content)

    def num_used(self, *, in_step: bool) -> int:
        """Samples of this pass in committed steps; `in_step`: one is committed and not ended yet."""
        self._unpack_heard()
        used = sum(place.used for place in self._places) - self._before.used
        if self._tail is None:
            return used
        return used + self._tail.bounds[(self._tail.step + in_step) * self._rule.num_logical_workers]

    # ---- in turns ----

    def open(self, ranks: Sequence[int]) -> None:
        """These logical workers, and no others, live here."""
        if ranks != self._ranks:
            self._ranks = ranks
            self._unpack_heard()
            # In the rest of an epoch something may be taken for a worker of whom nothing is read.
            for rank in [rank for rank in {*self._samples, *self._taken} if rank not in ranks]:
                self._let_go(rank)

    def fetch(self, logical_rank: int, *, here: bool) -> list[object]:
        """A worker's samples of the present step, as they are stored; nothing changes if it lives elsewhere."""
        if here and self._tail is None:
            # What `take` and `use` do, but for reading ahead: some readers are fast enough for that to be seen.
            samples, place = self._samples_of(logical_rank), self._places[logical_rank]
            stored = samples.take(self._rule.batch_size)
            place = samples.place(place)
            if self._ledger:
                place = place._replace(content=(place.content + content_sum(stored)) & _MASK)
            self._places[logical_rank] = place
            return stored
        if here:
            stored = self.take(logical_rank)
            self.use(logical_rank)
            return stored
        if self._tail is not None:
            return self._rest_here(False).slice(*self._bounds(self._tail.step, logical_rank))
        return self._open(logical_rank).take(self._rule.batch_size)

    def is_certain(self, logical_rank: int) -> bool:
        """Whether the next batch to be taken is this worker's whatever partitions it is given later."""
        if self._tail is not None:
            return self._tail.step + len(self._taken.get(logical_rank, ())) < self._num_tail_steps
        return self._samples_of(logical_rank).look_ahead(self._rule.need) == self._rule.need

    def take(self, logical_rank: int) -> list[object]:
        """The samples of a worker's next batch that was not taken yet, as they are stored.

        For the present step, or ahead where it is certain. Nothing is used before `use`.
        """
        taken = self._taken.setdefault(logical_rank, deque())
        place = taken[-1][0] if taken else self._places[logical_rank]
        if self._tail is not None:
            stored = self._rest_here(True).slice(*self._bounds(self._tail.step + len(taken), logical_rank))
        else:
            samples = self._samples_of(logical_rank)
            stored = samples.take(self._rule.batch_size)
            place = samples.place(place)
        if self._ledger:
            place = place._replace(content=(place.content + content_sum(stored)) & _MASK)
        taken.append((place, len(stored)))
        return stored

    def use(self, logical_rank: int) -> int:
        """The worker's turn has come: it gets the batch that was taken first. How many samples that has."""
        place, size = self._taken[logical_rank].popleft()
        self._places[logical_rank] = place if self._tail is not None else self._samples[logical_rank].settled(place)
        return size

    def stop(self) -> None:
        """Let go of readers."""
        for samples in self._samples.values():
            samples.close()
        self._samples, self._rest = {}, None
        self._taken.clear()

    # ---- carried with steps and rounds ----

    def mark(self) -> None:
        self._marked = list(self._places)

    def rewind(self) -> None:
        self._places = list(self._marked)
        self.stop()

    def changes_of(self, logical_rank: int) -> bytes:
        if logical_rank in self._asked:
            samples = self._samples_of(logical_rank)
            place = self._places[logical_rank]
            left = samples.count() if self._round == "count" else samples.left_after(place.used)
            self._places[logical_rank] = place._replace(left=left)
        place = self._places[logical_rank]
        return b"" if place is self._marked[logical_rank] else _pack(place)

    def adopt(self, logical_rank: int, changes: bytes, *, here: bool) -> None:
        if here:
            return
        place = self._places[logical_rank]
        if place.left == self._ahead and changes[8:16] == self._much and len(changes) == _NUMBERS.size:
            self._heard[logical_rank] = changes
        else:
            self._heard.pop(logical_rank, None)
            self._places[logical_rank] = _unpack(changes, place)
        if logical_rank in self._samples or logical_rank in self._taken:
            self._let_go(logical_rank)

    # ---- whole state, for checkpoints and newcomers ----

    def state(self) -> dict[str, object]:
        self._unpack_heard()
        tail = None
        if self._tail is not None:
            tail = {
                "places": [place.to_state() for place in self._tail.places],
                "bounds": list(self._tail.bounds),
                "step": self._tail.step,
            }
        state: dict[str, object] = {
            "source": self.source.identity,
            "epoch": self._epoch,
            "handed": self._next,
            "counted": self._is_counted,
            "places": [place.to_state() for place in self._places],
            "before": [self._before.used, self._before.left, self._before.content.to_bytes(8, "little")],
            "tail": tail,
        }
        return state | {"size": self._rule.batch_size} if self._is_live else state

    def load_state(self, state: dict[str, Any]) -> None:
        if state["source"] != self.source.identity:
            raise UserError(
                field="job.stream(source)",
                value=self.source.identity,
                problem=f"other partitions than the saved state's ({state['source']})",
                remedy="the files, their sizes and the way they are cut must be what they were",
            )
        self.stop()
        self._heard.clear()
        self._must_look = False
        if self._is_live:
            self._use(replace(self._rule, batch_size=int(state["size"])))
        self._epoch, self._next, self._is_counted = state["epoch"], state["handed"], state["counted"]
        self._order = partition_order(self.source.num_partitions, self._rule, self._epoch)
        self._places = [Place.from_state(place) for place in state["places"]]
        used, left, content = state["before"]
        self._before = _Before(used, left, int.from_bytes(content, "little"))
        self._tail, self._round, self._asked = None, "", set()
        if state["tail"] is not None:
            places = [Place.from_state(place) for place in state["tail"]["places"]]
            self._tail = _Tail(places, list(state["tail"]["bounds"]), state["tail"]["step"])

    # ---- parts ----

    def _deal(self) -> bool:
        """The rest to all workers; False if there is none. Raises UserError if it is too small for all to have some."""
        self._unpack_heard()
        rest = [place.left for place in self._places]
        total, bounds = sum(rest), deal(rest, self._rule)
        if not bounds and self._training and total:
            raise UserError(
                field="job.stream(source)",
                value=f"{total} samples",
                problem=f"fewer than the {self._rule.num_logical_workers} logical workers, which need one each",
                remedy="give more data or fewer workers",
            )
        if not bounds and total:
            bounds = [min(rank, total) for rank in range(self._rule.num_logical_workers + 1)]
        if bounds:
            self._tail = _Tail(list(self._places), bounds)
        return bool(bounds)

    @property
    def _num_tail_steps(self) -> int:
        assert self._tail is not None
        return (len(self._tail.bounds) - 1) // self._rule.num_logical_workers

    def _bounds(self, step: int, logical_rank: int) -> list[int]:
        """Of a worker's batch in the rest."""
        assert self._tail is not None
        batch = step * self._rule.num_logical_workers + logical_rank
        return self._tail.bounds[batch : batch + 2]

    def _unpack_heard(self) -> None:
        for rank, changes in self._heard.items():
            # It was sealed before the mark, if there is one.
            self._places[rank] = self._marked[rank] = _unpack(changes, self._places[rank])
        self._heard.clear()

    def _let_go(self, logical_rank: int) -> None:
        """What was read or taken for a worker is read again from its place, if it is needed."""
        self._taken.pop(logical_rank, None)
        if logical_rank in self._samples:
            self._samples.pop(logical_rank).close()

    def _content(self) -> int:
        return sum(place.content for place in self._places) & _MASK

    def _samples_of(self, logical_rank: int) -> WorkerSamples:
        samples = self._samples.get(logical_rank)
        if samples is None:
            samples = self._samples[logical_rank] = self._open(logical_rank)
        return samples

    def _open(self, logical_rank: int, place: Place | None = None) -> WorkerSamples:
        self._unpack_heard()
        at = self._places[logical_rank] if place is None else place
        return WorkerSamples(self.source, self._rule, self._sequence, logical_rank, at)

    @property
    def _sequence(self) -> int:
        """Workers' sequences begin anew in every epoch, unless the rest is carried over: then they never end."""
        return 0 if self._rule.tail == "carry" else self._epoch

    def _rest_here(self, here: bool) -> Rest:
        assert self._tail is not None
        if self._rest is None or not here:
            if not here:
                return Rest(self._tail.places, self._open)
            # What was read ahead is the beginning of the rest, and need not be read again.
            self._rest = Rest(
                self._tail.places, lambda rank, place: self._samples.pop(rank, None) or self._open(rank, place)
            )
        return self._rest


def _pack(place: Place) -> bytes:
    used, left, anchor, position, num_before, _, content = place  # which partitions it has, everybody knows
    if position is None or type(position) is int:
        return _NUMBERS.pack(used, left, anchor, -1 if position is None else position, num_before, content)
    state = [used, left, anchor, position, num_before, content.to_bytes(8, "little")]
    return codec.pack(state).numpy().tobytes().ljust(_NUMBERS.size + 1, b"\0")


def _unpack(changes: bytes, before: Place) -> Place:
    position: Position
    if len(changes) == _NUMBERS.size:
        used, left, anchor, number, num_before, content = _NUMBERS.unpack(changes)
        position = None if number < 0 else number
    else:
        state = codec.unpack(torch.frombuffer(bytearray(changes), dtype=torch.uint8))
        used, left, anchor, position, num_before, packed = state
        content = int.from_bytes(packed, "little")
    passed = num_before - before.num_before
    partitions = before.partitions[passed:] if passed else before.partitions
    return Place._make((used, left, anchor, position, num_before, partitions, content))

"""The seal: one small all-reduce that ends a step on all executors at once.

It carries control (stop requests, readiness for the next generation), audit digests and the step's values,
as one vector of int64 in which every executor fills its own places and leaves the rest zero. Floats travel
as their bits, so nothing is rounded. What executors tell each other of a step (`core.sharing`) has places in it too,
where it is short: a message of its own costs more than all that is in it. An executor that has left the seal knows
that every other holds the step whole, or can take what it lacks from the vector: its reduced gradients, worker 0's
buffers and the contexts of all logical workers. That all stand at the same position is made sure of before
(`core.position`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from isoscale.core.reduction.exchange import Exchange
from isoscale.core.totals import Combined, Tally, ValueSpec, combine

__all__ = ["Seal", "Sealed", "short_hash"]

_STOP, _UNKNOWN, _READY, _TOO_LONG, _HEADER = 0, 1, 2, 3, 4
#: values of more numbers are handled as tensors
_LONG = 16
#: bytes
_WORD = 8
#: messages of all executors that take up to this many words travel in the vector
_MOST_WORDS = 2**13


@dataclass(frozen=True, slots=True)
class Sealed:
    values: Combined
    #: somebody asked the job to stop
    stop: bool
    #: executors whose audit digest is not executor 0's
    differing: tuple[int, ...]
    #: every executor is ready to switch to the next generation
    all_ready: bool = False
    #: sums of what executors added beyond that
    extra: tuple[int, ...] = ()
    #: of every executor, where all say one (`StepEngine.finish`)
    words: tuple[int, ...] = ()
    #: what was odd about turns that were run on several executors, though they agree now
    doubt: str = ""


class Seal:
    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        #: the values every executor knows of, in the order of their places in the vector
        self._specs: list[ValueSpec] = []
        #: what every executor has put in, once the last seal was left; None before
        self.vector: torch.Tensor | None = None
        #: in the last round of a seal: whoever else has left it knows that this executor holds the step whole
        self.entered = False
        #: of the present or last step, by executor, if messages were given to this seal
        self.messages: list[bytes] = []
        #: the next seal has places for messages; the same on all executors, as is the room of each, in words
        self.carries = False
        self._room = 0
        #: in the present vector: further numbers, and words of each executor's place for a message
        self._extra = self._place = 0

    def expect(self, messages: Sequence[bytes]) -> None:
        """What all executors told in this step: the next seal has places for as much, if that is not too much."""
        # Never less than before: after an evaluation, whose messages are short, those of training come again.
        words = 1 + -(-max(map(len, messages)) // _WORD)
        self.carries = words * len(messages) <= _MOST_WORDS
        if self.carries:
            self._room = max(self._room, words)

    def close(
        self,
        tally: Tally,
        *,
        digest: str,
        stop: bool,
        ready: bool = False,
        extra: Sequence[int] = (),
        message: bytes | None = None,
    ) -> Sealed:
        """Called with every reduced bucket and buffer in hand, by executors that stand at the same position.

        `extra` are further numbers to be summed, as many on every executor. `message` is told to all: by all executors
        or by none, and only if the seal `carries` messages.
        """
        values = tally.values()
        if self._exchange.placement.num_executors == 1:
            return Sealed(combine(values), stop, (), ready, tuple(extra))
        self.entered, self._extra, self.messages = True, len(extra), []
        self._place = 0 if message is None else self._room
        while True:
            vector = self._pack(values, digest, stop, ready, extra, message or b"")
            self._exchange.sum_int64(vector)
            flags = vector[:_HEADER].tolist()
            if flags[_TOO_LONG]:
                # Whoever enters the next round has them, and does not need them in the vector.
                self.messages, self._place = self._exchange.gather_bytes(message or b""), 0
            if flags[_UNKNOWN]:
                self._learn(values)
            if not flags[_TOO_LONG] and not flags[_UNKNOWN]:
                break
        self.vector, self.entered = vector, False
        return self.read(vector)

    def read(self, vector: torch.Tensor) -> Sealed:
        """What a vector says that all executors have put into; also one that was received from a luckier executor.

        Messages that it carries are in `messages` then.
        """
        executors = self._exchange.placement.num_executors
        if self._place:
            self.messages = self._messages_in(vector)
        head = vector[: _HEADER + executors + self._extra].tolist()
        digests, extra = head[_HEADER : _HEADER + executors], tuple(head[_HEADER + executors :])
        differing = tuple(e for e, d in enumerate(digests) if d != digests[0])
        all_ready = head[_READY] == executors
        return Sealed(combine(self._unpack(vector)), bool(head[_STOP]), differing, all_ready, extra)

    def _pack(
        self,
        values: Mapping[ValueSpec, Mapping[int, torch.Tensor]],
        digest: str,
        stop: bool,
        ready: bool,
        extra: Sequence[int],
        message: bytes,
    ) -> torch.Tensor:
        # Written as memory: one number costs as much as a hundred to write into a tensor. Long values are tensors.
        long: list[tuple[int, torch.Tensor]] = []
        length = self._length()
        memory = bytearray(_WORD * length)
        numbers = memoryview(memory).cast("q")
        numbers[_STOP], numbers[_READY] = stop, ready
        numbers[_UNKNOWN] = any(spec not in self._specs for spec in values)
        numbers[_HEADER + self._exchange.index] = short_hash(digest) if digest else 0
        executors, n = self._exchange.placement.num_executors, self._exchange.placement.num_logical_workers
        for i, number in enumerate(extra, _HEADER + executors):
            numbers[i] = number
        for spec, at in self._places():
            for rank, value in values.get(spec, {}).items():
                numbers[at + rank] = 1
                start = at + n + (0 if spec.kind == "int" else rank * spec.numel)
                bits = value.reshape(-1).view(torch.int64)
                if spec.numel > _LONG:
                    long.append((start, bits))
                    continue
                for i, number in enumerate(bits.tolist(), start):
                    numbers[i] = _wrapped(numbers[i] + number)
        if self._place:
            at = length - (executors - self._exchange.index) * self._place
            if len(message) > _WORD * (self._place - 1):
                numbers[_TOO_LONG] = 1
            else:
                numbers[at] = len(message)
                memory[_WORD * (at + 1) : _WORD * (at + 1) + len(message)] = message
        vector = torch.frombuffer(memory, dtype=torch.int64)
        for start, bits in long:
            vector[start : start + bits.numel()] += bits
        return vector

    def _messages_in(self, vector: torch.Tensor) -> list[bytes]:
        numbers = vector.numpy().data
        memory, length, messages = numbers.cast("B"), vector.numel(), []
        for at in range(length - self._exchange.placement.num_executors * self._place, length, self._place):
            messages.append(bytes(memory[_WORD * (at + 1) :][: numbers[at]]))
        return messages

    def _unpack(self, vector: torch.Tensor) -> Mapping[ValueSpec, Mapping[int, torch.Tensor]]:
        n = self._exchange.placement.num_logical_workers
        out: dict[ValueSpec, dict[int, torch.Tensor]] = {}
        for spec, at in self._places():
            # As lists: to look at ten thousand elements one by one would take longer than to exchange them.
            present = [rank for rank, there in enumerate(vector[at : at + n].tolist()) if there]
            data = vector[at + n :]
            if spec.kind == "int":
                # Integers were added on the way: the whole sum stands for the first rank that has a value.
                out[spec] = {rank: data[: spec.numel].view(spec.shape) for rank in present[:1]}
            else:
                floats = data[: n * spec.numel].view(torch.float64).view(n, *spec.shape).unbind()
                out[spec] = {rank: floats[rank] for rank in present}
        return out

    def _places(self) -> list[tuple[ValueSpec, int]]:
        at = _HEADER + self._exchange.placement.num_executors + self._extra
        n, places = self._exchange.placement.num_logical_workers, []
        for spec in self._specs:
            places.append((spec, at))
            at += n + (spec.numel if spec.kind == "int" else n * spec.numel)
        return places

    def _length(self) -> int:
        executors, n = self._exchange.placement.num_executors, self._exchange.placement.num_logical_workers
        sizes = (n + (s.numel if s.kind == "int" else n * s.numel) for s in self._specs)
        return _HEADER + executors + self._extra + sum(sizes) + executors * self._place

    def _learn(self, values: Mapping[ValueSpec, object]) -> None:
        """Somebody reports a value the others do not know of: agree on the union, in sorted order."""
        known = {*self._specs, *values}
        text = json.dumps([[s.name, s.kind, list(s.shape)] for s in known])
        for other in self._exchange.gather_text(text):
            known |= {ValueSpec(name, kind, tuple(shape)) for name, kind, shape in json.loads(other)}
        self._specs = sorted(known)


def _wrapped(number: int) -> int:
    """As 64 bits hold it."""
    return (number + 2**63) % 2**64 - 2**63


def short_hash(text: str) -> int:
    """63 bits that are never zero: zero is what an executor that says nothing contributes."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1 | 1

"""What executors tell each other in a step beside gradients: worker 0's buffers and what turns changed in contexts.

After it every executor holds every logical worker's context, so that any of them can go on with any worker. Only what
changed is sent. Puts nothing into force: `core.engine` does, when the step is sealed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import msgspec
import torch
from torch._utils import _flatten_dense_tensors

from isoscale.core.context import ContextSwitch
from isoscale.core.encoding import codec
from isoscale.core.reduction.exchange import Exchange
from isoscale.core.totals import Gathered
from isoscale.core.tracked import TrackedModel

__all__ = ["Carried", "ContextChanges", "Sharing", "Told"]

#: logical rank, its context's parts, its own buffers model by model, what its loader carries: None or b"" where
#: nothing changed
ContextChanges = tuple[int, list[bytes | None], list[bytes], bytes]
#: buffers of one dtype: the dtype, their places and shapes, and their bytes one after the other
_PackedBuffers = tuple[str, list[int], list[tuple[int, ...]], bytes]
#: what an executor tells: its workers' contexts; if it hosts worker 0, that worker's buffers, model by model; and what
#: its turns gave to all, b"" if nothing
_Message = tuple[list[ContextChanges], list[list[_PackedBuffers]], bytes]
_messages: msgspec.msgpack.Decoder[_Message] = msgspec.msgpack.Decoder(_Message)
_encode = msgspec.msgpack.Encoder().encode
#: buffers of a model that are no more bytes than this travel with contexts: a message of their own costs more
_RIDING_BYTES = 2**15


class Told:
    """What all executors have told in a step."""

    def __init__(self, messages: list[_Message], source: int) -> None:
        #: by executor
        self.contexts = [contexts for contexts, _, _ in messages]
        self._gathered = [gathered for _, _, gathered in messages if gathered]
        self._buffers = messages[source][1]

    def gathered(self) -> list[Gathered]:
        return [codec.unpack(torch.frombuffer(bytearray(data), dtype=torch.uint8)) for data in self._gathered]

    def buffers(self, model: int, like: Sequence[torch.Tensor]) -> dict[int, torch.Tensor]:
        """Worker 0's changed buffers of a model whose buffers ride along, on the devices of `like`."""
        return {i: value.to(like[i].device) for packed in self._buffers[model] for i, value in _unpacked(*packed)}


class Carried(Protocol):
    """What a loader knows of each logical worker that other executors must know too, once a step is sealed."""

    def mark(self) -> None:
        """A step begins."""

    def rewind(self) -> None:
        """It will be done again: everything is as it was at the mark."""

    def changes_of(self, logical_rank: int) -> bytes:
        """What a local worker's turn changed."""

    def adopt(self, logical_rank: int, changes: bytes, *, here: bool) -> None:
        """The step is sealed: take over what a turn changed, on another executor or, known already, here."""


class Sharing:
    """For one exchange: what the next message of buffers looks like is agreed on from step to step."""

    def __init__(self, exchange: Exchange, contexts: ContextSwitch, models: Sequence[TrackedModel]) -> None:
        self._exchange = exchange
        self._contexts = contexts
        self._models = models
        self._expected: dict[str, list[bool]] = {}

    @property
    def hosts_worker_0(self) -> bool:
        return self._exchange.index == self._exchange.placement.executor_of(0)

    def message(self, carried: Carried | None, given: Gathered, *, training: bool) -> bytes:
        """What turns here changed in their logical workers' contexts, and worker 0's small buffers, for all others."""
        mine = [
            (
                rank,
                self._contexts.changes_of(rank),
                [_pack_buffers(model.buffers.own_changes(rank)) for model in self._models],
                b"" if carried is None else carried.changes_of(rank),
            )
            for rank in self._exchange.placement.ranks_of(self._exchange.index)
        ]
        tells = training and self.hosts_worker_0
        fresh = [_packed(model.buffers.fresh()) if tells and self.rides(model) else [] for model in self._models]
        packed = codec.pack(given).numpy().tobytes() if given else b""
        return _encode((mine, fresh, packed))

    def told(self, messages: Sequence[bytes]) -> Told:
        """By the messages of all executors."""
        return Told([_messages.decode(data) for data in messages], self._exchange.placement.executor_of(0))

    def rides(self, model: TrackedModel) -> bool:
        """Worker 0's buffers of this model travel with contexts. The same on all executors, and for the job's life."""
        return 0 < model.buffers.num_bytes <= _RIDING_BYTES

    def adopt(self, changes: list[ContextChanges], carried_by: Carried | None, *, here: bool) -> None:
        for rank, context, buffers, carried in changes:
            self._contexts.adopt(rank, context, here=here)
            if carried_by is not None and carried:
                carried_by.adopt(rank, carried, here=here)
            if not here:
                for model, packed in zip(self._models, buffers, strict=True):
                    if packed:
                        model.buffers.adopt_own(rank, _unpack_buffers(packed))

    def buffers(self, model: TrackedModel) -> dict[int, torch.Tensor]:
        """Worker 0's changed buffers, from the executor that hosts it. Usually one message.

        The message is laid out for the buffers that changed last time, with a flag for each that changed now.
        """
        buffers, source = model.buffers, self._exchange.placement.executor_of(0)
        if not len(buffers) or self._exchange.placement.num_executors == 1:
            return buffers.fresh()
        fresh, here = buffers.fresh(), self._exchange.index == source
        expected = self._expected.get(model.name, [False] * len(buffers))
        flags = torch.tensor([i in fresh for i in range(len(buffers))], dtype=torch.uint8)
        values = (
            [fresh.get(i, b).clone() for i, b in enumerate(buffers.shared)]
            if here
            else [torch.empty_like(b) for b in buffers.shared]
        )
        self._send_bytes([flags, *(v for v, e in zip(values, expected, strict=True) if e)], source)
        changed = flags.bool().tolist()
        late = [v for v, e, c in zip(values, expected, changed, strict=True) if c and not e]
        if late:
            self._send_bytes(late, source)
        self._expected[model.name] = changed
        return {i: values[i] for i, c in enumerate(changed) if c}

    def _send_bytes(self, tensors: list[torch.Tensor], source: int) -> None:
        parts = [t.contiguous().reshape(-1).view(torch.uint8) for t in tensors]
        message = torch.cat(parts)
        self._exchange.broadcast([message], source)
        if self._exchange.index != source:
            for tensor, part in zip(tensors, torch.split(message, [p.numel() for p in parts]), strict=True):
                # A split may start at any byte; the copy gives the dtype its alignment.
                tensor.copy_(part.clone().view(tensor.dtype).view(tensor.shape))


def _packed(buffers: dict[int, torch.Tensor]) -> list[_PackedBuffers]:
    # Together: a call per buffer costs more than its bytes.
    kinds: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    for i, buffer in buffers.items():
        kinds.setdefault((buffer.dtype, buffer.device), []).append(i)
    packed = []
    for (dtype, _), places in kinds.items():
        flat: torch.Tensor = _flatten_dense_tensors([buffers[i] for i in places])  # type: ignore[no-untyped-call]
        data = flat.detach().cpu().view(torch.uint8).numpy().tobytes()
        packed.append((str(dtype).removeprefix("torch."), places, [tuple(buffers[i].shape) for i in places], data))
    return packed


def _unpacked(
    dtype: str, places: list[int], shapes: list[tuple[int, ...]], data: bytes
) -> list[tuple[int, torch.Tensor]]:
    kind: torch.dtype = getattr(torch, dtype)
    flat = torch.frombuffer(bytearray(data), dtype=kind) if data else torch.empty(0, dtype=kind)
    parts = torch.split(flat, [math.prod(shape) for shape in shapes])
    return [(i, part.view(shape)) for i, part, shape in zip(places, parts, shapes, strict=True)]


def _pack_buffers(buffers: dict[int, torch.Tensor]) -> bytes:
    return codec.pack(buffers).numpy().tobytes() if buffers else b""


def _unpack_buffers(packed: bytes) -> dict[int, torch.Tensor]:
    buffers: dict[int, torch.Tensor] = codec.unpack(torch.frombuffer(bytearray(packed), dtype=torch.uint8))
    return buffers

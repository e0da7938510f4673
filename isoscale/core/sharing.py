"""What executors tell each other in a step beside gradients: worker 0's buffers and what turns changed in contexts.

After it every executor holds every logical worker's context, so that any of them can go on with any worker. Only what
changed is sent. Puts nothing into force: `core.engine` does, when the step is sealed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
import torch

from isoscale.core.context import ContextSwitch
from isoscale.core.encoding import codec
from isoscale.core.reduction.exchange import Exchange
from isoscale.core.tracked import TrackedModel

__all__ = ["Carried", "ContextChanges", "Sharing"]

#: logical rank, its context's parts, its own buffers model by model, what its loader carries: None or b"" where
#: nothing changed
ContextChanges = tuple[int, list[bytes | None], list[bytes], bytes]
_contexts: msgspec.msgpack.Decoder[list[ContextChanges]] = msgspec.msgpack.Decoder(list[ContextChanges])
_encode = msgspec.msgpack.Encoder().encode


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

    def start_contexts(self, carried: Carried | None) -> Callable[[], list[list[ContextChanges]]]:
        """What every turn changed in its logical worker's context, by executor; returns what waits for it."""
        mine = [
            (
                rank,
                self._contexts.changes_of(rank),
                [_pack_buffers(model.buffers.own_changes(rank)) for model in self._models],
                b"" if carried is None else carried.changes_of(rank),
            )
            for rank in self._exchange.placement.ranks_of(self._exchange.index)
        ]
        wait = self._exchange.start_gather_bytes(_encode(mine))
        return lambda: [_contexts.decode(data) for data in wait()]

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


def _pack_buffers(buffers: dict[int, torch.Tensor]) -> bytes:
    return codec.pack(buffers).numpy().tobytes() if buffers else b""


def _unpack_buffers(packed: bytes) -> dict[int, torch.Tensor]:
    buffers: dict[int, torch.Tensor] = codec.unpack(torch.frombuffer(bytearray(packed), dtype=torch.uint8))
    return buffers

"""The job's state on its way from executors that have it to newcomers: packed once, and sent while it is packed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import torch

from isoscale.core.encoding import codec
from isoscale.core.reduction.exchange import ExchangeBrokenError
from isoscale.runtime.training.loader import Loader
from isoscale.runtime.training.loop import TrainingLoop
from isoscale.runtime.training.snapshot import take_snapshot

__all__ = ["receive_state", "send_state"]


def send_state(group: Any, targets: Iterable[int], loop: TrainingLoop, loader: Loader) -> None:
    """To the members of `group` at these positions. One that is gone breaks the new generation's first exchange."""
    from isoscale.runtime.transport.gloo import send_blob

    state = take_snapshot(loop, loader, copy=False)
    block = torch.empty(codec.packed_size(state), dtype=torch.uint8)
    with contextlib.suppress(ExchangeBrokenError):
        send_blob(group, block, *targets, fill=lambda told: codec.pack(state, into=block, told=told))


def receive_state(group: Any, source: int) -> dict[str, Any]:
    from isoscale.runtime.transport.gloo import receive_blob

    state: dict[str, Any] = codec.unpack(receive_blob(group, source), copy=False)
    return state

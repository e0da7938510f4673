"""The job's state on its way from executors that have it to newcomers: packed once, and sent while it is packed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from isoscale.core.encoding import codec
from isoscale.core.reduction.exchange import ExchangeBrokenError
from isoscale.runtime.training.loader import Loader
from isoscale.runtime.training.loop import TrainingLoop
from isoscale.runtime.training.snapshot import take_snapshot

__all__ = ["receive_state", "send_state"]

#: beside the state: no part of it, and not in checkpoints
_UNHEARD = "isoscale-unheard"


def send_state(
    group: Any, targets: Iterable[int], loop: TrainingLoop, loader: Loader, unheard: Sequence[bytes] = ()
) -> None:
    """To the members of `group` at these positions. One that is gone breaks the new generation's first exchange.

    `unheard`: what they have to tell if all who know it are lost before a coordinator has heard it."""
    from isoscale.runtime.transport.gloo import send_blob

    state = take_snapshot(loop, loader, copy=False)
    state[_UNHEARD] = list(unheard)
    block = torch.empty(codec.packed_size(state), dtype=torch.uint8)
    with contextlib.suppress(ExchangeBrokenError):
        send_blob(group, block, *targets, fill=lambda told: codec.pack(state, into=block, told=told))


def receive_state(group: Any, source: int) -> tuple[dict[str, Any], list[bytes]]:
    """The state, and what nobody may have heard yet."""
    from isoscale.runtime.transport.gloo import receive_blob

    state: dict[str, Any] = codec.unpack(receive_blob(group, source), copy=False)
    return state, state.pop(_UNHEARD)

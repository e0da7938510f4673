"""The job's state on its way from executors that have it to newcomers: packed once, sent to each.

Memory for it is made ready while the switch is being prepared, so that the pause is no longer than the copy.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import torch

from isoscale.core.encoding import codec
from isoscale.core.reduction.exchange import ExchangeBrokenError
from isoscale.runtime.training.loader import Loader
from isoscale.runtime.training.loop import TrainingLoop
from isoscale.runtime.training.snapshot import take_snapshot

__all__ = ["Handover"]


class Handover:
    def __init__(self) -> None:
        self._room: torch.Tensor | None = None
        self._making_room: threading.Thread | None = None

    def make_room(self, loop: TrainingLoop, loader: Loader) -> None:
        """A switch is near in which this executor will send."""
        if self._room is not None:
            return
        size = codec.packed_size(take_snapshot(loop, loader, copy=False))
        self._room = torch.empty(size + size // 16, dtype=torch.uint8)
        self._making_room = threading.Thread(target=self._room.zero_, name="make room", daemon=True)
        self._making_room.start()

    def send(self, group: Any, targets: Iterable[int], loop: TrainingLoop, loader: Loader) -> None:
        """To the members of `group` at these positions. One that is gone breaks the new generation's first exchange."""
        from isoscale.runtime.transport.gloo import send_blob

        blob = self._packed(loop, loader)
        try:
            for target in targets:
                send_blob(group, blob, target)
        except ExchangeBrokenError:
            pass

    def _packed(self, loop: TrainingLoop, loader: Loader) -> torch.Tensor:
        if self._making_room is not None:
            self._making_room.join()  # or it would go on to clear what is packed
        room, self._room, self._making_room = self._room, None, None
        return codec.pack(take_snapshot(loop, loader, copy=False), into=room)

    @staticmethod
    def receive(group: Any, source: int) -> dict[str, Any]:
        from isoscale.runtime.transport.gloo import receive_blob

        state: dict[str, Any] = codec.unpack(receive_blob(group, source), copy=False)
        return state

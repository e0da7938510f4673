"""Memory for a hand-over is made ready beside training, and must not be cleared once it is in use."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch

from isoscale.core.encoding import codec
from isoscale.runtime.executor import state_transfer as module
from isoscale.runtime.executor.state_transfer import Handover


def test_room_is_ready_before_the_state_is_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    clear = torch.Tensor.zero_

    def slowly(tensor: torch.Tensor) -> torch.Tensor:
        if threading.current_thread() is not threading.main_thread():
            time.sleep(0.1)
        return clear(tensor)

    state = {"weight": torch.ones(1000)}
    monkeypatch.setattr(torch.Tensor, "zero_", slowly)
    monkeypatch.setattr(module, "take_snapshot", lambda job, loader, copy: state)
    sender: Any = Handover()
    sender.make_room(None, None)
    blob = sender._packed(None, None)
    for thread in threading.enumerate():
        if thread.name == "make room":
            thread.join()
    assert torch.equal(codec.unpack(blob)["weight"], state["weight"])

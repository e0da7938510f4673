"""The emulated ring against real gloo, as an executor on an unknown torch would try it."""

from __future__ import annotations

import pytest
import torch

from isoscale.errors import DeterminismError
from isoscale.runtime.executor import selfcheck


@pytest.mark.parametrize("num_logical_workers", [1, 2, 3, 4])
def test_real_ring_is_the_emulated_one(num_logical_workers: int) -> None:
    assert selfcheck.ring_differs(num_logical_workers) is None


def test_another_order_is_refused_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selfcheck, "ring_sum", lambda addends: torch.stack(addends).sum(0) + 1)
    with pytest.raises(DeterminismError, match="--order tree"):
        selfcheck.check_ring(2, always=True)


def test_established_version_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selfcheck, "ring_differs", lambda n: pytest.fail("tried"))
    monkeypatch.setattr(torch, "__version__", "2.13.0+cpu")
    selfcheck.check_ring(2)

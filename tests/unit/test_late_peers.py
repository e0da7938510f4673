"""Peers that are late are waited for, much longer than for those who are to form a group."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
import torch

from isoscale.core.reduction.buckets import Bucket
from isoscale.core.reduction.gradients import FlatBucket, RingBucket
from isoscale.runtime.transport import gloo as collective
from isoscale.types import Placement

_LATE_S = 2.0


def test_messages_are_waited_for_beyond_the_limit_for_forming(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two members, in threads, with three logical workers: the walk around the ring is a matter of messages."""
    monkeypatch.setattr(collective, "_FORMING_TIMEOUT", timedelta(seconds=_LATE_S / 4))
    placement = Placement(shares=(2, 1))
    bucket = Bucket(params=(0,), offsets=(0,), numel=300)

    def member(index: int) -> tuple[torch.Tensor, torch.Tensor]:
        exchange = collective.connect(str(tmp_path / "store"), placement, index)
        ranks = placement.ranks_of(index)
        mine = {rank: FlatBucket(bucket, [torch.empty(300)]) for rank in ranks}
        for rank, one in mine.items():
            one.flat.fill_(2.0**rank)
        time.sleep(index * _LATE_S)
        total = exchange.ring(RingBucket(bucket, 4, ranks, 3), mine, FlatBucket(bucket, [torch.empty(300)]))
        time.sleep(index * _LATE_S)
        if index == 1:
            collective.send_blob(exchange.group, torch.arange(5, dtype=torch.uint8), 0)
            return total.flat, torch.arange(5, dtype=torch.uint8)
        return total.flat, collective.receive_blob(exchange.group, 1)

    with ThreadPoolExecutor(2) as threads:
        for total, blob in threads.map(member, range(2)):
            assert torch.equal(total, torch.full((300,), 7.0))
            assert blob.tolist() == [0, 1, 2, 3, 4]

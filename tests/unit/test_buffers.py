from __future__ import annotations

import pytest
import torch
from torch import nn

from isoscale.core.buffers import BufferSet


class Counter(nn.Module):
    """A buffer that forward changes in place, and one that it replaces."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(2))
        self.register_buffer("fresh", torch.zeros(2))
        self.register_buffer("still", torch.ones(3))
        self.register_buffer("absent", None)

    def forward(self, amount: float) -> None:
        self.count += amount
        self.fresh = self.fresh + amount


def step(buffers: BufferSet, module: Counter, amounts: list[float]) -> list[float]:
    """One step with a turn per amount; what each turn started from."""
    seen = []
    buffers.begin_step()
    for rank, amount in enumerate(amounts):
        buffers.open_turn(rank)
        seen.append(module.count[0].item())
        assert module.fresh[0] == module.count[0]
        module(amount)
        buffers.close_turn(rank)
    buffers.end_step(buffers.fresh())
    return seen


def test_names_and_number() -> None:
    module = nn.Sequential(Counter(), nn.BatchNorm1d(2))
    buffers = BufferSet(module, broadcast=True)
    assert buffers.names == [
        "0.count",
        "0.fresh",
        "0.still",
        "1.running_mean",
        "1.running_var",
        "1.num_batches_tracked",
    ]
    assert len(buffers) == 6


def test_a_shared_buffer_counts_once() -> None:
    first, second = Counter(), Counter()
    second._buffers["count"] = first.count
    assert len(BufferSet(nn.Sequential(first, second), broadcast=True)) == 5


def test_a_model_without_buffers() -> None:
    buffers = BufferSet(nn.Linear(2, 2), broadcast=True)
    assert len(buffers) == 0
    assert not buffers.begin_step()
    buffers.open_turn(0)
    buffers.search_silent(0)
    buffers.close_turn(0)
    assert buffers.fresh() == {}
    buffers.end_step({})


def test_with_broadcast_every_turn_starts_from_worker_zeros_last_step() -> None:
    module = Counter()
    buffers = BufferSet(module, broadcast=True)
    assert step(buffers, module, [1.0, 10.0, 100.0]) == [0.0, 0.0, 0.0]
    assert module.count.tolist() == module.fresh.tolist() == [1.0, 1.0]
    assert step(buffers, module, [2.0, 20.0]) == [1.0, 1.0]
    assert module.count.tolist() == [3.0, 3.0]


def test_without_broadcast_every_worker_has_its_own() -> None:
    module = Counter()
    buffers = BufferSet(module, broadcast=False)
    assert step(buffers, module, [1.0, 10.0]) == [0.0, 0.0]
    assert step(buffers, module, [1.0, 10.0]) == [1.0, 10.0]
    assert module.count.tolist() == [2.0, 2.0]
    assert [buffers.own[rank][0].tolist() for rank in (0, 1)] == [[2.0, 2.0], [20.0, 20.0]]


def test_only_what_worker_zero_changed_is_fresh() -> None:
    module = Counter()
    buffers = BufferSet(module, broadcast=True)
    buffers.begin_step()
    buffers.open_turn(0)
    module(1.0)
    buffers.close_turn(0)
    buffers.open_turn(1)
    module(5.0)
    buffers.close_turn(1)
    assert {i: value.tolist() for i, value in buffers.fresh().items()} == {0: [1.0, 1.0], 1: [1.0, 1.0]}


def test_buffers_of_another_executors_worker_zero_are_shown() -> None:
    module = Counter()
    buffers = BufferSet(module, broadcast=True)
    buffers.begin_step()
    buffers.open_turn(3)
    module(5.0)
    buffers.close_turn(3)
    assert buffers.fresh() == {}
    buffers.end_step({0: torch.tensor([7.0, 7.0])})
    assert module.count.tolist() == [7.0, 7.0]
    assert module.fresh.tolist() == [0.0, 0.0]


def test_code_outside_turns_changes_worker_zeros() -> None:
    module = Counter()
    buffers = BufferSet(module, broadcast=True)
    module.count.fill_(4.0)
    assert buffers.begin_step()
    buffers.open_turn(1)
    assert module.count.tolist() == [4.0, 4.0]
    assert not buffers.begin_step()


def test_batch_norm_writes_behind_the_version_counter() -> None:
    module = nn.BatchNorm1d(2)
    buffers = BufferSet(module, broadcast=True)
    buffers.begin_step()
    buffers.open_turn(0)
    module(torch.tensor([[1.0, 2.0], [3.0, 6.0]]))
    buffers.close_turn(0)
    mean = module.running_mean.clone()
    buffers.open_turn(1)
    assert module.running_mean.tolist() == [0.0, 0.0]
    module(torch.randn(4, 2))
    buffers.close_turn(1)
    buffers.end_step(buffers.fresh())
    assert torch.equal(module.running_mean, mean)
    assert module.num_batches_tracked == 1
    module.eval()
    buffers.begin_step(training=False)
    assert buffers.changed() == []


def test_a_silent_writer_is_found_by_contents() -> None:
    class Silent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(1))

        def forward(self) -> None:
            self.seen.numpy()[0] += 1  # NumPy does not count versions

    module = Silent()
    buffers = BufferSet(module, broadcast=True)
    buffers.begin_step()
    buffers.open_turn(0)
    module()
    assert buffers.changed() == []
    buffers.search_silent(0)
    assert buffers.changed() == [0]


def test_a_buffer_may_change_its_shape() -> None:
    module = Counter()
    buffers = BufferSet(module, broadcast=True)
    buffers.begin_step()
    buffers.open_turn(0)
    module.fresh = torch.ones(5)
    buffers.close_turn(0)
    buffers.open_turn(1)
    assert module.fresh.shape == (2,)
    buffers.close_turn(1)
    buffers.end_step(buffers.fresh())
    assert module.fresh.tolist() == [1.0] * 5


def test_a_buffer_that_is_replaced_twice_is_seen() -> None:
    """The second new tensor may lie where the first one was: an id alone does not tell them apart."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("value", torch.zeros(3))

        def forward(self) -> None:
            self.value = self.value + 1
            self.value = self.value * 2

    module = Twice()
    buffers = BufferSet(module, broadcast=True)
    buffers.begin_step()
    buffers.open_turn(0)
    module()
    assert buffers.changed() == [0]


@pytest.mark.parametrize("broadcast", [True, False])
def test_statistics_of_a_turn_that_ends_in_eval_mode(broadcast: bool) -> None:
    """A script may call `model.eval()` at the end of a turn: what was written before is the turn's all the same."""
    module = nn.BatchNorm1d(2)
    buffers = BufferSet(module, broadcast=broadcast)
    start = module.running_mean.clone()
    own = []
    for _ in range(2):
        buffers.begin_step()
        seen = []
        for rank in range(3):
            buffers.open_turn(rank)
            seen.append(module.running_mean.clone())
            module.train()
            module(torch.full((4, 2), 1.0 + rank))
            module.eval()
            buffers.close_turn(rank)
            if rank == 0:
                after = module.running_mean.clone()
        buffers.end_step(buffers.fresh())
        assert torch.equal(module.running_mean, after)
        own.append(seen)
        if broadcast:
            assert all(torch.equal(one, seen[0]) for one in seen)
    assert torch.equal(own[0][1], start)
    if not broadcast:
        assert not torch.equal(own[1][1], own[1][2])


def test_own_buffers_are_kept_for_evaluation_and_no_longer() -> None:
    """Training turns start from worker 0's; evaluation sees what each worker's last training turn left."""
    module = Counter()
    buffers = BufferSet(module, broadcast=True, keeps_own=True)
    assert step(buffers, module, [1.0, 10.0]) == [0, 0]
    assert step(buffers, module, [1.0, 10.0]) == [1, 1]
    buffers.begin_step(training=False)
    seen = []
    for rank in range(2):
        buffers.open_turn(rank)
        seen.append(module.count[0].item())
        buffers.close_turn(rank)
    buffers.end_step(buffers.fresh())
    assert seen == [2, 11]
    assert module.count[0] == 2
    assert step(buffers, module, [1.0, 10.0]) == [2, 2]


def test_own_buffers_that_code_outside_turns_writes_are_everybodys() -> None:
    module = Counter()
    buffers = BufferSet(module, broadcast=True, keeps_own=True)
    step(buffers, module, [1.0, 10.0])
    with torch.no_grad():
        module.count.fill_(7)
    buffers.begin_step(training=False)
    buffers.open_turn(1)
    assert module.count[0] == 7


def test_own_buffers_reach_other_executors() -> None:
    module, other = Counter(), Counter()
    here, there = (BufferSet(one, broadcast=True, keeps_own=True) for one in (module, other))
    step(here, module, [1.0, 10.0])
    there.begin_step()
    for rank in range(2):
        there.adopt_own(rank, here.own_changes(rank))
    there.end_step({i: here.shared[i] for i in range(len(here))})
    there.begin_step(training=False)
    there.open_turn(1)
    assert other.count[0] == 10

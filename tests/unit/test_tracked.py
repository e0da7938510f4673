from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from isoscale.core.reduction.exchange import LocalExchange
from isoscale.core.rules import Turn
from isoscale.core.tracked import TrackedModel
from isoscale.errors import TurnRuleError, UserError
from isoscale.types import Order


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 3), nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))


class Fixture:
    """One model with its turn, driven by hand."""

    def __init__(self, module: nn.Module | None = None, n: int = 2, order: Order = "ddp", **options: Any) -> None:
        self.net: Any = module or Net()
        self.turn = Turn()
        settings = {"find_unused_parameters": False, "broadcast_buffers": True, "bucket_cap_mb": None} | options
        self.model = TrackedModel("Net", self.net, self.turn, LocalExchange(n), order=order, **settings)

    def open(self, rank: int = 0) -> None:
        self.turn.logical_rank = rank
        self.model.open_turn(rank, launch_if=None)

    def close(self) -> bool:
        rank, self.turn.logical_rank = self.turn.logical_rank, None
        assert rank is not None
        return self.model.close_turn(rank)

    def finish(self, used_by_any: list[bool] | None) -> None:
        self.model.publish(self.model.sync.finish(), used_by_any)

    def loss(self) -> torch.Tensor:
        return self.net(torch.ones(4, 2)).sum()


@pytest.mark.parametrize("order", ["ddp", "tree"])
def test_grad_holds_the_average_with_the_users_strides(order: Order) -> None:
    fixture = Fixture(nn.Linear(2, 1), order=order)
    fixture.model.begin_step()
    for rank, x in enumerate([1.0, 3.0]):
        fixture.open(rank)
        fixture.net(torch.full((1, 2), x)).sum().backward()
        assert fixture.net.weight.grad.tolist() == [[x, x]]
        assert fixture.close()
    fixture.finish(None)
    assert fixture.net.weight.grad.tolist() == [[2.0, 2.0]]
    assert fixture.net.bias.grad.tolist() == [1.0]
    assert fixture.net.weight.grad.data_ptr() % 64 == 0


@pytest.mark.parametrize("order", ["ddp", "tree"])
def test_gradients_that_were_not_cleared_are_part_of_every_turn(order: Order) -> None:
    """Stock DDP accumulates into `.grad` on every rank and averages the whole."""
    fixture = Fixture(nn.Linear(1, 1, bias=False), order=order)
    fixture.net.weight.grad = base = torch.tensor([[10.0]])
    fixture.model.begin_step()
    for rank, x in enumerate([1.0, 3.0]):
        fixture.open(rank)
        fixture.net(torch.full((1, 1), x)).sum().backward()
        fixture.close()
    fixture.finish(None)
    assert fixture.net.weight.grad is base
    assert base.tolist() == [[12.0]]


def test_the_order_of_readiness_is_worker_zeros_first() -> None:
    fixture = Fixture()
    for rank in (1, 0):
        fixture.model.begin_step()
        fixture.open(rank)
        fixture.loss().backward()
        fixture.close()
    order = fixture.model.ready_order
    assert order is not None
    assert sorted(order) == [0, 1, 2, 3]
    assert {order[0], order[1]} == {2, 3}  # the last layer is ready first


def test_accumulated_backwards_are_not_synchronised() -> None:
    fixture = Fixture(nn.Linear(1, 1, bias=False), n=1)
    fixture.model.begin_step()
    fixture.open()
    fixture.turn.accumulating = True
    fixture.net(torch.ones(1, 1)).sum().backward()
    fixture.turn.accumulating = False
    fixture.net(torch.ones(1, 1)).sum().backward()
    assert fixture.close()
    fixture.finish(None)
    assert fixture.net.weight.grad.tolist() == [[2.0]]


def test_unused_parameters_add_zeros_or_stay_untouched() -> None:
    fixture = Fixture(find_unused_parameters=True)
    fixture.net.first.bias.requires_grad_()
    fixture.model.begin_step()
    for rank in range(2):
        fixture.open(rank)
        fixture.net(torch.ones(1, 2))
        used = fixture.net.first.weight.sum() if rank == 0 else fixture.net.second.weight.sum()
        used.backward()
        fixture.close()
    assert fixture.model.used == {0: [True, False, False, False], 1: [False, False, True, False]}
    fixture.finish([True, False, True, False])
    assert fixture.net.first.weight.grad.unique().tolist() == [0.5]
    assert fixture.net.second.weight.grad.unique().tolist() == [0.5]
    assert fixture.net.first.bias.grad is None
    assert fixture.net.second.bias.grad is None


def backward(f: Fixture) -> None:
    f.loss().backward()


def backward_twice(f: Fixture) -> None:
    backward(f)
    backward(f)


def accumulate_only(f: Fixture) -> None:
    f.turn.accumulating = True
    backward(f)


def around_forward(f: Fixture) -> None:
    f.net.second(f.net.first(torch.ones(1, 2))).sum().backward()


def unused_layer(f: Fixture) -> None:
    f.net(torch.ones(1, 2))
    f.net.second(torch.ones(1, 3)).sum().backward()


def scaled_in_place(f: Fixture) -> None:
    backward(f)
    f.net.first.weight.grad.mul_(0.5)


def replaced(f: Fixture) -> None:
    backward(f)
    f.net.first.weight.grad = None
    f.net.first.weight.grad = torch.ones(3, 2)  # may get the id of the one that just died


def cleared(f: Fixture) -> None:
    backward(f)
    f.net.second.bias.grad = None


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda f: f.loss(), "without backward"),
        (backward_twice, "more than once"),
        (accumulate_only, "step.accumulate"),
        (around_forward, "not built by calling the model"),
        (unused_layer, "2 parameters of Net got no gradient (first: first.weight)"),
        (scaled_in_place, ".grad of first.weight was altered"),
        (replaced, ".grad of first.weight was altered"),
        (cleared, ".grad of second.bias was altered"),
    ],
)
def test_a_broken_rule_is_named_when_the_turn_ends(act: Callable[[Fixture], Any], words: str) -> None:
    fixture = Fixture()
    fixture.model.begin_step()
    fixture.open(1)
    act(fixture)
    with pytest.raises(TurnRuleError) as caught:
        fixture.model.close_turn(1)
    assert words in str(caught.value)
    assert caught.value.logical_rank == 1


def test_a_turn_without_the_model_takes_no_part() -> None:
    fixture = Fixture()
    fixture.net.first.weight.grad = base = torch.ones(3, 2)
    fixture.model.begin_step()
    fixture.open()
    assert not fixture.close()
    fixture.model.abandon()
    assert fixture.net.first.weight.grad is base
    assert fixture.net.second.weight.grad is None


def test_freezing_later_is_refused() -> None:
    fixture = Fixture()
    fixture.net.second.bias.requires_grad_(False)
    with pytest.raises(TurnRuleError, match=r"first: second\.bias"):
        fixture.model.begin_step()


def test_frozen_parameters_are_left_out() -> None:
    net = Net()
    net.first.requires_grad_(False)
    assert Fixture(net).model.param_names == ["second.weight", "second.bias"]


def test_a_second_forward_with_moving_buffers_is_refused() -> None:
    fixture = Fixture(nn.BatchNorm1d(2))
    fixture.model.begin_step()
    fixture.open()
    fixture.net(torch.randn(3, 2))
    with pytest.raises(TurnRuleError, match="second forward"):
        fixture.net(torch.randn(3, 2))
    with pytest.raises(TurnRuleError, match="no_grad"), torch.no_grad():
        fixture.net(torch.randn(3, 2))


def test_a_second_forward_is_fine_where_buffers_do_not_move() -> None:
    for fixture in (Fixture(nn.BatchNorm1d(2), broadcast_buffers=False, n=1), Fixture(nn.Linear(2, 2), n=1)):
        fixture.model.begin_step()
        fixture.open()
        (fixture.net(torch.randn(3, 2)) + fixture.net(torch.randn(3, 2))).sum().backward()
        assert fixture.close()


def test_forward_outside_turns_is_not_watched() -> None:
    fixture = Fixture(nn.BatchNorm1d(2))
    fixture.net(torch.randn(3, 2))
    fixture.net(torch.randn(3, 2)).sum().backward()
    assert fixture.model.backward_outside()


def test_buffers_of_ones_own_must_not_change_outside() -> None:
    fixture = Fixture(nn.BatchNorm1d(2), broadcast_buffers=False)
    fixture.net.running_mean.fill_(3.0)
    with pytest.raises(TurnRuleError, match="outside turns"):
        fixture.model.begin_step()


def test_a_closed_model_is_the_users_again() -> None:
    fixture = Fixture()
    fixture.model.close()
    backward(fixture)
    assert not fixture.model.backward_outside()
    assert not fixture.net._forward_pre_hooks


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (lambda: nn.Sequential(nn.Linear(1, 1), nn.SyncBatchNorm(1)), "SyncBatchNorm"),
        (lambda: nn.Sequential(nn.Embedding(2, 2, sparse=True)), "sparse"),
        (lambda: nn.EmbeddingBag(2, 2, sparse=True), "sparse"),
        (lambda: nn.Linear(1, 1).requires_grad_(False), "no parameter requires a gradient"),
        (nn.ReLU, "no parameter requires a gradient"),
    ],
)
def test_models_that_ddp_would_treat_otherwise_are_refused(module: Callable[[], nn.Module], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Fixture(module())

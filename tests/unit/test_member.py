"""An executor's side of the protocol, without a coordinator: orders in, state and reports out."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from isoscale.core.reduction.exchange import ExchangeBrokenError
from isoscale.protocol import messages as m
from isoscale.runtime.executor.member import Leaving, Member
from isoscale.types import Settings

ORDER: dict[str, Any] = {"generation": 1, "shares": (2, 2), "members": (0, 1), "index": 0, "store": "store"}


class Sent:
    """Stands for the link."""

    def __init__(self) -> None:
        self.messages: list[m.FromExecutor] = []

    def send(self, message: m.FromExecutor) -> None:
        self.messages.append(message)

    def lost_for(self) -> float:
        return 0.0


def member() -> Any:
    one: Any = Member(0, Settings(), "127.0.0.1")
    one.link = Sent()
    return one


def test_a_first_group_that_cannot_form_breaks_in_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """An executor may die between the order to begin and the group: no reason for the script of another to fail."""
    one = member()

    def connect(order: m.Begin) -> None:
        raise ExchangeBrokenError("somebody did not come")

    monkeypatch.setattr(one, "_connect", connect)
    exchange = one.begin(m.Begin(**ORDER))
    assert exchange.broken
    assert exchange.placement.shares == (2, 2)
    assert one.state == "member"
    for call in (
        lambda: exchange.start_sum_int64(torch.zeros(1)),
        lambda: exchange.submit(lambda: None),
        lambda: exchange.gather_bytes(b""),
        lambda: exchange.broadcast([torch.zeros(1)], 0),
    ):
        with pytest.raises(ExchangeBrokenError):
            call()
    exchange.retire(None)


def test_only_newer_generations_are_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    one, formed = member(), []
    monkeypatch.setattr(one, "_form", lambda prepared: formed.append(prepared.order.generation))
    for generation in (3, 2, 3, 4):
        one.on_message(m.Prepare(**{**ORDER, "generation": generation}))
    assert formed == [3, 4]
    assert one._prepared.order.generation == 4


def test_an_order_to_switch_counts_for_the_generation_that_is_prepared_only(monkeypatch: pytest.MonkeyPatch) -> None:
    one = member()
    monkeypatch.setattr(one, "_form", lambda prepared: None)
    one.on_message(m.Switch(generation=3))
    assert one._switch is None
    one.on_message(m.Prepare(**{**ORDER, "generation": 3}))
    one.on_message(m.Switch(generation=2))
    assert one._switch is None
    one.on_message(m.Switch(generation=3))
    assert one._switch is not None
    one.on_message(m.Prepare(**{**ORDER, "generation": 4}))
    assert one._switch is None


def test_a_recovery_of_the_past_is_ignored_and_a_new_one_drops_what_was_prepared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = member()
    monkeypatch.setattr(one, "_form", lambda prepared: None)
    one.generation = 5
    one.on_message(m.Prepare(**{**ORDER, "generation": 6}))
    one.on_message(m.Recover(**{**ORDER, "generation": 5}))
    assert one._recover is None
    one.on_message(m.Recover(**{**ORDER, "generation": 7}))
    assert one._recover.generation == 7
    assert one._prepared is None
    one.on_message(m.Prepare(**{**ORDER, "generation": 6}))
    assert one._prepared is None, "an order that a recovery has overtaken"


def test_whoever_waits_and_is_told_to_leave_leaves() -> None:
    one = member()
    one.on_message(m.Leave(reason="scale in"))
    with pytest.raises(Leaving, match="scale in"):
        one.wait_to_begin()
    assert not isinstance(Leaving("x"), Exception)  # scripts that catch exceptions let it pass


def test_a_group_that_cannot_form_does_not_hold_up_a_newer_recovery(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another executor dies while survivors form a group with it: gloo would wait for it until its time limit."""
    one, first, never = member(), m.Recover(**ORDER), threading.Event()
    monkeypatch.setattr(one, "_connect", lambda order: never.wait(60))
    one._recover = first
    found: list[Any] = []
    survivor = threading.Thread(target=lambda: found.append(one._connect_unless_newer(first)), daemon=True)
    survivor.start()
    one.on_message(m.Recover(**ORDER | {"generation": 2, "shares": (4,), "members": (0,)}))
    survivor.join(30)
    assert found == [None]
    never.set()

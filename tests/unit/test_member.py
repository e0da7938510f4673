"""An executor's side of the protocol, without a coordinator: the shell around its state machine."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from isoscale.core.engine import SuspectedError
from isoscale.core.reduction.exchange import ExchangeBrokenError, LocalExchange
from isoscale.core.rules import Turn
from isoscale.core.seal import Sealed
from isoscale.core.totals import Tally, combine
from isoscale.protocol import messages as m
from isoscale.runtime.executor.instructions import Pause
from isoscale.runtime.executor.member import Leaving, Member
from isoscale.runtime.executor.orders import Orders
from isoscale.runtime.training.on_main import MainObjects
from isoscale.types import JobSpec, Settings

ORDER: dict[str, Any] = {"generation": 1, "shares": (2, 2), "members": (0, 1), "index": 0, "store": "store"}
ALONE: dict[str, Any] = {"shares": (4,), "members": (0,), "index": 0, "store": "store"}
HELLO = m.Hello(executor=0, pid=1, kind="cpu", fingerprint="f", kernels={}, factors={})


class Sent:
    """Stands for the link."""

    def __init__(self) -> None:
        self.messages: list[m.FromExecutor] = []

    def send(self, message: m.FromExecutor) -> None:
        self.messages.append(message)

    def lost_for(self) -> float:
        return 0.0


class Guard:
    """Stands before the state machine, and lets nobody in who does not hold the lock."""

    def __init__(self, orders: Orders) -> None:
        self.__dict__.update(_inside=orders._state, _lock=orders._changed)

    def __getattr__(self, name: str) -> Any:
        self._check(name)
        return getattr(self.__dict__["_inside"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._check(name)
        setattr(self.__dict__["_inside"], name, value)

    def _check(self, name: str) -> None:
        assert self.__dict__["_lock"]._is_owned(), f"{name} of the state machine without its lock"


class Engine:
    """Of a loop, what a switch or a recovery touches."""

    def __init__(self) -> None:
        self.exchange: Any = LocalExchange(4)
        self.peers: Any = None
        self.audit_sample: Any = None
        self.last_vector = None
        self.seals = 0

    def use(self, exchange: Any) -> None:
        self.exchange = exchange


class Loop:
    step = 0
    audit_at = -1
    is_main = True
    spec = JobSpec(workers=4)
    elastic: Any = None
    pace: Any = None

    def __init__(self) -> None:
        self.engine = Engine()
        self.main_objects = MainObjects(
            Path(), Turn(), is_main=lambda: self.is_main, step=lambda: self.step, warn=lambda message: None
        )

    def at_end(self) -> bool:
        return False

    def audit_after_recovery(self, newest: int) -> None:
        self.audit_at = newest + 1

    def is_at_last_place(self) -> bool:
        return False


class Writer:
    """Nobody wants a checkpoint."""

    def arrive(self, *args: object) -> bool:
        return False

    def wants(self, loop: object) -> bool:
        return False

    def ask(self, *args: object, **options: object) -> None:
        pass


def member() -> Any:
    one: Any = Member(0, Settings(), "127.0.0.1")
    one.link, one.writer, one.hello = Sent(), Writer(), HELLO
    one.orders._state = Guard(one.orders)
    return one


def formed(one: Any, generation: int) -> None:
    """Until the thread that forms its group is done."""
    one.orders.wait(lambda state: state.incoming() if state.next.order.generation == generation else None)


def test_the_state_machine_is_used_under_its_lock_only() -> None:
    """A life of one executor, with its threads: it begins, switches, recovers, holds for a plan, leaves."""
    one, loop = member(), Loop()
    loader: Any = None
    one.on_message(m.Begin(generation=1, **ALONE))
    loop.engine.exchange = one.begin(one.wait_to_begin())
    one.attach(loop)
    one.arrive(loop, loader)
    seal = Sealed(combine(Tally().values()), False, (), False)
    loop.step = 1
    one.sealed(loop, seal)
    one.on_message(m.Prepare(generation=2, **ALONE))
    formed(one, 2)
    assert not one.ready(loop)
    one.on_message(m.Switch(generation=2))
    assert one.ready(loop)
    loop.step = 2
    one.sealed(loop, Sealed(seal.values, False, (), all_ready=True))
    before = loop.engine.exchange
    one.arrive(loop, loader)
    assert one.generation == 2
    assert loop.engine.exchange is not before
    one.on_message(m.Recover(generation=3, hold_at=2, **ALONE))
    recovery = one.recoveries.recover(SuspectedError(0, "gradients differ"))
    loop.engine.use(recovery.exchange)
    assert (one.generation, one.members, one.state, one.step) == (3, (0,), "member", 2)
    one.on_message(m.Prepare(generation=4, **ALONE))
    formed(one, 4)
    one.on_message(m.Switch(generation=4, at_step=2))
    one.arrive(loop, loader)  # all hold at step 2, and go over there
    assert one.rejoin().generation == 4
    one.on_message(m.Leave(reason="scale in"))
    with pytest.raises(Leaving, match="scale in"):
        one.arrive(loop, loader)
    one.on_refused("gone")
    one.finish(m.Finished(executor=0, step=2, digest="d", stop_reason=""))
    one.wait_dismissed(lambda: None)
    said = [type(message).__name__ for message in one.link.messages]
    assert said == [
        "Sealed",
        "Prepared",
        "Switched",
        "Suspect",
        "Switched",
        "Prepared",
        "Sealed",
        "Switched",
        "Finished",
    ]


@pytest.mark.parametrize("use", [lambda state: state.next, lambda state: setattr(state, "leave", "now")])
def test_the_guard_sees_a_use_without_the_lock(use: Callable[[Any], object]) -> None:
    one = member()
    with pytest.raises(AssertionError, match="without its lock"):
        use(one.orders._state)


def test_a_first_group_that_cannot_form_breaks_in_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """An executor may die between the order to begin and the group: no reason for the script of another to fail."""
    one = member()

    def connect(order: m.Begin) -> None:
        raise ExchangeBrokenError("somebody did not come")

    monkeypatch.setattr(one.orders, "connect", connect)
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


def test_a_group_that_is_formed_too_late_is_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recovery has overtaken the order meanwhile."""
    one, late, broken = member(), threading.Event(), threading.Event()

    class Late(LocalExchange):
        placement: Any

        def break_off(self) -> None:
            broken.set()

    def connect(order: m.Prepare) -> Any:
        late.wait(30)
        exchange = Late(4)
        exchange.placement = exchange.placement.even(4, 2)
        return exchange

    monkeypatch.setattr(one.orders, "connect", connect)
    one.on_message(m.Prepare(**ORDER | {"generation": 2}))
    one.on_message(m.Recover(**ORDER | {"generation": 3}))
    late.set()
    assert broken.wait(30)
    assert one.link.messages == []
    assert one.orders.formed(2) is None


def test_a_group_that_cannot_be_formed_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    one = member()

    def connect(order: m.Prepare) -> Any:
        raise ExchangeBrokenError("somebody did not come")

    monkeypatch.setattr(one.orders, "connect", connect)
    one.on_message(m.Prepare(**ORDER | {"generation": 2}))
    one.orders.wait(lambda state: True if state.next is None else None)
    assert one.link.messages == [m.Broken(generation=2, reason="somebody did not come")]


def test_whoever_waits_and_is_told_to_leave_leaves() -> None:
    one = member()
    one.on_message(m.Leave(reason="scale in"))
    with pytest.raises(Leaving, match="scale in"):
        one.wait_to_begin()
    assert not isinstance(Leaving("x"), Exception)  # scripts that catch exceptions let it pass


def test_a_group_that_cannot_form_does_not_hold_up_a_newer_recovery(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another executor dies while survivors form a group with it: gloo would wait for it until its time limit."""
    one, first, never = member(), m.Recover(**ORDER), threading.Event()
    monkeypatch.setattr(one.orders, "connect", lambda order: never.wait(60))
    one.on_message(first)
    found: list[Any] = []
    survivor = threading.Thread(target=lambda: found.append(one.recoveries.connect_unless_newer(first)), daemon=True)
    survivor.start()
    one.on_message(m.Recover(**ORDER | {"generation": 2, "shares": (4,), "members": (0,)}))
    survivor.join(30)
    assert found == [None]
    never.set()


def test_groups_of_the_past_are_forgotten() -> None:
    one = member()
    one.begin(m.Begin(generation=1, **ALONE))
    one.on_message(m.Prepare(generation=2, **ALONE))
    formed(one, 2)
    order = one.orders.ask(lambda state: state.next.order)
    one.orders.tell(lambda state: state.switched(order, Pause(0.0, 0.0)))
    assert one.orders.formed(1) is None
    assert one.orders.formed(2) is not None

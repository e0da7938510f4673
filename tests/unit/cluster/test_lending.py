"""Devices that go and come back: book, database and driver speak of the same ones."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from isoscale.cluster.auth import Caller, ConflictError
from isoscale.cluster.service import Configuration, Service
from isoscale.cluster.values import Reclaim
from isoscale.errors import UserError

OPERATOR = Caller(token=1, name="o", role="operator", tenant="")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    opened = Service(Configuration(state=tmp_path / "state", devices="cpu*12"))
    opened.open()
    yield opened
    opened.close()


def away(service: Service) -> set[str]:
    return {device for gone in service.store.away().values() for device in gone}


def settled(service: Service) -> None:
    """Until the engine has done all that it was asked for."""
    for _ in range(2):  # the answer to the second comes after the turn of the first
        done = threading.Event()
        service._engine.ask(lambda engine, done=done: done.set() or [])  # type: ignore[misc]
        assert done.wait(10)


def test_the_devices_that_are_lent_are_those_that_jobs_get(service: Service) -> None:
    service.reclaim(OPERATOR, "local", 12, None)
    for count in (3, 1, 5):
        service.lend(OPERATOR, "local", count)
        settled(service)
        free = set(service._driver.free_devices(0))
        everything = set(service._engine.device_names[0])
        assert away(service) == service._engine.away == everything - free


def test_devices_that_are_named_are_lent_and_no_others(service: Service) -> None:
    service.reclaim(OPERATOR, "local", 12, None)
    everything = service._engine.device_names[0]
    named = (everything[10], everything[3])
    service.lend(OPERATOR, "local", 0, named)
    settled(service)
    assert set(service._driver.free_devices(0)) == set(named) == {*everything} - away(service)
    for wrong, said in ((named[:1], "is not away"), (("local/cpu/99",), "no such device"), (everything[:1], "named")):
        count = 2 if said == "named" else 0
        with pytest.raises(UserError, match=said):
            service.lend(OPERATOR, "local", count, tuple(wrong))
    settled(service)
    assert set(service._driver.free_devices(0)) == set(named), "what was refused has changed nothing"


def test_named_devices_that_were_away_when_the_service_came(tmp_path: Path) -> None:
    for number in range(2):
        opened = Service(Configuration(state=tmp_path / "state", devices="cpu*4"))
        opened.open()
        if not number:
            opened.reclaim(OPERATOR, "local", 3, None)
        else:
            opened.reclaim(OPERATOR, "local", 1, None)
            opened.lend(OPERATOR, "local", 2, ("local/cpu/3", "local/cpu/1"))
            settled(opened)
            assert set(opened._driver.free_devices(0)) == {"local/cpu/1", "local/cpu/3"}
        opened.close()


def test_two_who_lend_at_once_do_not_lend_the_same(service: Service) -> None:
    service.reclaim(OPERATOR, "local", 3, None)

    def lend(_: int) -> bool:
        try:
            service.lend(OPERATOR, "local", 2)
        except UserError:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(lend, range(4))) == 1
    settled(service)
    assert len(away(service)) == 1
    assert len(service._driver.free_devices(0)) == 11


def test_who_waits_for_devices_hears_that_the_service_ends(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = threading.Event()
    monkeypatch.setattr(service._engine, "post", lambda message: asked.set())
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(service.reclaim, OPERATOR, "local", 2, None)
        assert asked.wait(10)
        service.begin_closing()
        with pytest.raises(ConflictError, match="the service ends"):
            waiting.result(10)
    with pytest.raises(ConflictError, match="the service ends"):
        service.reclaim(OPERATOR, "local", 2, None)


def test_a_reclaim_outlives_the_service_that_was_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configuration = Configuration(state=tmp_path / "state", devices="cpu*3")
    first = Service(configuration)
    first.open()
    asked = threading.Event()
    # It is on record, and dies before any job hears of it.
    monkeypatch.setattr(first._engine, "post", lambda message: asked.set())
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(first.reclaim, OPERATOR, "local", 2, 30.0, key="mine")
        assert asked.wait(10)
        first.close()
        with pytest.raises(ConflictError, match="the service ends"):
            waiting.result(10)
    second = Service(configuration)
    second.open()
    try:
        settled(second)
        assert away(second) == {"local/cpu/0", "local/cpu/1"}
        assert second.store.open_reclaims() == []
        # The same call again is the same reclaim, another one is another.
        done = second.reclaim(OPERATOR, "local", 2, 30.0, key="mine")
        assert done.devices == ("local/cpu/0", "local/cpu/1")
        assert not done.late
        assert len(away(second)) == 2
        with pytest.raises(ConflictError, match="was given for 2 devices of local"):
            second.reclaim(OPERATOR, "local", 1, None, key="mine")
        assert second.reclaim(OPERATOR, "local", 1, None, key="yours").devices == ("local/cpu/2",)
    finally:
        second.close()


@pytest.mark.parametrize(
    ("boot", "within_s", "is_late"), [("this", 1e4, False), ("this", 1.0, True), ("other", 1e4, True)]
)
def test_the_deadline_of_a_reclaim_is_by_a_clock_that_nobody_sets(
    service: Service, boot: str, within_s: float, is_late: bool
) -> None:
    """What is left of it, however the machine's clock was set; nothing after a restart of the machine."""
    from isoscale.clock import since_boot

    one = Reclaim(
        id="r",
        node="local",
        count=1,
        within_s=within_s,
        by="o",
        boot=service.store.boot if boot == "this" else "another-boot",
        asked_s=since_boot() - 100.0,
    )
    now = service.now()
    deadline = service._lending._deadline(one, now)
    assert (deadline <= now) == is_late
    assert deadline <= now + within_s - 100.0 + 1.0 or is_late


@pytest.mark.parametrize("jump_s", [-400 * 86_400.0, 400 * 86_400.0])
def test_a_clock_that_is_set_makes_nobody_late(
    service: Service, monkeypatch: pytest.MonkeyPatch, jump_s: float
) -> None:
    before, real = service.now(), time.time
    monkeypatch.setattr(time, "time", lambda: real() + jump_s)
    assert 0 <= service.now() - before < 60
    done = service.reclaim(OPERATOR, "local", 2, 30.0)
    assert not done.late
    assert 0 <= done.seconds < 30
    assert 0 <= service.picture().t - before < 60

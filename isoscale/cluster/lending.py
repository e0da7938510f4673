"""Devices that go to their owner and come back. What was asked for is on record: whoever serves next carries it out.

A reclaim is a row from when it is asked for until its devices are free, with its deadline by a clock that nobody sets:
a service that begins with open ones asks the driver again, for the time that is left. Asked with a key, the same call
may be sent again and waits for the same devices.
"""

from __future__ import annotations

import contextlib
import logging
import math
import sqlite3
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass

from isoscale import limits
from isoscale.clock import since_boot
from isoscale.cluster import faults
from isoscale.cluster.auth import Caller, ConflictError, TooManyError
from isoscale.cluster.desk import node_named
from isoscale.cluster.engine import Engine
from isoscale.cluster.store import Store
from isoscale.cluster.values import Reclaim, check_name
from isoscale.errors import UserError
from isoscale.scheduling.driving import (
    DeviceFailed,
    DeviceRepaired,
    DevicesLent,
    Happening,
    ReclaimAsked,
    ReturnDevices,
)
from isoscale.scheduling.state import Cluster

__all__ = ["Lending", "Reclaimed"]

_log = logging.getLogger(__name__)

#: beyond the deadline, until whoever waits is told that it is not kept
_PATIENCE_S = 60.0
_LEND_S = 10.0
_MAX_WAITING = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Reclaimed:
    devices: tuple[str, ...]
    seconds: float
    #: work that was thrown away, in seconds of training
    abandoned_s: float
    late: bool


class Lending:
    def __init__(self, store: Store, engine: Engine, cluster: Cluster, now: Callable[[], float]) -> None:
        self._store, self._engine, self._cluster, self._now = store, engine, cluster, now
        #: those who wait for an answer, by reclaim
        self._answers: dict[str, Future[Reclaimed]] = {}
        self._num_waiting: dict[str, int] = {}
        self._lock = threading.Lock()
        self._is_closing = False
        #: devices that were away when the service came
        self._away_at_boot: set[str] = set()

    def close(self) -> None:
        """Whoever waits is told that no answer comes."""
        with self._lock:
            self._is_closing = True
            waiting = list(self._answers.values())
        for answer in waiting:
            with contextlib.suppress(InvalidStateError):
                answer.set_exception(ConflictError("the service ends before the devices are free; ask the next one"))

    # ---- taking up what an earlier service left ----

    def resume(self, now: float) -> list[Happening]:
        """Before anything is scheduled: devices that are away, and those that somebody waits for."""
        engine = self._engine
        names = {device for node in engine.device_names for device in node}
        self._away_at_boot = {device for gone in self._store.away().values() for device in gone} & names
        engine.away.update(self._away_at_boot)
        events: list[Happening] = [DeviceFailed(device, "away") for device in sorted(self._away_at_boot)]
        nodes = {node.name: number for number, node in enumerate(self._cluster.nodes)}
        for one in self._store.open_reclaims():
            if one.node in nodes:
                events.append(ReclaimAsked(one.id, nodes[one.node], one.count, self._deadline(one, now)))
                continue
            _log.warning("reclaim %s: there is no node %s any more", one.id, one.node)
            with self._store.write(now=now) as tx:
                tx.end_reclaim(one.id, (), self._age(one), 0.0, late=False)
                tx.event("devices_returned", reclaim=one.id, devices=(), reason=f"there is no node {one.node} any more")
        return events

    def _deadline(self, one: Reclaim, now: float) -> float:
        return math.inf if one.within_s is None else now + max(0.0, one.within_s - self._age(one))

    def _age(self, one: Reclaim) -> float:
        """After a restart of the system nobody knows: all of its time is over."""
        if one.boot != self._store.boot:
            return one.within_s or 0.0
        return max(0.0, since_boot() - one.asked_s)

    # ---- lending ----

    def lend(self, caller: Caller, node: str, count: int, devices: tuple[str, ...] = ()) -> None:
        """Devices that were reclaimed are the service's again: these if some are named, else the first ones."""
        number = node_named(self._engine.picture, node)
        count = count or len(set(devices))
        limits.within(count, "COUNT", limits.EXECUTORS)
        if devices and len(set(devices)) != count:
            problem, remedy = f"{len(set(devices))} devices are named", "name as many, or leave COUNT out"
            raise UserError(field="COUNT", value=count, problem=problem, remedy=remedy)
        done: Future[None] = Future()

        def give(engine: Engine) -> list[Happening]:
            """In the engine's thread: two who lend at once, or one while devices come back, do so in order."""
            # In the order of the driver, which gives back the first ones: names sort otherwise from the tenth on.
            away = [device for device in engine.device_names[number] if device in engine.away]
            if wrong := [device for device in devices if device not in away]:
                is_here = wrong[0] in engine.device_names[number]
                problem = f"is not away from {node}" if is_here else f"{node} has no such device"
                remedy = "name some that are away; see isoscale devices"
                done.set_exception(UserError(field="--device", value=wrong[0], problem=problem, remedy=remedy))
                return []
            if count > len(away):
                problem, remedy = f"{len(away)} of its devices are away", "give at most as many; see isoscale devices"
                done.set_exception(UserError(field="COUNT", value=count, problem=problem, remedy=remedy))
                return []
            given = [device for device in away if device in devices] if devices else away[:count]
            try:
                with self._store.write(now=self._now(), by=caller.name) as tx:
                    tx.set_away(node, [device for device in away if device not in given])
                    tx.event("devices_lent", node=node, devices=given)
            except sqlite3.OperationalError as error:
                done.set_exception(error)
                return []
            engine.away.difference_update(given)
            done.set_result(None)
            return self._returning(number, given)

        self._engine.call(give)
        try:
            done.result(_LEND_S)
        except FutureTimeout:
            raise ConflictError(f"{node}: the service does not get to it; see isoscale devices") from None

    def _returning(self, node: int, devices: list[str]) -> list[Happening]:
        """In the driver's words: those that were away at the start count as broken, others as given back."""
        broken = [device for device in devices if device in self._away_at_boot]
        self._away_at_boot.difference_update(broken)
        events: list[Happening] = [DeviceRepaired(device) for device in broken]
        rest = tuple(device for device in devices if device not in broken)
        return [*events, DevicesLent(node, len(rest), rest)] if rest else events

    # ---- reclaiming ----

    def reclaim(
        self, caller: Caller, node: str, count: int, within_s: float | None, *, force: bool, key: str
    ) -> Reclaimed:
        """Returns when they are free. Raises UserError, ConflictError if they are not in time."""
        check_name("key", key, empty=True)
        limits.within(count, "COUNT", limits.EXECUTORS)
        if within_s is not None:
            limits.within(within_s, "within", limits.Range(0.1, 86_400.0))
        name = f"{caller.token}-{key}" if key else uuid.uuid4().hex[:12]
        number = node_named(self._engine.picture, node)
        if (known := self._store.reclaim(name)) is None:
            self._check(number, node, count, within_s, force=force)
        answer = self._wait_for(name)
        try:
            # Again, now that nothing is missed: it may have been answered in between.
            known = self._store.reclaim(name)
            if known is None:
                self._ask(caller, name, number, node, count, within_s)
            elif (known.node, known.count) != (node, count):
                raise ConflictError(f"key={key}: was given for {known.count} devices of {known.node}; give another")
            elif known.seconds is not None:
                return _answer(known)
            return answer.result(None if within_s is None else within_s + _PATIENCE_S)
        except FutureTimeout:
            raise ConflictError(f"{node}: {count} devices are not free in time; see isoscale devices") from None
        finally:
            with self._lock:
                self._num_waiting[name] -= 1
                if not self._num_waiting[name]:  # the same call may have been sent again meanwhile
                    del self._answers[name], self._num_waiting[name]

    def _check(self, number: int, node: str, count: int, within_s: float | None, *, force: bool) -> None:
        shown = self._engine.picture.nodes[number]
        ours = len(shown.devices) - len(shown.away)
        if count > ours:
            problem = f"{node} has {ours} that are the service's"
            raise UserError(field="COUNT", value=count, problem=problem, remedy="give at most as many")
        if within_s is not None and not force and (loss := self._engine.loss(number, ours - count, within_s)):
            raise ConflictError(f"{node}: {loss}; give more time, or --force to consent")

    def _wait_for(self, name: str) -> Future[Reclaimed]:
        with self._lock:
            if self._is_closing:
                raise ConflictError("the service ends; ask the next one")
            if name not in self._answers and len(self._answers) >= _MAX_WAITING:
                # Each has a thread, of which answers to others need some.
                raise TooManyError(f"{_MAX_WAITING} calls wait for devices already; wait until some have theirs")
            self._num_waiting[name] = self._num_waiting.get(name, 0) + 1
            return self._answers.setdefault(name, Future())

    def _ask(self, caller: Caller, name: str, number: int, node: str, count: int, within_s: float | None) -> None:
        one = Reclaim(
            id=name,
            node=node,
            count=count,
            within_s=within_s,
            by=caller.name,
            boot=self._store.boot,
            asked_s=since_boot(),
        )
        now = self._now()
        with self._store.write(now=now, by=caller.name) as tx:
            if tx.reclaim(name) is not None:
                return  # the same call, twice at once
            tx.add_reclaim(one)
            tx.event("reclaim_asked", node=node, count=count, within_s=within_s, reclaim=name)
        faults.reached("reclaim-asked")
        self._engine.post(ReclaimAsked(name, number, count, math.inf if within_s is None else now + within_s))

    def on_returned(self, returned: ReturnDevices) -> None:
        """In the engine's thread: on record before anybody is told."""
        faults.reached("reclaim-free")
        away, one = self._engine.away, self._store.reclaim(returned.reclaim)
        seconds = self._age(one) if one is not None else 0.0

        def write() -> None:
            with self._store.write(now=self._now()) as tx:
                for node, names in zip(self._cluster.nodes, self._engine.device_names, strict=True):
                    gone = sorted(away & set(names))
                    if set(gone) & set(returned.devices):
                        tx.set_away(node.name, gone)
                tx.end_reclaim(returned.reclaim, returned.devices, seconds, returned.abandoned_s, late=returned.is_late)
                tx.event("devices_away", devices=returned.devices, reclaim=returned.reclaim)

        self._engine.persist(write)
        with self._lock:
            answer = self._answers.get(returned.reclaim)
        if answer is not None and (done := self._store.reclaim(returned.reclaim)) is not None:
            with contextlib.suppress(InvalidStateError):
                answer.set_result(_answer(done))


def _answer(one: Reclaim) -> Reclaimed:
    return Reclaimed(
        devices=one.devices, seconds=round(one.seconds or 0.0, 6), abandoned_s=one.abandoned_s, late=one.late
    )

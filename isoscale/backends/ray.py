"""A Ray cluster as a backend: an actor for each executor, on the node that the device belongs to.

Ray gives nodes, resources and placement; everything else is this project's own. Actors are detached, so executors
outlive their coordinator, and have names, by which the next one finds them. A thread looks at the nodes once a second:
one that drains is a notice to leave, one that is gone takes its devices with it. Ray notices the loss of a node late:
executors' own heartbeats count, this only adds to them. Where the cluster has an autoscaler, a device that is not there
yet is one to wait for. Calls that wait for Ray's head are made in threads: while it is away a coordinator goes on. Only
modules of this name import Ray.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import logging
import math
import secrets
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
import ray.exceptions

from isoscale import env
from isoscale.backends.ray_actors import Conditions, ExecutorActor
from isoscale.backends.ray_demand import REPEAT_S
from isoscale.backends.ray_found import ask_for, lives, named_actor, on_node
from isoscale.backends.ray_look import Seen, look
from isoscale.backends.ray_nodes import Demand, Offer
from isoscale.backends.ray_process import RayProcess, answer
from isoscale.backends.ray_spare import Spare
from isoscale.backends.ray_warm import WarmNodes
from isoscale.backends.seam import Device, DeviceGone, DeviceLeaving, Identity, Launch, Notice
from isoscale.errors import IsoscaleError, StartError

__all__ = ["RayBackend"]

#: an actor whose node has no room waits for ever; importing torch may take minutes on a busy node
_START_S = 180.0
_LOOK_S = 1.0
#: how long an autoscaler may take to add a node
_COMING_S, _POLL_S = 600.0, 0.2
#: an autoscaler is known only when it has begun, which takes it some seconds: for so long a cluster may have no device
_GRACE_S = 30.0
#: the node of a device that is not there yet
_COMING = "coming"

_log = logging.getLogger(__name__)


class RayBackend:
    """Used after `ray_connection.connect`."""

    def __init__(self, prepare: str, demand: Demand, *, brings: bool = False, warm: bool = True) -> None:
        """`prepare`: "module:function" for warm parents, from which processes are forked if `warm`.

        `brings`: this process has a directory that Ray brings to every node, where processes then work; else they
        work in the coordinator's, which all nodes have.
        """
        self._demand = demand
        self._warm = WarmNodes(prepare) if warm else None
        self._spare = Spare()
        self._brings = brings
        self._listeners: list[Callable[[Notice], None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._told: set[str] = set()
        #: those that were started or found here, and devices that are about to be used
        self._running: list[RayProcess] = []
        self._claimed: set[str] = set()
        #: starts that wait for a node
        self._coming = 0
        self._over = threading.Event()
        self._seen = look(demand)
        self._known = self._seen.devices()

    def devices(self) -> Sequence[Device]:
        return tuple(device for device, _ in self._seen.usable().values())

    def free_device(self, kind: str, taken: Collection[str]) -> Device:
        usable = self._seen.usable()
        free = [found for found in usable.values() if found[0].kind == kind and found[0].id not in taken]
        if not free and (self._seen.can_grow or not usable):
            names = (f"{_COMING}/{kind}/{number}" for number in itertools.count())
            return Device(id=next(name for name in names if name not in taken), kind=kind, node=_COMING)
        if free:  # best where no other job is, which only Ray knows
            return min(free, key=lambda found: not self._seen.has_room(found[1], self._demand))[0]
        raise self._nothing_free(kind, len(taken))

    def _nothing_free(self, kind: str, taken: int) -> StartError:
        usable = self._seen.usable()
        kinds = ", ".join(sorted({device.kind for device, _ in usable.values()})) or "none"
        there = f"the cluster has {len(usable)} devices (kinds: {kinds}), {taken} are taken"
        return StartError(what=kind, reason=f"no device is free: {there}")

    def prepare(self, environment: Mapping[str, str]) -> None:
        if self._warm is not None:
            self._warm.want(environment)
            self._warm.keep(self._stays())

    def _stays(self) -> list[str]:
        """Nodes on which a process may be started."""
        return list(dict.fromkeys(offer.node.id for _, offer in self._seen.usable().values()))

    async def start(self, launch: Launch, device: Device) -> RayProcess:
        if device.node == _COMING:
            device = await self._come(launch, device)
        try:
            process = await self._start(launch, device)
        finally:
            self._claimed.discard(device.id)
        self._running = [one for one in self._running if not one.has_ended] + [process]
        return process

    async def _start(self, launch: Launch, device: Device) -> RayProcess:
        found = self._seen.usable().get(device.id)
        if found is None:
            raise StartError(what=device.id, reason="this device is gone")
        offer = found[1]
        launch = replace(launch, cwd=launch.cwd or Path.cwd(), log=launch.log.absolute(), cores=())
        conditions = Conditions.here()  # of this thread
        # Not a task, which would be cancelled with its loop: what was made would be left.
        making = asyncio.get_running_loop().run_in_executor(None, self._make, launch, device, offer, conditions)
        try:
            async with asyncio.timeout(_START_S):
                actor, asked = await asyncio.shield(making)
                identity = await answer(asked)
        except BaseException as error:
            making.add_done_callback(_unmake)
            if isinstance(error, TimeoutError):
                reason = f"no process in {_START_S:.0f} s; does anybody else use the node?"
                raise StartError(what=device.id, reason=reason) from None
            if isinstance(error, ray.exceptions.RayError | RuntimeError):
                raise _start_error(device, error) from error
            raise
        return RayProcess(identity, actor, launch.log)

    def _make(self, launch: Launch, device: Device, offer: Offer, conditions: Conditions) -> tuple[Any, Any]:
        """An executor's actor, and the call that starts its process. In a thread."""
        directory, met = "", None
        if launch.entry and self._warm is not None:
            directory, met = self._warm.at(offer.node.id, launch.environment)
        actor, name = self._actor(launch, offer)
        calls = () if met is None else (met,)
        asked = actor.start.remote(
            launch, device, conditions, cwd_is_mine=self._brings, name=name, warm=directory, met=calls
        )
        return actor, asked

    def _actor(self, launch: Launch, offer: Offer) -> tuple[Any, str]:
        """Which has, or will have, what an executor takes of this node; and its name."""
        node, room = offer.node, self._demand.room(offer.kind, offer.node.resources)
        if (spare := self._spare.take(node.id)) is not None:
            spare[0].take_room.remote(node.id, room)
            return spare
        name = f"{_run_of(launch)}/{launch.environment.get(env.EXECUTOR, '')}-{secrets.token_hex(4)}"
        options = {**self._demand.options(offer.kind, node.resources), **on_node(node.id, name)}
        return ray.remote(ExecutorActor).options(**options).remote(), name

    def _next_node(self, seen: Seen) -> str:
        """On which the next start will be, where a spare can take what it needs; "" if none has room."""
        offers = [offer for _, offer in seen.usable().values() if seen.has_room(offer, self._demand)]
        nodes = [offer.node.id for offer in offers if self._demand.room(offer.kind, offer.node.resources)]
        return self._spare.node if self._spare.node in nodes else next(iter(nodes), "")

    def lives(self, identity: Identity) -> bool:
        return lives(identity) is True

    def find(self, identity: Identity, log: Path) -> RayProcess | None:
        if not self.lives(identity):
            return None
        process = RayProcess(identity, named_actor(identity.name), log)
        self._running.append(process)
        return process

    def listen(self, listener: Callable[[Notice], None]) -> None:
        self._listeners.append(listener)
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            threading.Thread(target=self._watch, name="ray nodes", daemon=True).start()

    async def close(self) -> None:
        self._over.set()
        await asyncio.to_thread(self._spare.close)

    # ---- nodes ----

    def _watch(self) -> None:
        """In a thread: Ray's calls wait."""
        while not self._over.wait(_LOOK_S):
            try:
                seen = look(self._demand)
            except Exception as error:  # whatever Ray raises while its head is away
                _log.debug("no look at the Ray cluster: %s", error)
                continue
            assert self._loop is not None
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._compare, seen)
            # A node on which anything runs is not idle: an autoscaler would never take it away.
            if self._warm is not None and not seen.can_grow:
                self._warm.keep(self._stays())
                self._spare.keep(self._next_node(seen))

    def _compare(self, seen: Seen) -> None:
        now, self._seen = seen.devices(), seen
        notices: list[Notice] = []
        for name, (_, offer) in self._known.items():
            if name not in now:
                notices.append(DeviceGone(device=name, reason="its Ray node is gone"))
            elif offer.node.id in seen.draining and name not in self._told:
                within_s = seen.draining[offer.node.id]
                notices.append(DeviceLeaving(device=name, within_s=within_s, reason="its Ray node drains"))
                self._told.add(name)
        self._known = now
        for notice in notices:
            for listener in self._listeners:
                listener(notice)

    # ---- an autoscaler ----

    async def _come(self, launch: Launch, wanted: Device) -> Device:
        """Ask for a node, and wait until there is a free device. Raises StartError."""
        asked_s, begun_s = -math.inf, time.monotonic()
        self._coming += 1
        try:
            for _ in range(int(_COMING_S / _POLL_S)):
                busy = {one.identity.device for one in self._running if not one.has_ended} | self._claimed
                for device, offer in self._seen.usable().values():
                    is_free = device.id not in busy and self._seen.has_room(offer, self._demand)
                    if is_free and device.kind == wanted.kind:
                        self._claimed.add(device.id)
                        return device
                if not self._seen.can_grow:
                    if time.monotonic() - begun_s > _GRACE_S:
                        raise self._nothing_free(wanted.kind, len(busy))
                elif time.monotonic() - asked_s > REPEAT_S:
                    asked_s = time.monotonic()
                    bundle = self._demand.bundle(wanted.kind)
                    bundles = [bundle] * (len(busy) + self._coming)
                    await asyncio.to_thread(ask_for, _run_of(launch), bundles)
                await asyncio.sleep(_POLL_S)
        finally:
            self._coming -= 1
        raise StartError(what=wanted.kind, reason=f"no node came in {_COMING_S:.0f} s, though the cluster can grow")


def _unmake(making: asyncio.Future[tuple[Any, Any]]) -> None:
    """End an actor from which nothing came, also one that is made only now."""
    if not making.cancelled() and making.exception() is None:
        with contextlib.suppress(Exception):
            ray.kill(making.result()[0], no_restart=True)


def _run_of(launch: Launch) -> str:
    """By which actors of one run are known."""
    path = launch.environment.get(env.TOKEN_FILE, "")
    return f"isoscale/{hashlib.sha256(path.encode(errors='surrogateescape')).hexdigest()[:12]}"


def _start_error(device: Device, error: Exception) -> StartError:
    cause = getattr(error, "cause", None)
    if isinstance(cause, StartError):
        return cause
    shown = str(cause if isinstance(cause, IsoscaleError) else error).strip().splitlines() or [type(error).__name__]
    return StartError(what=device.id, reason=shown[-1])

"""A Ray cluster as a backend: an actor for each executor, on the node that the device belongs to.

Ray gives nodes, resources and placement; everything else is this project's own. Actors are detached, so executors
outlive their coordinator, and have names, by which the next one finds them. A thread looks at the nodes once a second:
one that drains is a notice to leave, one that is gone takes its devices with it. Ray notices the loss of a node late:
executors' own heartbeats count, this only adds to them. Nothing else in the package imports Ray.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import secrets
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ray
import ray.exceptions
from ray._private.state import available_resources_per_node
from ray._private.state import state as ray_state

from isoscale import env
from isoscale.backends.ray_actors import Conditions, ExecutorActor, WarmActor
from isoscale.backends.ray_nodes import Demand, Offer, node_of, offers
from isoscale.backends.ray_process import RayProcess, answer
from isoscale.backends.seam import Device, DeviceGone, DeviceLeaving, Identity, Launch, Notice
from isoscale.backends.warm import read_at_import
from isoscale.errors import IsoscaleError, StartError

__all__ = ["NAMESPACE", "RayBackend", "end_actors", "live_identity"]

#: of all named actors
NAMESPACE = "isoscale"
#: an actor whose node has no room waits for ever; importing torch may take minutes on a busy node
_START_S = 180.0
_LOOK_S = 1.0
_ANSWER_S = 10.0
#: nodes on which processes are prepared before the first one is asked for
_MAX_PREPARED = 16

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Seen:
    """The cluster at one look."""

    offers: tuple[Offer, ...] = ()
    #: seconds left, by id of the node
    draining: Mapping[str, float] = field(default_factory=dict)
    #: CPUs that nobody has taken, by id of the node
    free_cores: Mapping[str, float] = field(default_factory=dict)

    def devices(self) -> dict[str, tuple[Device, Offer]]:
        return {device.id: (device, offer) for offer in self.offers for device in offer.devices()}


class RayBackend:
    """Used after `ray_connection.connect`."""

    def __init__(self, prepare: str, demand: Demand, *, working_dir: str = "", warm: bool = True) -> None:
        """`prepare`: "module:function" for warm parents, from which processes are forked if `warm`.

        `working_dir`: a directory that Ray brings to every node, where processes then work; "": they work in the
        coordinator's, which all nodes have.
        """
        self._prepare = prepare
        self._demand = demand
        self._is_warm = warm
        self._runtime_env = {"working_dir": working_dir} if working_dir else {}
        self._listeners: list[Callable[[Notice], None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._told: set[str] = set()
        self._over = threading.Event()
        self._seen = self._look()
        self._known = self._seen.devices()

    def devices(self) -> Sequence[Device]:
        return tuple(device for device, _ in self._usable().values())

    def free_device(self, kind: str, taken: Collection[str]) -> Device:
        usable = self._usable()
        free = [found for found in usable.values() if found[0].kind == kind and found[0].id not in taken]
        if free:  # best where no other job is, which only Ray knows
            return min(free, key=lambda found: not self._has_room(found[1]))[0]
        kinds = ", ".join(sorted({device.kind for device, _ in usable.values()})) or "none"
        there = f"the cluster has {len(usable)} devices (kinds: {kinds}), {len(taken)} are taken"
        raise StartError(what=kind, reason=f"no device is free: {there}")

    def prepare(self, environment: Mapping[str, str]) -> None:
        if not self._is_warm:
            return
        for node in list(dict.fromkeys(offer.node.id for _, offer in self._usable().values()))[:_MAX_PREPARED]:
            self._warm_directory(node, environment)

    async def start(self, launch: Launch, device: Device) -> RayProcess:
        found = self._usable().get(device.id)
        if found is None:
            raise StartError(what=device.id, reason="this device is gone")
        offer = found[1]
        name = f"{_run_of(launch)}/{launch.environment.get(env.EXECUTOR, '')}-{secrets.token_hex(4)}"
        warm = self._warm_directory(offer.node.id, launch.environment) if launch.entry and self._is_warm else ""
        options = {
            **self._demand.options(offer.kind, offer.node.resources),
            **({"runtime_env": self._runtime_env} if self._runtime_env else {}),
            "label_selector": {"ray.io/node-id": offer.node.id},
            "name": name,
            "namespace": NAMESPACE,
            "lifetime": "detached",
            "max_restarts": 0,
        }
        launch = replace(launch, cwd=launch.cwd or Path.cwd(), log=launch.log.absolute(), cores=())
        actor = None
        try:
            async with asyncio.timeout(_START_S):
                actor = ray.remote(ExecutorActor).options(**options).remote(device, warm)
                asked = actor.start.remote(launch, Conditions.here(), cwd_is_mine=bool(self._runtime_env), name=name)
                identity = await answer(asked)
        except BaseException as error:
            if actor is not None:
                with contextlib.suppress(Exception):
                    ray.kill(actor, no_restart=True)
            if isinstance(error, TimeoutError):
                reason = f"no process in {_START_S:.0f} s; does anybody else use the node?"
                raise StartError(what=device.id, reason=reason) from None
            if isinstance(error, ray.exceptions.RayError):
                raise _start_error(device, error) from error
            raise
        return RayProcess(identity, actor, launch.log)

    def lives(self, identity: Identity) -> bool:
        return live_identity(identity) == identity

    def find(self, identity: Identity, log: Path) -> RayProcess | None:
        return RayProcess(identity, _actor(identity.name), log) if self.lives(identity) else None

    def listen(self, listener: Callable[[Notice], None]) -> None:
        self._listeners.append(listener)
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            threading.Thread(target=self._watch, name="ray nodes", daemon=True).start()

    async def close(self) -> None:
        self._over.set()

    # ---- nodes ----

    def refresh(self) -> None:
        """For whoever does not `listen`."""
        self._seen = self._look()

    def offers(self) -> tuple[Offer, ...]:
        """All, on nodes that drain too."""
        return self._seen.offers

    def draining(self, offer: Offer) -> float | None:
        """Seconds that its node has left; None if it stays."""
        return self._seen.draining.get(offer.node.id)

    def _usable(self) -> dict[str, tuple[Device, Offer]]:
        """Devices on nodes that stay."""
        seen = self._seen
        return {name: found for name, found in seen.devices().items() if found[1].node.id not in seen.draining}

    def _has_room(self, offer: Offer) -> bool:
        return self._seen.free_cores.get(offer.node.id, 0.0) >= self._demand.cores

    def _look(self) -> _Seen:
        nodes = [node for fields in ray.nodes() if (node := node_of(fields)) is not None]
        now_ms = time.time() * 1000
        draining = {
            node: max(0.0, (deadline - now_ms) / 1000) if deadline else _LOOK_S
            for node, deadline in ray_state.get_draining_nodes().items()
        }
        free = {node: there.get("CPU", 0.0) for node, there in available_resources_per_node().items()}
        return _Seen(tuple(offers(nodes, self._demand)), draining, free)

    def _watch(self) -> None:
        """In a thread: Ray's calls wait."""
        while not self._over.wait(_LOOK_S):
            try:
                seen = self._look()
            except Exception as error:  # whatever Ray raises while its head is away
                _log.debug("no look at the Ray cluster: %s", error)
                continue
            assert self._loop is not None
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._compare, seen)

    def _compare(self, seen: _Seen) -> None:
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

    # ---- warm parents ----

    def _warm_directory(self, node: str, environment: Mapping[str, str]) -> str:
        """Where the node's warm actor for this environment can be met; it may not be there yet."""
        variables = "\0".join(f"{name}={value}" for name, value in sorted(read_at_import(environment)))
        key = hashlib.sha256(variables.encode(errors="surrogateescape")).hexdigest()[:12]
        directory = f"/tmp/isoscale-ray-{node[:12]}-{key}"
        options = {
            "num_cpus": 0,
            "label_selector": {"ray.io/node-id": node},
            "name": f"warm/{node}/{key}",
            "namespace": NAMESPACE,
            "lifetime": "detached",
            "max_restarts": 0,
            "get_if_exists": True,
        }
        with contextlib.suppress(ray.exceptions.RayError, ValueError):
            warm = ray.remote(WarmActor).options(**options).remote(directory, self._prepare)
            warm.prepare.remote(dict(environment))
        return directory


def live_identity(identity: Identity) -> Identity | None:
    """Who runs in the actor of this name, if anybody does."""
    actor = _actor(identity.name)
    if actor is not None:
        with contextlib.suppress(ray.exceptions.RayError):
            found = ray.get(actor.lives.remote(), timeout=_ANSWER_S)
            return found if isinstance(found, Identity) else None
    return None


def end_actors(names: Collection[str], seconds: float) -> set[str]:
    """With their processes, and all that those have started; the names of those that were not seen dead in time."""
    actors = {name: actor for name in names if (actor := _actor(name)) is not None}
    swept = {}
    for name, actor in actors.items():
        actor.kill.remote()
        swept[actor.swept.remote()] = name
    if swept:
        ray.wait(list(swept), num_returns=len(swept), timeout=seconds)
    left = set()
    for reference, name in swept.items():
        try:
            ray.get(reference, timeout=0)
        except ray.exceptions.GetTimeoutError:
            left.add(name)
        except ray.exceptions.RayError:
            pass  # the actor is gone, and its process with it
        with contextlib.suppress(ray.exceptions.RayError, ValueError):
            ray.kill(actors[name], no_restart=True)
    return left


def _actor(name: str) -> Any:
    with contextlib.suppress(ValueError, ray.exceptions.RayError):
        return ray.get_actor(name, namespace=NAMESPACE) if name else None
    return None


def _run_of(launch: Launch) -> str:
    """By which actors of one run are known."""
    path = launch.environment.get(env.TOKEN_FILE, "")
    return f"isoscale/{hashlib.sha256(path.encode(errors='surrogateescape')).hexdigest()[:12]}"


def _start_error(device: Device, error: ray.exceptions.RayError) -> StartError:
    cause = getattr(error, "cause", None)
    if isinstance(cause, StartError):
        return cause
    shown = str(cause if isinstance(cause, IsoscaleError) else error).strip().splitlines() or [type(error).__name__]
    return StartError(what=device.id, reason=shown[-1])

"""The devices of a service are a Ray cluster's: which there are, what lives on them, and nodes that come and go.

A node that dies takes its devices out of use; one that drains gives them back as a reclaim would. A node that comes is
one more: the service begins again with it, as after any restart, and jobs do not notice. An autoscaler is asked for
nodes while jobs wait for devices.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path

from isoscale.backends.host_id import machine_id
from isoscale.backends.ray_connection import cluster_address, connect, own_address
from isoscale.backends.ray_demand import REPEAT_S
from isoscale.backends.ray_found import ask_for, end_actors, lives
from isoscale.backends.ray_look import look
from isoscale.backends.ray_nodes import Demand, Offer
from isoscale.cluster.process import Executor, recorded_executors
from isoscale.errors import UserError
from isoscale.kinds import check_kind
from isoscale.scheduling.state import Cluster, Node
from isoscale.types import RayOptions, Settings

__all__ = ["RayDevices"]

_log = logging.getLogger(__name__)

_LOOK_S = 1.0
#: between two questions whether jobs wait; how long an autoscaler may take to add the first node
_ASK_S, _FIRST_S = 5.0, 600.0
#: until something that was killed is seen dead
_DEATH_S = 20.0


class RayDevices:
    """Also the `Executors` of a service (`cluster.process`)."""

    def __init__(self, options: RayOptions) -> None:
        """Connects. Raises UserError."""
        connect(options.address)
        self._options = options
        self._demand = Demand(cores=options.cores, memory_bytes=options.memory_bytes)
        #: by which the autoscaler's owner knows this service
        self._name = f"service/{machine_id()}/{os.getpid()}"
        self._offers = self._first_offers()
        self._over = threading.Event()

    def _first_offers(self) -> tuple[Offer, ...]:
        """A cluster that grows may begin without any."""
        deadline, asked_s = time.monotonic() + _FIRST_S, -math.inf
        while not (seen := look(self._demand)).offers and seen.can_grow and time.monotonic() < deadline:
            if time.monotonic() - asked_s > REPEAT_S:
                asked_s = time.monotonic()
                _log.info("no node has room for an executor: the autoscaler is asked for one")
                ask_for(self._name, [self._demand.bundle("cpu")])
            time.sleep(_LOOK_S)
        return seen.offers

    def cluster(self) -> Cluster:
        """A node for each kind of each of Ray's nodes. Raises UserError if there are no devices."""
        for offer in self._offers:
            check_kind(offer.kind)
        if not self._offers:
            raise UserError(
                field="--backend",
                value="ray",
                problem=f"no node of the cluster has {self._options.cores:g} CPUs for an executor",
                remedy="add one: ray start --address",
            )
        return Cluster(nodes=tuple(Node(name=one.name, kind=one.kind, num_devices=one.count) for one in self._offers))

    def settings(self) -> Settings:
        """Of jobs: where their executors run, and where these find their coordinator."""
        return Settings(granted=True, host=own_address(), ray=replace(self._options, address=""))

    def variables(self) -> Mapping[str, str]:
        """For coordinators: the cluster that counts is the one that the service has, also after a restart."""
        return {"RAY_ADDRESS": cluster_address()}

    # ---- what lives ----

    def live(self, directory: Path) -> list[Executor]:
        """Those of whom nobody can tell included: a device is free when what ran on it was seen dead."""
        return [one for one, identity in recorded_executors(directory) if lives(identity) is not False]

    def end(self, directory: Path, devices: Collection[str]) -> list[str]:
        """As `cluster.process.end_executors`."""
        condemned = [(one, identity) for one, identity in recorded_executors(directory) if one.device in devices]
        left = end_actors([identity.name for _, identity in condemned], _DEATH_S)
        held = {one.device for one, identity in condemned if identity.name in left}
        return [device for device in devices if device not in held]

    # ---- nodes ----

    def watch(
        self,
        on_gone: Callable[[list[str]], None],
        on_drain: Callable[[int, int, float], None],
        on_come: Callable[[], None],
        wanted: Callable[[], Mapping[str, int]],
    ) -> None:
        """From now on, in a thread: devices that are gone; a node's number, its devices and the time that it has left
        when it drains; and that there are nodes which `cluster` did not have. `wanted`: devices by kind that an
        autoscaler is to see to; none to leave it alone."""
        told = (on_gone, on_drain, on_come, wanted)
        threading.Thread(target=self._watch, args=told, name="ray nodes", daemon=True).start()

    def _watch(
        self,
        on_gone: Callable[[list[str]], None],
        on_drain: Callable[[int, int, float], None],
        on_come: Callable[[], None],
        wanted: Callable[[], Mapping[str, int]],
    ) -> None:
        there, drained = {one.name for one in self._offers}, set[str]()
        asked_s = -math.inf
        while not self._over.wait(_LOOK_S):
            with contextlib.suppress(Exception):  # whatever Ray raises while its head is away
                seen = look(self._demand)
                now = {one.name for one in seen.offers}
                for number, one in enumerate(self._offers):
                    if one.name in there and one.name not in now:
                        _log.info("node %s is gone", one.name)
                        there.discard(one.name)
                        on_gone([device.id for device in one.devices()])
                    elif (left_s := seen.draining.get(one.node.id)) is not None and one.name not in drained:
                        _log.info("node %s drains, %.0f s are left", one.name, left_s)
                        drained.add(one.name)
                        on_drain(number, one.count, left_s)
                if now - {one.name for one in self._offers}:
                    _log.info("another node has come")
                    on_come()
                    return
                if seen.can_grow and time.monotonic() - asked_s >= _ASK_S:
                    asked_s = time.monotonic()
                    if bundles := [self._demand.bundle(kind) for kind, count in wanted().items() for _ in range(count)]:
                        ask_for(self._name, bundles)

    def close(self) -> None:
        self._over.set()

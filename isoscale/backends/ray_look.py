"""A Ray cluster at one look: which devices there are, which nodes drain, who has room. Waits for Ray."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import ray
from ray._private.state import available_resources_per_node
from ray._private.state import state as ray_state

from isoscale.backends.ray_nodes import Demand, Offer, node_of, offers
from isoscale.backends.seam import Device

__all__ = ["Seen", "look"]

#: of a node that drains and does not say until when
_SOON_S = 1.0


@dataclass(frozen=True, slots=True)
class Seen:
    offers: tuple[Offer, ...] = ()
    #: seconds left, by id of the node
    draining: Mapping[str, float] = field(default_factory=dict)
    #: CPUs that nobody has taken, by id of the node
    free_cores: Mapping[str, float] = field(default_factory=dict)
    #: whether somebody adds nodes when they are asked for
    can_grow: bool = False

    def devices(self) -> dict[str, tuple[Device, Offer]]:
        return {device.id: (device, offer) for offer in self.offers for device in offer.devices()}

    def usable(self) -> dict[str, tuple[Device, Offer]]:
        """Devices on nodes that stay."""
        return {name: found for name, found in self.devices().items() if found[1].node.id not in self.draining}

    def has_room(self, offer: Offer, demand: Demand) -> bool:
        return self.free_cores.get(offer.node.id, 0.0) >= demand.cores


def look(demand: Demand) -> Seen:
    nodes = [node for fields in ray.nodes() if (node := node_of(fields)) is not None]
    now_ms = time.time() * 1000
    draining = {
        node: max(0.0, (deadline - now_ms) / 1000) if deadline else _SOON_S
        for node, deadline in ray_state.get_draining_nodes().items()
    }
    free = {node: there.get("CPU", 0.0) for node, there in available_resources_per_node().items()}
    return Seen(tuple(offers(nodes, demand)), draining, free, _can_grow())


def _can_grow() -> bool:
    with contextlib.suppress(Exception):  # a question that Ray does not promise to answer
        config = ray_state.get_cluster_config()
        return config is not None and bool(config.node_group_configs)
    return False

"""What a Ray cluster's nodes offer as devices, and what an executor on one takes of its node. Pure.

The kind of a node's devices is its label `isoscale.kind`, `cpu` without one; it has as many as its CPUs (`cuda`: its
GPUs) and its memory are enough for. A resource `isoscale.kind:KIND` says both instead, and may be given for several
kinds: the node has so many devices of that kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from isoscale.backends.ray_demand import Bundle
from isoscale.backends.seam import Device

__all__ = ["KIND", "Demand", "Offer", "RayNode", "node_of", "offers", "short_name"]

#: the label that names a node's kind, and what resources that count devices of a kind begin with
KIND = "isoscale.kind"
#: digits of a node's id in names, from its beginning and from its end: of ids that are counted the beginnings are alike
_SHORT = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RayNode:
    id: str
    address: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    resources: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What one executor takes of its node."""

    cores: float = 1.0
    #: 0: whatever it needs
    memory_bytes: int = 0

    def bundle(self, kind: str) -> Bundle:
        """As an autoscaler is asked for it."""
        resources = {"CPU": self.cores, "memory": float(self.memory_bytes), "GPU": float(_needs_gpu(kind))}
        return Bundle(tuple((name, count) for name, count in resources.items() if count), "" if kind == "cpu" else kind)

    def options(self, kind: str, resources: Mapping[str, float]) -> dict[str, Any]:
        """As options of an actor on a node that has `resources`.

        >>> Demand(cores=2, memory_bytes=2**30).options("cpu", {"isoscale.kind:cpu": 3.0})
        {'num_cpus': 2, 'memory': 1073741824, 'resources': {'isoscale.kind:cpu': 1}}
        """
        counted = f"{KIND}:{kind}"
        return {
            "num_cpus": self.cores,
            **({"num_gpus": 1} if _needs_gpu(kind) else {}),
            **({"memory": self.memory_bytes} if self.memory_bytes else {}),
            **({"resources": {counted: 1}} if counted in resources else {}),
        }

    def room(self, kind: str, resources: Mapping[str, float]) -> dict[str, float]:
        """The same as what a placement group takes of that node; empty if only an actor can be given it: a GPU.

        >>> Demand(cores=2, memory_bytes=2**30).room("cpu", {"isoscale.kind:cpu": 3.0})
        {'CPU': 2.0, 'memory': 1073741824.0, 'isoscale.kind:cpu': 1.0}
        """
        if _needs_gpu(kind):
            return {}
        options = self.options(kind, resources)
        wanted = {"CPU": options["num_cpus"], "memory": options.get("memory", 0), **options.get("resources", {})}
        return {name: float(count) for name, count in wanted.items() if count}


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """The devices of one kind that one node has."""

    node: RayNode
    #: of the node in device ids: its short name, and the kind if it has several
    name: str
    kind: str
    count: int

    def devices(self) -> tuple[Device, ...]:
        return tuple(
            Device(id=f"{self.name}/{self.kind}/{number}", kind=self.kind, node=self.name)
            for number in range(self.count)
        )


def short_name(node: str) -> str:
    """Of a node's id, in the ids of its devices."""
    return node if len(node) <= 2 * _SHORT else node[:_SHORT] + node[-_SHORT:]


def node_of(fields: Mapping[str, Any]) -> RayNode | None:
    """From an entry of `ray.nodes()`; None if it is dead."""
    if not fields.get("Alive"):
        return None
    return RayNode(
        id=fields["NodeID"],
        address=fields.get("NodeManagerAddress", ""),
        labels=dict(fields.get("Labels") or {}),
        resources=dict(fields.get("Resources") or {}),
    )


def offers(nodes: Iterable[RayNode], demand: Demand) -> list[Offer]:
    """Those of all nodes, in the same order at every call: nodes by address, then by id.

    >>> node = RayNode(id="0123456789ab", labels={"isoscale.kind": "cpu-sse"}, resources={"CPU": 5.0})
    >>> [(offer.name, offer.kind, offer.count) for offer in offers([node], Demand(cores=2))]
    [('012389ab', 'cpu-sse', 2)]
    """
    found = []
    for node in sorted(nodes, key=lambda node: (node.address, node.id)):
        kinds = _kinds(node, demand)
        for kind, count in kinds.items():
            name = short_name(node.id) if len(kinds) == 1 else f"{short_name(node.id)}-{kind}"
            found.append(Offer(node=node, name=name, kind=kind, count=count))
    return found


def _kinds(node: RayNode, demand: Demand) -> dict[str, int]:
    prefix = f"{KIND}:"
    told = {name.removeprefix(prefix): count for name, count in node.resources.items() if name.startswith(prefix)}
    if not told:
        kind = node.labels.get(KIND, "cpu")
        told = {kind: node.resources.get("GPU", 0.0) if _needs_gpu(kind) else float("inf")}
    most = _fits(node.resources.get("CPU", 0.0), demand.cores)
    if demand.memory_bytes:
        most = min(most, _fits(node.resources.get("memory", 0.0), demand.memory_bytes))
    return {kind: int(min(count, most)) for kind, count in sorted(told.items()) if min(count, most) >= 1}


def _fits(there: float, each: float) -> float:
    return there // each if each > 0 else float("inf")


def _needs_gpu(kind: str) -> bool:
    return kind.startswith("cuda")

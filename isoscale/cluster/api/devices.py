"""Devices: which there are, lending and reclaiming them."""

from __future__ import annotations

from dataclasses import dataclass

from isoscale.cluster.api.route import SMALL_BODY, Call, Route
from isoscale.cluster.lending import Reclaimed
from isoscale.cluster.service import Service
from isoscale.cluster.values import NodeShown

__all__ = ["device_routes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LendBody:
    #: 0: as many as are named
    count: int = 0
    #: which; () the first ones that are away
    devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReclaimBody:
    count: int
    within_s: float | None = None
    #: consent to lose work since a job's last checkpoint
    force: bool = False
    #: the same key from the same token is the same reclaim: a call that got no answer is simply sent again
    key: str = ""


def device_routes(service: Service) -> tuple[Route, ...]:
    def nodes(call: Call) -> list[NodeShown]:
        return service.desk.nodes(call.caller)

    def lend(call: Call) -> NodeShown:
        return service.lend(call.caller, call.path["node"], call.body.count, call.body.devices)

    def reclaim(call: Call) -> Reclaimed:
        body: ReclaimBody = call.body
        node = call.path["node"]
        return service.reclaim(call.caller, node, body.count, body.within_s, force=body.force, key=body.key)

    return (
        Route(
            method="GET",
            path="/api/devices",
            role="viewer",
            summary="Nodes and devices",
            handler=nodes,
            answer=list[NodeShown],
        ),
        Route(
            method="POST",
            path="/api/nodes/{node}/lend",
            role="operator",
            summary="Devices of a node are the service's from now on",
            handler=lend,
            body=LendBody,
            answer=NodeShown,
            max_body=SMALL_BODY,
        ),
        Route(
            method="POST",
            path="/api/nodes/{node}/reclaim",
            role="operator",
            summary="Devices of a node are wanted back; answers when they are free",
            handler=reclaim,
            body=ReclaimBody,
            answer=Reclaimed,
            max_body=SMALL_BODY,
            errors=(409, 429),
        ),
    )

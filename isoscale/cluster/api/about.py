"""The service itself: whether it is well, what it is, what it can be asked, its figures for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from isoscale.cluster.api.openapi import document
from isoscale.cluster.api.route import Call, Done, Route
from isoscale.cluster.auth import Caller
from isoscale.cluster.metrics import metrics_text
from isoscale.cluster.service import Service
from isoscale.cluster.values import Role

__all__ = ["Info", "about_routes", "info_for"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Info:
    version: str
    policy: str
    policies: dict[str, str]
    term: int
    #: of the newest event: what `/events` goes on from
    event: int
    now_s: float
    you: str
    role: Role
    tenant: str


def info_for(service: Service, caller: Caller) -> Info:
    return Info(
        version=service.version,
        policy=service.picture().policy,
        policies=dict(service.policies()),
        term=service.store.term,
        event=service.store.last_event(),
        now_s=service.now(),
        you=caller.name,
        role=caller.role,
        tenant=caller.tenant,
    )


def about_routes(service: Service, all_routes: Callable[[], Sequence[Route]]) -> tuple[Route, ...]:
    """`all_routes`: the whole table, which the document describes."""

    def health(call: Call) -> Done:
        return Done(ok=service.is_well())

    def info(call: Call) -> Info:
        return info_for(service, call.caller)

    def openapi(call: Call) -> Any:
        return document(all_routes(), service.version)

    def metrics(call: Call) -> str:
        jobs = [job for job in service.desk.jobs(call.caller, limit=1) if not job.ended_s]
        counts = service.store.counts(call.caller.only_tenant)
        return metrics_text(service.desk.nodes(call.caller), jobs, counts, service.gauges())

    return (
        Route(method="GET", path="/healthz", role=None, summary="Whether it answers", handler=health, answer=Done),
        Route(method="GET", path="/api", role="viewer", summary="The service itself", handler=info, answer=Info),
        Route(
            method="GET",
            path="/api/openapi.json",
            role="viewer",
            summary="This document",
            handler=openapi,
            answer=Any,
        ),
        Route(
            method="GET",
            path="/metrics",
            role="viewer",
            summary="For Prometheus",
            handler=metrics,
            answer=str,
            media="text/plain; version=0.0.4; charset=utf-8",
        ),
    )

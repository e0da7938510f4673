"""What an administrator may change while the service runs, and what `isoscale analyze` says of it."""

from __future__ import annotations

from dataclasses import dataclass

from isoscale.cluster.api.route import SMALL_BODY, Call, Route
from isoscale.cluster.auth import Caller
from isoscale.cluster.service import Service
from isoscale.cluster.study import StudyShown

__all__ = ["settings_routes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsShown:
    policy: str
    #: seconds between decisions; 0: whenever something happens
    interval_s: float
    #: every policy that there is, with a line of what it does
    policies: dict[str, str]
    #: devices by tenant; only the asker's own if it sees one tenant only
    quotas: dict[str, int]
    #: of one tenant, jobs that are not over
    max_waiting: int
    devices: str
    version: str
    #: whether this token may change anything here
    may_change: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyBody:
    policy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotasBody:
    #: all of them: a tenant that is not named has none
    quotas: dict[str, int]


def settings_routes(service: Service) -> tuple[Route, ...]:
    def shown(caller: Caller) -> SettingsShown:
        picture, only = service.picture(), caller.only_tenant
        return SettingsShown(
            policy=picture.policy,
            interval_s=picture.interval_s,
            policies=dict(service.policies()),
            quotas={tenant: count for tenant, count in picture.quotas.items() if only in (None, tenant)},
            max_waiting=service.max_waiting,
            devices=service.devices,
            version=service.version,
            may_change=caller.may("admin"),
        )

    def settings(call: Call) -> SettingsShown:
        return shown(call.caller)

    def policy(call: Call) -> SettingsShown:
        service.settings.change_policy(call.body.policy, call.caller.name)
        return shown(call.caller)

    def quotas(call: Call) -> SettingsShown:
        service.settings.change_quotas(call.body.quotas, call.caller.name)
        return shown(call.caller)

    def analysis(call: Call) -> StudyShown:
        return service.study.shown

    def analyse(call: Call) -> StudyShown:
        return service.study.begin()

    return (
        Route(
            method="GET",
            path="/api/settings",
            role="viewer",
            summary="Policy, quotas and limits",
            handler=settings,
            answer=SettingsShown,
        ),
        *(
            Route(
                method="PUT",
                path=f"/api/settings/{name}",
                role="admin",
                summary=f"Change the {name} until the service is started again",
                handler=handler,
                body=body,
                answer=SettingsShown,
                max_body=SMALL_BODY,
                errors=(409,),
            )
            for name, handler, body in (("policy", policy, PolicyBody), ("quotas", quotas, QuotasBody))
        ),
        Route(
            method="GET",
            path="/api/analysis",
            role="operator",
            summary="What isoscale analyze said last",
            handler=analysis,
            answer=StudyShown,
        ),
        Route(
            method="POST",
            path="/api/analysis",
            role="operator",
            summary="Analyse what there is now; look again with GET",
            handler=analyse,
            answer=StudyShown,
            status=202,
        ),
    )

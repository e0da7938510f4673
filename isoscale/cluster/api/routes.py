"""The table of all routes. A route that is not in it does not exist; tests go through it line by line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from isoscale import limits
from isoscale.cluster.api.events import EventQuery, event_stream
from isoscale.cluster.api.openapi import document
from isoscale.cluster.api.page_routes import page_routes
from isoscale.cluster.api.route import SMALL_BODY, Call, Done, Route
from isoscale.cluster.api.session_routes import session_routes
from isoscale.cluster.auth import NotFoundError
from isoscale.cluster.bundle import MAX_BYTES
from isoscale.cluster.logs import MAX_PAGE, LogFile, LogPage, log_files, log_page
from isoscale.cluster.metrics import metrics_text
from isoscale.cluster.service import Reclaimed, Service
from isoscale.cluster.values import Event, JobShown, NodeShown, Submission, Why

__all__ = ["make_routes"]

_LIMIT = limits.Range(1, 1_000)
#: of jobs and events: what the database can count to, and more
_NUMBER = limits.Range(0, 2**53)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsQuery:
    limit: int = 200
    #: only jobs with a lower number: pages through the past
    before: int | None = None
    #: states, separated by commas
    state: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageQuery:
    after: int = 0
    limit: int = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LogQuery:
    #: "coordinator" or an executor's number
    source: str = "0"
    #: negative: from the end
    offset: int = -65_536
    limit: int = MAX_PAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityBody:
    priority: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleBody:
    #: the most devices from now on; 0: as submitted
    devices: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CountBody:
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReclaimBody:
    count: int
    within_s: float | None = None
    #: consent to lose work since a job's last checkpoint
    force: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeKept:
    id: str
    files: int
    bytes: int


def make_routes(service: Service) -> tuple[Route, ...]:
    h = _Handlers(service)
    small = SMALL_BODY
    return (
        Route(method="GET", path="/healthz", role=None, summary="Whether it answers", handler=h.health, answer=Done),
        *session_routes(service),
        Route(
            method="GET",
            path="/api/openapi.json",
            role="viewer",
            summary="This document",
            handler=h.openapi,
            answer=Any,
        ),
        Route(
            method="GET",
            path="/api/jobs",
            role="viewer",
            summary="Jobs that are not over, and the newest ones",
            handler=h.jobs,
            query=JobsQuery,
            answer=list[JobShown],
        ),
        Route(
            method="POST",
            path="/api/jobs",
            role="user",
            summary="Submit a job; its code was sent before",
            handler=h.submit,
            body=Submission,
            answer=JobShown,
            status=201,
            max_body=small,
            errors=(409, 429),
        ),
        Route(
            method="GET",
            path="/api/jobs/{id}",
            role="viewer",
            summary="One job",
            handler=h.job,
            answer=JobShown,
            errors=(404,),
        ),
        Route(
            method="GET",
            path="/api/jobs/{id}/why",
            role="viewer",
            summary="Why it is where it is",
            handler=h.why,
            answer=Why,
            errors=(404,),
        ),
        Route(
            method="GET",
            path="/api/jobs/{id}/events",
            role="viewer",
            summary="What happened to it",
            handler=h.job_events,
            query=PageQuery,
            answer=list[Event],
            errors=(404,),
        ),
        Route(
            method="GET",
            path="/api/jobs/{id}/logs",
            role="viewer",
            summary="Which logs it has",
            handler=h.log_files,
            answer=list[LogFile],
            errors=(404,),
        ),
        Route(
            method="GET",
            path="/api/jobs/{id}/log",
            role="viewer",
            summary="A page of one log",
            handler=h.log,
            query=LogQuery,
            answer=LogPage,
            errors=(404,),
        ),
        *(
            Route(
                method="POST",
                path=f"/api/jobs/{{id}}/{verb}",
                role="user",
                summary=summary,
                handler=handler,
                body=body,
                answer=JobShown,
                max_body=small,
                errors=(404, 409),
            )
            for verb, summary, handler, body in (
                ("pause", "Checkpoint, then no devices", h.pause, None),
                ("resume", "Go on when its turn comes", h.resume, None),
                ("cancel", "End it without a result", h.cancel, None),
                ("priority", "Another priority", h.priority, PriorityBody),
                ("scale", "The most devices that it may have", h.scale, ScaleBody),
            )
        ),
        Route(
            method="GET",
            path="/api/devices",
            role="viewer",
            summary="Nodes and devices",
            handler=h.nodes,
            answer=list[NodeShown],
        ),
        Route(
            method="POST",
            path="/api/nodes/{node}/lend",
            role="operator",
            summary="Devices of a node are the service's from now on",
            handler=h.lend,
            body=CountBody,
            answer=NodeShown,
            max_body=small,
        ),
        Route(
            method="POST",
            path="/api/nodes/{node}/reclaim",
            role="operator",
            summary="Devices of a node are wanted back; answers when they are free",
            handler=h.reclaim,
            body=ReclaimBody,
            answer=Reclaimed,
            max_body=small,
            errors=(409, 429),
        ),
        Route(
            method="GET",
            path="/api/code/{code}",
            role="user",
            summary="Whether this code was sent",
            handler=h.code,
            answer=CodeKept,
            errors=(404,),
        ),
        Route(
            method="PUT",
            path="/api/code/{code}",
            role="user",
            summary="Send code: 8 bytes length of the manifest, manifest, archive",
            handler=h.put_code,
            answer=CodeKept,
            max_body=MAX_BYTES,
        ),
        Route(
            method="GET",
            path="/events",
            role="viewer",
            summary="Events as they happen; Last-Event-ID goes on from one",
            handler=h.stream,
            query=EventQuery,
            answer=Event,
            media="text/event-stream",
            raw=True,
        ),
        Route(
            method="GET",
            path="/metrics",
            role="viewer",
            summary="For Prometheus",
            handler=h.metrics,
            answer=str,
            media="text/plain; version=0.0.4; charset=utf-8",
        ),
        *page_routes(),
    )


class _Handlers:
    """One method per route: from a call to the service and back."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._desk = service.desk
        self._store = service.store

    def health(self, call: Call) -> Done:
        return Done(ok=self._service.is_well())

    def openapi(self, call: Call) -> Any:
        return document(make_routes(self._service), self._service.version)

    # ---- jobs ----

    def jobs(self, call: Call) -> list[JobShown]:
        query: JobsQuery = call.query
        limits.within(query.limit, "limit", _LIMIT)
        if query.before is not None:
            limits.within(query.before, "before", _NUMBER)
        states = [one for one in query.state.split(",") if one]
        return self._desk.jobs(call.caller, limit=query.limit, before=query.before, states=states)

    def submit(self, call: Call) -> JobShown:
        return self._desk.submit(call.caller, call.body)

    def job(self, call: Call) -> JobShown:
        return self._desk.job(call.caller, call.path["id"])

    def why(self, call: Call) -> Why:
        return self._desk.why(call.caller, call.path["id"])

    def job_events(self, call: Call) -> list[Event]:
        query: PageQuery = call.query
        limits.within(query.limit, "limit", _LIMIT)
        limits.within(query.after, "after", _NUMBER)
        job = self._desk.record(call.caller, call.path["id"])
        return self._store.events(after=query.after, job=job.id, limit=query.limit)

    def log_files(self, call: Call) -> list[LogFile]:
        return log_files(self._desk.directory(call.caller, call.path["id"]))

    def log(self, call: Call) -> LogPage:
        query: LogQuery = call.query
        limits.within(query.limit, "limit", limits.Range(1, MAX_PAGE))
        return log_page(self._desk.directory(call.caller, call.path["id"]), query.source, query.offset, query.limit)

    def pause(self, call: Call) -> JobShown:
        return self._desk.pause(call.caller, call.path["id"])

    def resume(self, call: Call) -> JobShown:
        return self._desk.resume(call.caller, call.path["id"])

    def cancel(self, call: Call) -> JobShown:
        return self._desk.cancel(call.caller, call.path["id"])

    def priority(self, call: Call) -> JobShown:
        return self._desk.set_priority(call.caller, call.path["id"], call.body.priority)

    def scale(self, call: Call) -> JobShown:
        return self._desk.scale(call.caller, call.path["id"], call.body.devices)

    # ---- devices ----

    def nodes(self, call: Call) -> list[NodeShown]:
        return self._desk.nodes(call.caller)

    def lend(self, call: Call) -> NodeShown:
        return self._service.lend(call.caller, call.path["node"], call.body.count)

    def reclaim(self, call: Call) -> Reclaimed:
        body: ReclaimBody = call.body
        return self._service.reclaim(call.caller, call.path["node"], body.count, body.within_s, force=body.force)

    # ---- code ----

    def code(self, call: Call) -> CodeKept:
        code = call.path["code"]
        if code not in self._desk.codes:
            raise NotFoundError(f"code={code[:70]}: was not sent; send it with PUT")
        manifest = self._desk.codes.manifest(code)
        return CodeKept(id=code, files=len(manifest.files), bytes=manifest.total_bytes)

    def put_code(self, call: Call) -> CodeKept:
        code = call.path["code"]
        manifest = self._desk.codes.receive(code, call.body)
        return CodeKept(id=code, files=len(manifest.files), bytes=manifest.total_bytes)

    # ---- streams ----

    async def stream(self, call: Call, request: Any) -> Any:
        return await event_stream(self._service, call, request)

    def metrics(self, call: Call) -> str:
        jobs = [job for job in self._desk.jobs(call.caller, limit=1) if not job.ended_s]
        counts = self._store.counts(call.caller.only_tenant)
        return metrics_text(self._desk.nodes(call.caller), jobs, counts, self._service.gauges())

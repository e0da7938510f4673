"""Jobs: submitting, looking, logs, and what their owners may ask for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from isoscale import limits
from isoscale.cluster.api.looking import Looking
from isoscale.cluster.api.route import ROW_NUMBER, ROWS, SMALL_BODY, Call, Route
from isoscale.cluster.logs import MAX_PAGE, LogFile, LogPage, log_files, log_page
from isoscale.cluster.records.commands import Commands, commands_of
from isoscale.cluster.service import Service
from isoscale.cluster.values import Event, JobShown, Submission, Why

__all__ = ["job_routes", "look_routes"]


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


def job_routes(service: Service) -> tuple[Route, ...]:
    h = _Handlers(service)
    return (
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
            max_body=SMALL_BODY,
            errors=(409, 429),
        ),
        *look_routes(service.desk),
        Route(
            method="GET",
            path="/api/jobs/{id}/events",
            role="viewer",
            summary="What happened to it",
            handler=h.events,
            query=PageQuery,
            answer=list[Event],
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
                max_body=SMALL_BODY,
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
    )


def look_routes(desk: Looking) -> tuple[Route, ...]:
    """What one job is and prints."""

    def job(call: Call) -> JobShown:
        return desk.job(call.caller, call.path["id"])

    def why(call: Call) -> Why:
        return job(call).why

    def files(call: Call) -> list[LogFile]:
        return log_files(desk.directory(call.caller, call.path["id"]))

    def log(call: Call) -> LogPage:
        query: LogQuery = call.query
        limits.within(query.limit, "limit", limits.Range(1, MAX_PAGE))
        return log_page(desk.directory(call.caller, call.path["id"]), query.source, query.offset, query.limit)

    def commands(call: Call) -> Commands:
        return commands_of(desk.directory(call.caller, call.path["id"]), job(call).step)

    table: tuple[tuple[str, str, Callable[[Call], Any], Any, Any], ...] = (
        ("", "One job", job, None, JobShown),
        ("/why", "Why it is where it is", why, None, Why),
        ("/logs", "Which logs it has", files, None, list[LogFile]),
        ("/log", "A page of one log", log, LogQuery, LogPage),
        ("/commands", "Commands that prove or repeat it", commands, None, Commands),
    )
    return tuple(
        Route(
            method="GET",
            path=f"/api/jobs/{{id}}{rest}",
            role="viewer",
            summary=summary,
            handler=handler,
            query=query,
            answer=answer,
            errors=(404,),
        )
        for rest, summary, handler, query, answer in table
    )


class _Handlers:
    def __init__(self, service: Service) -> None:
        self._desk, self._store = service.desk, service.store

    def jobs(self, call: Call) -> list[JobShown]:
        query: JobsQuery = call.query
        limits.within(query.limit, "limit", ROWS)
        if query.before is not None:
            limits.within(query.before, "before", ROW_NUMBER)
        states = [one for one in query.state.split(",") if one]
        return self._desk.jobs(call.caller, limit=query.limit, before=query.before, states=states)

    def submit(self, call: Call) -> JobShown:
        return self._desk.submit(call.caller, call.body)

    def events(self, call: Call) -> list[Event]:
        query: PageQuery = call.query
        limits.within(query.limit, "limit", ROWS)
        limits.within(query.after, "after", ROW_NUMBER)
        job = self._desk.record(call.caller, call.path["id"])
        return self._store.events(after=query.after, job=job.id, limit=query.limit)

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

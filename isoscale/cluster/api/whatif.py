"""What if: the queue, or the last day, under other policies: begun, looked at, cancelled. The service never waits."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from isoscale.cluster.api.route import SMALL_BODY, Call, Route
from isoscale.cluster.auth import Caller, ConflictError, NotFoundError
from isoscale.cluster.machine import make_cluster
from isoscale.cluster.service import Service
from isoscale.cluster.table import TableQuery, jobs_page
from isoscale.cluster.whatif.asking import ask_about_day, ask_about_queue, check_policies
from isoscale.cluster.whatif.question import MAX_JOBS, PolicyAnswer, Question, Source
from isoscale.cluster.whatif.tasks import Task, Tasks, TaskState

__all__ = ["whatif_routes"]

_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfBody:
    #: names, with options in brackets: fifo, easyscale(...)
    policies: tuple[str, ...]
    source: Source = "queue"
    #: as for `serve --devices`; "" for those that are there
    devices: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """`results`: the policy in use first. Rows of jobs of other tenants have no name."""

    id: str
    state: TaskState
    source: Source
    #: 0 to 1, and the policy that is being simulated
    progress: float
    doing: str
    seconds: float
    error: str
    num_jobs: int
    num_devices: int
    now_s: float
    assumed: tuple[str, ...]
    results: tuple[PolicyAnswer, ...]
    #: by id, of jobs that the asker may see
    names: dict[str, str]


def whatif_routes(service: Service) -> tuple[Route, ...]:
    h = _Handlers(service)
    return (
        Route(
            method="GET",
            path="/api/whatif",
            role="user",
            summary="Simulations of this token, without their rows",
            handler=h.listed,
            answer=list[WhatIf],
        ),
        Route(
            method="POST",
            path="/api/whatif",
            role="user",
            summary="Simulate the queue, or the last day, under other policies",
            handler=h.begin,
            body=WhatIfBody,
            answer=WhatIf,
            status=201,
            max_body=SMALL_BODY,
            errors=(409, 429),
        ),
        Route(
            method="GET",
            path="/api/whatif/{task}",
            role="user",
            summary="How far it is, and what came of it",
            handler=h.shown,
            answer=WhatIf,
            errors=(404,),
        ),
        Route(
            method="DELETE",
            path="/api/whatif/{task}",
            role="user",
            summary="End it",
            handler=h.cancel,
            answer=WhatIf,
            errors=(404,),
        ),
    )


class _Handlers:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._tasks: Tasks = service.tasks
        self._assumed: dict[str, list[str]] = {}

    def begin(self, call: Call) -> WhatIf:
        body: WhatIfBody = call.body
        question, assumed = self._question(body)
        task = self._tasks.begin(call.caller.token, question)
        kept = {one.id for one in self._tasks.all()}
        self._assumed = {id_: told for id_, told in self._assumed.items() if id_ in kept} | {task.id: assumed}
        return self._show(task, call.caller)

    def _question(self, body: WhatIfBody) -> tuple[Question, list[str]]:
        service, now = self._service, self._service.now()
        policies = check_policies(body.policies, service.picture().policy)
        cluster = make_cluster(body.devices) if body.devices else None
        situation = service.situation()
        if situation is None:
            raise ConflictError("the service does not get to it; try again")
        if body.source == "queue":
            return ask_about_queue(situation, policies, now, cluster)
        query = TableQuery(limit=MAX_JOBS + 1, sort="submitted", descending=True)
        page = jobs_page(service.store, query, now, tenant=None)
        late = [job for job in reversed(page.records) if job.submitted_s >= now - _DAY_S]
        return ask_about_day(situation, policies, now - _DAY_S, cluster, late, service.learner)

    def listed(self, call: Call) -> list[WhatIf]:
        return [self._show(task, call.caller, rows=False) for task in self._tasks.of(call.caller.token)]

    def shown(self, call: Call) -> WhatIf:
        return self._show(self._found(call), call.caller)

    def cancel(self, call: Call) -> WhatIf:
        task = self._found(call)
        self._tasks.cancel(task)
        return self._show(task, call.caller)

    def _found(self, call: Call) -> Task:
        name = call.path["task"]
        task = self._tasks.find(call.caller.token, name)
        if task is None:
            raise NotFoundError(f"task={name[:40]}: no such simulation of this token; see GET /api/whatif")
        return task

    def _show(self, task: Task, caller: Caller, *, rows: bool = True) -> WhatIf:
        question = task.question
        ids = [job.request.name for job in question.jobs]
        tenants = {job.request.name: job.request.tenant for job in question.jobs}
        seen = {id_ for id_ in ids if caller.sees(tenants[id_])}
        answers = tuple(
            replace(
                one,
                rows=tuple(row if row.job in seen else replace(row, job="") for row in one.rows) if rows else (),
            )
            for one in task.answers
        )
        return WhatIf(
            id=task.id,
            state=task.state,
            source=question.source,
            progress=round(task.share, 4),
            doing=task.doing,
            seconds=round(task.seconds or time.monotonic() - task.began, 3),
            error=task.error,
            num_jobs=len(ids),
            num_devices=question.cluster.num_devices,
            now_s=question.now_s,
            assumed=tuple(told for told in self._assumed.get(task.id, ()) if _is_seen(told, tenants, seen)),
            results=answers,
            names=self._names(seen) if rows and task.answers else {},
        )

    def _names(self, ids: set[str]) -> dict[str, str]:
        listed = list(ids)
        found = self._service.store.rows(
            f"SELECT id, name FROM jobs WHERE id IN ({', '.join('?' * len(listed))})", *listed
        )
        return {row[0]: row[1] for row in found}


def _is_seen(told: str, tenants: dict[str, str], seen: set[str]) -> bool:
    job = told.partition(":")[0]
    return job in seen or job not in tenants

"""The cluster as a whole: the table of jobs by page, and its levels over time."""

from __future__ import annotations

from dataclasses import dataclass

from isoscale import limits
from isoscale.cluster.api.route import ROW_NUMBER, Call, Route
from isoscale.cluster.cluster_history import HistoryShown
from isoscale.cluster.service import Service
from isoscale.cluster.table import TableQuery, jobs_page
from isoscale.cluster.values import MAX_TEXT, JobShown
from isoscale.errors import UserError

__all__ = ["overview_routes"]

_DAY_S = 86_400.0
_ROWS = limits.Range(1, 500)
_POINTS = limits.Range(2, 2_000)
#: the years 1970 to 5138
_MOMENT = limits.Range(0.0, 1e11)


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryQuery:
    #: unix seconds; left out: the last day
    begin: float | None = None
    end: float | None = None
    points: int = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A page of jobs. `total` counts what the filter lets through, `counts` and `tenants` tell of all."""

    total: int
    counts: dict[str, int]
    tenants: tuple[str, ...]
    jobs: tuple[JobShown, ...]


def overview_routes(service: Service) -> tuple[Route, ...]:
    store = service.store

    def table(call: Call) -> Table:
        query: TableQuery = call.query
        limits.within(query.limit, "limit", _ROWS)
        limits.within(query.offset, "offset", ROW_NUMBER)
        if len(query.text) > MAX_TEXT:
            raise UserError(field="text", value=query.text[:40], problem="too long", remedy=f"at most {MAX_TEXT}")
        tenant = call.caller.only_tenant
        positions = dict(service.picture().positions)
        page = jobs_page(store, query, service.now(), tenant=tenant, positions=positions)
        listed = store.rows("SELECT DISTINCT tenant FROM jobs WHERE ?1 IS NULL OR tenant = ?1 ORDER BY tenant", tenant)
        return Table(
            total=page.total,
            counts=store.counts(tenant),
            tenants=tuple(row[0] for row in listed),
            jobs=tuple(service.desk.shown(call.caller, page.records)),
        )

    def history(call: Call) -> HistoryShown:
        query: HistoryQuery = call.query
        limits.within(query.points, "points", _POINTS)
        end = service.now() if query.end is None else query.end
        begin = end - _DAY_S if query.begin is None else query.begin
        limits.within(end, "end", _MOMENT)
        limits.within(begin, "begin", _MOMENT)
        if begin >= end:
            raise UserError(field="begin", value=begin, problem="not before end", remedy="give begin < end")
        return service.history.show(begin, end, query.points)

    return (
        Route(
            method="GET",
            path="/api/table",
            role="viewer",
            summary="A page of all jobs, filtered and sorted",
            handler=table,
            query=TableQuery,
            answer=Table,
        ),
        Route(
            method="GET",
            path="/api/cluster/history",
            role="viewer",
            summary="Devices held and away, jobs that wait and run, over time",
            handler=history,
            query=HistoryQuery,
            answer=HistoryShown,
        ),
    )

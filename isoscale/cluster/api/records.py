"""What a job's own log tells: series, timeline, events, a search in what it printed, two jobs compared."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from isoscale import limits
from isoscale.cluster.api.looking import Looking
from isoscale.cluster.api.route import ROW_NUMBER, Call, Route
from isoscale.cluster.auth import Caller
from isoscale.cluster.logs import LogMatches, search_log
from isoscale.cluster.records.buckets import Axis
from isoscale.cluster.records.compare import Difference, LogsCompared, compare_logs
from isoscale.cluster.records.events import MAX_EVENTS, RunEvents, run_events
from isoscale.cluster.records.run_log import MAX_SERIES
from isoscale.cluster.records.series import POINTS, SeriesWindow, series_window
from isoscale.cluster.records.shelf import Shelf
from isoscale.cluster.records.story import RunStory, run_story
from isoscale.cluster.values import JobShown
from isoscale.errors import UserError

__all__ = ["record_routes"]

_MAX_MATCHES, _MAX_TEXT = 1_000, 200


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesQuery:
    by: Axis = "step"
    #: steps, or unix seconds; left out: all
    begin: float | None = None
    end: float | None = None
    points: int = 600
    #: by commas; "" for all
    names: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEventsQuery:
    #: bytes of the log: the newest events in front of one, or the oldest from one on; neither: the newest
    before: int | None = None
    after: int | None = None
    limit: int = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchQuery:
    #: one line at most; in whatever case
    text: str = ""
    #: "coordinator" or an executor's number
    source: str = "0"
    #: lines in front of this byte; -1: of the end
    before: int = -1
    limit: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareQuery:
    #: ids of jobs
    a: str = ""
    b: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionDiffers:
    name: str
    a: str
    b: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison(LogsCompared):
    a: JobShown
    b: JobShown
    same_code: bool
    #: None: one of them has none
    same_digest: bool | None
    options: tuple[OptionDiffers, ...]
    #: the whole in words
    text: str


def record_routes(desk: Looking) -> tuple[Route, ...]:
    h = _Handlers(desk)
    return (
        *(
            Route(
                method="GET",
                path=f"/api/jobs/{{id}}/{rest}",
                role="viewer",
                summary=summary,
                handler=handler,
                query=query,
                answer=answer,
                errors=(404,),
            )
            for rest, summary, handler, query, answer in (
                (
                    "series",
                    "Loss and whatever is logged, thinned without losing a spike",
                    h.series,
                    SeriesQuery,
                    SeriesWindow,
                ),
                ("timeline", "Executors, logical workers, rescales and faults over time", h.timeline, None, RunStory),
                ("run-events", "A page of its own event log", h.events, RunEventsQuery, RunEvents),
                ("log/search", "Lines of one log with a text", h.search, SearchQuery, LogMatches),
            )
        ),
        Route(
            method="GET",
            path="/api/compare",
            role="viewer",
            summary="Two jobs: options that differ, and the first step at which losses do",
            handler=h.compare,
            query=CompareQuery,
            answer=Comparison,
            errors=(404,),
        ),
    )


class _Handlers:
    def __init__(self, desk: Looking) -> None:
        self._desk = desk
        self._shelf = Shelf()
        #: of the last comparisons, by jobs and sizes of their logs
        self._compared: dict[tuple[Any, ...], LogsCompared] = {}

    def series(self, call: Call) -> SeriesWindow:
        query: SeriesQuery = call.query
        limits.within(query.points, "points", limits.Range(*POINTS))
        names = [one for one in query.names.split(",") if one]
        if len(names) > MAX_SERIES:
            raise _bad("names", len(names), "too many", f"give at most {MAX_SERIES}, or none for all")
        for field, value in (("begin", query.begin), ("end", query.end)):
            if value is not None and not math.isfinite(value):
                raise _bad(field, value, "not a number", "give a step or unix seconds")
        with self._shelf.log(self._desk.directory(call.caller, call.path["id"])) as log:
            return series_window(log, by=query.by, begin=query.begin, end=query.end, points=query.points, names=names)

    def timeline(self, call: Call) -> RunStory:
        job = self._desk.record(call.caller, call.path["id"])
        with self._shelf.log(self._desk.directory(call.caller, job.id)) as log:
            return run_story(log, job.submission.workers)

    def events(self, call: Call) -> RunEvents:
        query: RunEventsQuery = call.query
        limits.within(query.limit, "limit", limits.Range(1, MAX_EVENTS))
        for field, value in (("before", query.before), ("after", query.after)):
            if value is not None:
                limits.within(value, field, ROW_NUMBER)
        directory = self._desk.directory(call.caller, call.path["id"])
        return run_events(directory, before=query.before, after=query.after, limit=query.limit)

    def search(self, call: Call) -> LogMatches:
        query: SearchQuery = call.query
        limits.within(query.limit, "limit", limits.Range(1, _MAX_MATCHES))
        if not 0 < len(query.text) <= _MAX_TEXT or "\n" in query.text:
            raise _bad("text", query.text[:40], f"not one line of 1 to {_MAX_TEXT} characters", "give what to look for")
        directory = self._desk.directory(call.caller, call.path["id"])
        return search_log(directory, query.source, query.text, before=query.before, limit=query.limit)

    def compare(self, call: Call) -> Comparison:
        names = (call.query.a, call.query.b)
        for field, name in zip("ab", names, strict=True):
            if not name:
                raise _bad(field, name, "no job", "give the ids of two jobs: ?a=j1&b=j2")
        a, b = (self._desk.record(call.caller, name) for name in names)
        logs = self._logs_compared(call.caller, names)
        one, other = asdict(a.submission), asdict(b.submission)
        options = tuple(
            OptionDiffers(name=name, a=_shown(one[name]), b=_shown(other[name]))
            for name in one
            if one[name] != other[name] and name not in ("code", "key", "name")
        )
        same_code = one["code"] == other["code"]
        same_digest = a.digest == b.digest if a.digest and b.digest else None
        shown = [self._desk.job(call.caller, name) for name in names]
        return Comparison(
            a=shown[0],
            b=shown[1],
            same_code=same_code,
            same_digest=same_digest,
            options=options,
            text=_in_words(logs, same_digest, [one.name for one in options], same_code),
            **asdict(logs)
            | {"first_difference": logs.first_difference, "first_audit_difference": logs.first_audit_difference},
        )

    def _logs_compared(self, caller: Caller, names: tuple[str, str]) -> LogsCompared:
        paths = [self._desk.directory(caller, name) for name in names]
        sizes = [(one / "events.jsonl").stat().st_size if (one / "events.jsonl").is_file() else 0 for one in paths]
        key = (*names, *sizes)
        found = self._compared.get(key)
        if found is None:
            found = compare_logs(paths[0], paths[1])
            if len(self._compared) >= 100:
                self._compared.clear()
            self._compared[key] = found
        return found


def _shown(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)


def _in_words(logs: LogsCompared, same_digest: bool | None, options: list[str], same_code: bool) -> str:
    words = []
    first: Difference | None = logs.first_difference
    if not logs.steps_compared:
        words.append("they have no step in common")
    elif first is None:
        words.append(f"equal losses in all {logs.steps_compared:,} steps that both have")
    else:
        words.append(f"losses differ from step {first.step:,} on ({first.a} and {first.b})")
    if same_digest is not None:
        words.append("equal digests" if same_digest else "different digests")
    differ = [*options, *([] if same_code else ["code"]), *(["batch plan"] if logs.batches_differ else [])]
    words.append(f"different: {', '.join(differ)}" if differ else "submitted alike")
    return "; ".join(words)


def _bad(field: str, value: object, problem: str, remedy: str) -> UserError:
    return UserError(field=field, value=value, problem=problem, remedy=remedy)

"""Timelines as one HTML page (`templates/report.html`) that needs nothing else: no script, no network."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from isoscale.analysis.curve_figures import draw_series
from isoscale.analysis.figures import draw_timeline, render
from isoscale.analysis.promise_rows import SAID, PromiseRow, heading, rows, short
from isoscale.analysis.promises import Verdict
from isoscale.analysis.promises.values import Said
from isoscale.analysis.report_tables import Table, tables
from isoscale.analysis.words import STATES, count, duration, sizes, title
from isoscale.pages import Image, environment
from isoscale.timelines.values import Timeline

__all__ = ["page"]

#: a page shows so many curves; the rest is in its JSON
_MAX_CURVES = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class _Promises:
    heading: str
    rows: Sequence[PromiseRow]
    #: what is written for each judgement
    said: Mapping[Said, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Section:
    """One job, as the template shows it."""

    title: str
    state: str
    state_words: str
    when: str
    #: empty unless the job failed
    error: str
    digest: str
    #: how it was begun, and where it is
    origin: Sequence[tuple[str, str]] = ()
    facts: Sequence[tuple[str, str]] = ()
    #: None iff the log has no events
    image: Image | None = None
    #: what was logged, over steps
    curves: Sequence[Image] = ()
    promises: _Promises | None = None
    tables: Sequence[Table] = ()


def page(
    shown: Sequence[Timeline],
    *,
    verdicts: Sequence[Verdict | None] = (),
    jobs_left_out: int = 0,
    profile_png: bytes = b"",
) -> str:
    """One section per timeline, then the picture of a profile if there is one. `verdicts`: of each, in this order."""
    return (
        environment("isoscale.analysis")
        .get_template("report.html")
        .render(
            title=title(shown[0]) if shown else "isoscale",
            sections=[_section(one, verdict) for one, verdict in zip_longest(shown, verdicts[: len(shown)]) if one],
            profile=Image(png=profile_png, words="throughput over executors") if profile_png else None,
            jobs_left_out=count(jobs_left_out, "more job") if jobs_left_out else "",
        )
    )


def _section(shown: Timeline, verdict: Verdict | None) -> _Section:
    is_empty = shown.state == "empty"
    return _Section(
        title=title(shown),
        state=shown.state,
        state_words=STATES[shown.state],
        when=_when(shown),
        error=shown.error if shown.state == "failed" else "",
        digest=shown.digest,
        origin=[(name, value) for name, value in (("command", shown.command), ("directory", shown.directory)) if value],
        facts=() if is_empty else _facts(shown, verdict),
        image=None if is_empty else _picture(shown),
        curves=_curves(shown),
        promises=None
        if verdict is None
        else _Promises(heading=heading(verdict), rows=rows(verdict, shown.start), said=SAID),
        tables=[table.without_empty_columns() for table in tables(shown) if table.rows],
    )


def _when(shown: Timeline) -> str:
    if shown.simulated:
        return f"simulated, from second {shown.start:,.0f} on" if shown.state != "empty" else ""
    return datetime.datetime.fromtimestamp(shown.start, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _picture(shown: Timeline) -> Image:
    return Image(png=render(draw_timeline(shown, heading=False)), words=f"timeline of {title(shown)}")


def _curves(shown: Timeline) -> list[Image]:
    return [
        Image(png=render(draw_series(name, curve, number)), words=f"{name} over steps")
        for number, (name, curve) in enumerate(shown.series[:_MAX_CURVES])
        if curve.t
    ]


def _facts(shown: Timeline, verdict: Verdict | None) -> list[tuple[str, str]]:
    """Names and values; what is not known is left out."""
    lost = sum(mark.kind == "lost" for mark in shown.marks)
    pauses = [rescale.pause_s for rescale in shown.rescales if rescale.pause_s is not None]
    facts = {
        "steps": f"{shown.step:,}",
        "epoch": "" if shown.epoch is None else str(shown.epoch),
        "time": duration(shown.seconds),
        "logical workers": f"{shown.num_logical_workers or ''}",
        "executors": sizes(shown).removesuffix("s").removesuffix(" executor"),
        "steps per second": "" if shown.steps_per_s is None else f"{shown.steps_per_s:.3g}",
        "median step": duration(shown.median_step_s),
        "longest gap": duration(shown.longest_gap_s),
        "longest pause of a rescale": duration(max(pauses, default=None)),
        "executors lost": str(lost) if shown.lives else "",
        "steps done again": str(shown.steps_redone) if shown.steps_redone else "",
        "idle": "" if shown.idle is None else f"{shown.idle:.0%}",
        "time of all executors": duration(shown.executor_s) if shown.executor_s else "",
        "coordinator's term": "" if shown.term is None else str(shown.term),
        "promises": "" if verdict is None else short(verdict),
        **{name: f"{value:.6g}" for name, value in shown.logged[:24]},
    }
    return [(name, value) for name, value in facts.items() if value]

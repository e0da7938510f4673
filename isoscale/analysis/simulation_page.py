"""Simulated policies on one HTML page that needs nothing else: table and pictures are inside, no script, no network."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from html import escape

from isoscale.analysis.figures import render
from isoscale.analysis.simulation_figures import draw_cdf, draw_gantt, draw_utilisation
from isoscale.analysis.simulation_values import PolicyRun
from isoscale.analysis.words import count, duration
from isoscale.sim.result import Details

__all__ = ["COLUMNS", "cells", "failures_line", "simulation_page"]

_STYLE = """
:root { color-scheme: light; --ink: #222; --soft: #71767f; --line: #e3e5e9; }
body { font: 15px/1.5 system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; color: var(--ink);
  background: #fff; max-width: 1180px; margin: 0 auto; padding: 2rem 1.5rem 4rem; }
h1 { font-size: 1.5rem; margin: 0 0 .3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.05rem; margin: 2.4rem 0 .6rem; }
p.about, footer { color: var(--soft); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; width: 100%; font-variant-numeric: tabular-nums; }
th { font-weight: 600; color: var(--soft); border-bottom: 1px solid #c9cdd3; vertical-align: bottom; }
th, td { padding: .3rem 0 .3rem .8rem; text-align: right; }
th:first-child, td:first-child { text-align: left; padding-left: 0; white-space: nowrap; }
td { border-bottom: 1px solid var(--line); white-space: nowrap; }
td.best { font-weight: 700; color: #1d5c3f; }
td small { color: var(--soft); font-weight: 400; }
img { width: 100%; height: auto; display: block; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; font-size: .85rem; }
dt { color: var(--soft); } dd { margin: 0; }
footer { font-size: .8rem; margin-top: 3rem; }
"""
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"

#: heading -> what it means; the same on the terminal, on the page and in the documentation
COLUMNS: Mapping[str, str] = {
    "policy": "how devices were shared out; an oracle knows what a live scheduler cannot",
    "mean JCT": "mean time from a job's submission to its end",
    "p50": "half of the jobs took no longer",
    "p99": "99 of 100 jobs took no longer",
    "makespan": "from the first submission to the last completion",
    "queueing": "mean time from submission to the first device",
    "held": "share of the devices' time in which a job held them",
    "computing": "share in which they computed: no start, pause, exchange or interference",
    "rescales": "changes of a job's devices or batch after its first start",
    "unfair": "99th percentile of completion time over what a fair share would have given; above 1 is worse than fair",
    "decision": "median wall-clock time of one decision",
    "done": "jobs that finished",
}
#: columns in which the smallest, and in which the largest number is best
_LOW, _HIGH = frozenset({1, 2, 3, 4, 5, 9, 10}), frozenset({6, 7, 11})


def simulation_page(runs: Sequence[PolicyRun], title: str, facts: Mapping[str, str]) -> str:
    longest = max(run.edges[-1] for run in runs)
    first = runs[0]
    about = f"{count(first.num_jobs, 'job')} on {count(first.num_devices, 'device')}, in virtual time."
    gantts = "".join(
        f"<h3>{escape(run.policy)}</h3>{_image(render(draw_gantt(run, longest)), f'jobs under {run.policy}')}"
        for run in runs
        if run.rows
    )
    meanings = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in COLUMNS.items())
    settings = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in facts.items())
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<style>{_STYLE}</style>\n</head>\n'
        f'<body>\n<h1>{escape(title)}</h1>\n<p class="about">{about}</p>\n{_table(runs)}\n'
        f"<h2>Completion times</h2>{_image(render(draw_cdf(runs)), 'share of jobs done within a time')}\n"
        f"<h2>Devices over time</h2>{_image(render(draw_utilisation(runs)), 'devices held and computing over time')}\n"
        f"<h2>Jobs over time</h2><p class='about'>A grey line is a job from its submission to its end; on it, the "
        f"devices that it held.</p>{gantts}\n"
        f"{_failures(runs)}\n"
        f"<h2>What was simulated</h2><dl>{settings}</dl>\n<h2>What the columns mean</h2><dl>{meanings}</dl>\n"
        "<footer>isoscale simulate</footer>\n</body>\n</html>\n"
    )


def cells(run: PolicyRun) -> list[str]:
    """One row of the table, in the order of COLUMNS."""
    summary = run.summary
    times = (summary.mean_jct_s, summary.p50_jct_s, summary.p99_jct_s, summary.makespan_s, summary.mean_queue_s)
    return [
        f"{run.policy} (oracle)" if run.oracle else run.policy,
        *(_seconds(value) for value in times),
        f"{summary.allocated_utilisation:.1%}",
        f"{summary.busy_utilisation:.1%}",
        f"{summary.rescales:,.0f}",
        f"{run.details.unfairness_p99:.2f}" if not math.isnan(run.details.unfairness_p99) else "-",
        duration(summary.decision_ms_p50 / 1e3),
        f"{summary.jobs_finished:,.0f}",
    ]


def failures_line(details: Details) -> str:
    """What became of trials that failed, in a sentence."""
    trials = sum(row[0] for row in details.failures.values())
    return (
        f"{count(trials, 'trial')} failed, {details.retries:,} retried, {count(details.jobs_failed, 'job')} given up, "
        f"{details.failed_device_h:,.1f} device-hours in trials that failed"
    )


def _failures(runs: Sequence[PolicyRun]) -> str:
    """A table by error class; nothing if nothing failed."""
    if not any(run.details.failures for run in runs):
        return ""
    parts = ["<h2>Trials that failed</h2>"]
    for run in runs:
        rows = "".join(
            f"<tr><td>{escape(name)}</td>{''.join(f'<td>{number:,}</td>' for number in row)}</tr>"
            for name, row in run.details.failures.items()
        )
        parts.append(
            f"<h3>{escape(run.policy)}</h3><p class='about'>{escape(failures_line(run.details))}.</p>"
            "<div class='scroll'><table><tr><th>error class</th><th>trials</th><th>retried</th>"
            f"<th>jobs given up</th></tr>{rows}</table></div>"
        )
    return "".join(parts)


def _seconds(value: float) -> str:
    """Seconds, which compare at a glance, as long as they are short.

    >>> _seconds(0.25), _seconds(4267.006), _seconds(1e6), _seconds(math.nan)
    ('0.2 s', '4,267 s', '11.6 d', '-')
    """
    if math.isnan(value):
        return "-"
    return f"{value:,.{0 if value >= 10 else 1}f} s" if value < 100_000 else f"{value / 86_400:,.1f} d"


def _numbers(run: PolicyRun) -> list[float]:
    summary = run.summary
    return [
        math.nan,
        summary.mean_jct_s,
        summary.p50_jct_s,
        summary.p99_jct_s,
        summary.makespan_s,
        summary.mean_queue_s,
        summary.allocated_utilisation,
        summary.busy_utilisation,
        summary.rescales,
        run.details.unfairness_p99,
        summary.decision_ms_p50,
        summary.jobs_finished,
    ]


def _table(runs: Sequence[PolicyRun]) -> str:
    numbers = [_numbers(run) for run in runs]
    best: dict[int, float] = {}
    if len(runs) > 1:
        for column in range(len(COLUMNS)):
            known = [row[column] for row in numbers if not math.isnan(row[column])]
            if known and len(set(known)) > 1 and column in _LOW | _HIGH:
                best[column] = min(known) if column in _LOW else max(known)
    head = "".join(f'<th title="{escape(text)}">{escape(name)}</th>' for name, text in COLUMNS.items())
    body = ""
    for run, row in zip(runs, numbers, strict=True):
        marked = [' class="best"' if row[i] == best.get(i, math.inf) else "" for i in range(len(COLUMNS))]
        body += "<tr>" + "".join(f"<td{m}>{escape(text)}</td>" for m, text in zip(marked, cells(run), strict=True))
        body += "</tr>\n"
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _image(png: bytes, text: str) -> str:
    return f'<img alt="{escape(text)}" src="data:image/png;base64,{base64.b64encode(png).decode()}">'

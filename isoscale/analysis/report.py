"""Timelines as one HTML page that needs nothing else: styles and pictures are inside, no script, no network."""

from __future__ import annotations

import base64
import datetime
from collections.abc import Mapping, Sequence
from html import escape
from itertools import zip_longest

from isoscale.analysis.figures import draw_timeline, render
from isoscale.analysis.promise_rows import SAID, PromiseRow, heading, rows, short
from isoscale.analysis.promises import Verdict
from isoscale.analysis.report_tables import Cell, Html, Table, tables
from isoscale.analysis.values import Timeline
from isoscale.analysis.words import STATES, count, duration, sizes, title

__all__ = ["page"]

#: of a table, this many rows are shown at either end
_MAX_ROWS = 150

_STYLE = """
:root { color-scheme: light; --ink: #222; --soft: #71767f; --line: #e3e5e9; --pale: #f6f7f8; }
body { font: 15px/1.5 system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; color: var(--ink);
  background: #fff; max-width: 1180px; margin: 0 auto; padding: 2rem 1.5rem 4rem; }
h1 { font-size: 1.5rem; margin: 0 0 .3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.05rem; margin: 2.4rem 0 .6rem; }
p.when { color: var(--soft); margin: 0 0 1.2rem; }
.state { display: inline-block; padding: .05rem .6rem; border-radius: 1rem; font-size: .85rem; margin-right: .5rem;
  background: #eceef1; color: #3b424c; }
.state.finished { background: #dff0e6; color: #1d5c3f; }
.state.failed { background: #fbe1dc; color: #8f1d06; }
.state.running { background: #e0eaf6; color: #24476f; }
pre.error { background: #fdf1ee; border-left: 3px solid #cc3311; padding: .7rem 1rem; white-space: pre-wrap;
  overflow-wrap: anywhere; font-size: .85rem; }
dl { display: flex; flex-wrap: wrap; border: solid var(--line); border-width: 1px 0 0 1px; margin: 0 0 1.6rem; }
dl > div { box-sizing: border-box; flex: 1 0 130px; padding: .55rem .8rem;
  border: solid var(--line); border-width: 0 1px 1px 0; }
dl > div.wide { flex-basis: 100%; }
dt { color: var(--soft); font-size: .8rem; }
dd { margin: 0; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.wide dd { font-family: ui-monospace, "Cascadia Mono", Menlo, Consolas, monospace; font-size: .85rem; }
img { width: 100%; height: auto; display: block; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 600; color: var(--soft); border-bottom: 1px solid #c9cdd3; white-space: nowrap; }
th, td { padding: .3rem 1.1rem .3rem 0; vertical-align: top; }
td.number, th.number { text-align: right; white-space: nowrap; }
td:first-child, th:first-child { text-align: left; }
td { border-bottom: 1px solid var(--line); }
td.more { color: var(--soft); text-align: center; }
.bar { display: inline-block; width: 60px; height: 8px; background: #e9ebee; border-radius: 4px; margin-right: .5rem; }
.bar i { display: block; height: 100%; background: #d9820f; border-radius: 4px; }
table.promises td { padding-top: .45rem; padding-bottom: .45rem; }
table.promises td:nth-child(2) { width: 45%; }
table.promises p { margin: 0; }
.said { display: inline-block; padding: 0 .6rem; border-radius: 1rem; white-space: nowrap;
  background: #eceef1; color: #3b424c; }
.said.kept { background: #dff0e6; color: #1d5c3f; }
.said.broken { background: #fbe1dc; color: #8f1d06; }
td.soft { color: var(--soft); }
section + section { margin-top: 3.5rem; border-top: 2px solid var(--line); padding-top: 2rem; }
footer { color: var(--soft); font-size: .8rem; margin-top: 3rem; }
"""
# Whatever a script logged, the page loads and runs nothing.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def page(
    shown: Sequence[Timeline],
    *,
    verdicts: Sequence[Verdict | None] = (),
    jobs_left_out: int = 0,
    profile_png: bytes = b"",
) -> str:
    """One section per timeline, then the picture of a profile if there is one. `verdicts`: of each, in this order."""
    sections = [_section(one, verdict) for one, verdict in zip_longest(shown, verdicts[: len(shown)]) if one]
    if profile_png:
        sections.append(f"<section><h2>Profile</h2>{_image(profile_png, 'throughput over executors')}</section>")
    if jobs_left_out:
        sections.append(f"<section><p>{count(jobs_left_out, 'more job')} in the log.</p></section>")
    name = escape(title(shown[0]) if shown else "isoscale")
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{name}</title>\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<style>{_STYLE}</style>\n</head>\n'
        f"<body>\n{''.join(sections)}\n<footer>isoscale report. Times count from the first event; a gap is the time "
        "between two committed steps; idle is the share of its steps in which an executor waited for others."
        "</footer>\n</body>\n</html>\n"
    )


def _section(shown: Timeline, verdict: Verdict | None = None) -> str:
    if shown.simulated:
        when = f"simulated, from second {shown.start:,.0f} on" if shown.state != "empty" else ""
    else:
        when = datetime.datetime.fromtimestamp(shown.start, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    state = f'<span class="state {shown.state}">{STATES[shown.state]}</span>'
    parts = [f'<section><h1>{escape(title(shown))}</h1><p class="when">{state}{when}</p>']
    if shown.error and shown.state == "failed":
        parts.append(f'<pre class="error">{escape(shown.error)}</pre>')
    if shown.state == "empty":
        return f"{parts[0]}<p>The log has no events.</p></section>"
    parts.append(_facts(shown, {"promises": short(verdict)} if verdict is not None else {}))
    parts.append(_image(render(draw_timeline(shown, heading=False)), f"timeline of {title(shown)}"))
    if verdict is not None:
        parts.append(_promises(verdict, shown.start))
    parts += [_table(table) for table in tables(shown) if table.rows]
    return "".join(parts) + "</section>"


def _promises(verdict: Verdict, start: float) -> str:
    body = "".join(_promise(row) for row in rows(verdict, start))
    head = "<thead><tr><th></th><th>promise</th><th>what was seen</th></tr></thead>"
    table = f'<table class="promises">{head}<tbody>{body}</tbody></table>'
    return f'<h2>{heading(verdict)}</h2><div class="scroll">{table}</div>'


def _promise(row: PromiseRow) -> str:
    said = f'<span class="said {row.said}">{SAID[row.said]}</span>'
    soft = "" if row.said == "broken" else ' class="soft"'
    lines = "".join(f"<p>{escape(line)}</p>" for line in row.lines)
    return f"<tr><td>{said}</td><td>{escape(row.statement)}</td><td{soft}>{lines}</td></tr>"


def _facts(shown: Timeline, more: Mapping[str, str]) -> str:
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
        **more,
        **{name: f"{value:.6g}" for name, value in shown.logged[:24]},
    }
    shown_facts = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts.items() if value
    )
    digest = f'<div class="wide"><dt>digest</dt><dd>{escape(shown.digest)}</dd></div>' if shown.digest else ""
    return f"<dl>{shown_facts}{digest}</dl>"


def _image(png: bytes, words: str) -> str:
    return f'<img alt="{escape(words)}" src="data:image/png;base64,{base64.b64encode(png).decode()}">'


def _table(table: Table) -> str:
    table = table.without_empty_columns()
    names = "".join(f"<th{_kind(name in table.numbers)}>{escape(name)}</th>" for name in table.columns)
    rows = [_row(table, row) for row in table.rows]
    hidden = len(rows) - 2 * _MAX_ROWS
    if hidden > 0:
        rows[_MAX_ROWS:-_MAX_ROWS] = [f'<tr><td class="more" colspan="{len(table.columns)}">{hidden:,} more</td></tr>']
    body = f"<thead><tr>{names}</tr></thead><tbody>{''.join(rows)}</tbody>"
    return f'<h2>{escape(table.name)}</h2><div class="scroll"><table>{body}</table></div>'


def _row(table: Table, row: Sequence[Cell]) -> str:
    cells = [
        f"<td{_kind(name in table.numbers)}>{cell.text if isinstance(cell, Html) else escape(cell)}</td>"
        for name, cell in zip(table.columns, row, strict=True)
    ]
    return f"<tr>{''.join(cells)}</tr>"


def _kind(is_number: bool) -> str:
    return ' class="number"' if is_number else ""

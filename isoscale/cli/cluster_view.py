"""How jobs and devices of a cluster look in a terminal: rich renderables of what the service told."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from isoscale.cli.progress import count, duration
from isoscale.cluster.values import ENDED, Event, JobShown, NodeShown, Why

__all__ = ["device_table", "event_line", "job_page", "job_table", "why_text"]

_STYLES = {
    "queued": "yellow",
    "starting": "cyan",
    "running": "green",
    "resizing": "cyan",
    "pausing": "cyan",
    "paused": "magenta",
    "finished": "dim green",
    "failed": "red",
    "cancelled": "dim",
}
_DEVICE_STYLES = {"free": "dim", "held": "green", "releasing": "cyan", "away": "magenta"}


def job_table(jobs: Sequence[JobShown], now: float) -> RenderableType:
    """A row per job: what it does, on what, how far it is, why it waits."""
    if not jobs:
        return Text("no jobs; isoscale submit SCRIPT --workers N submits one", style="dim")
    several = len({job.tenant for job in jobs}) > 1
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("ID", no_wrap=True)
    table.add_column("NAME", no_wrap=True, max_width=24)
    if several:
        table.add_column("TENANT", no_wrap=True, max_width=12)
    table.add_column("STATE", no_wrap=True)
    table.add_column("PRIO", justify="right")
    table.add_column("DEVICES", justify="right", no_wrap=True)
    table.add_column("STEP", justify="right", no_wrap=True)
    table.add_column("AGE", justify="right", no_wrap=True)
    table.add_column("WHY", overflow="fold")
    for job in jobs:
        table.add_row(
            job.id,
            job.name,
            *([job.tenant] if several else []),
            Text(job.state, style=_STYLES[job.state]),
            str(job.priority),
            f"{len(job.devices)}/{job.max_devices}" if job.state not in ENDED else "",
            f"{job.step}/{job.total}" if job.total else str(job.step),
            duration((job.ended_s or now) - job.submitted_s),
            _why_cell(job, now),
        )
    return table


def _why_cell(job: JobShown, now: float) -> Text:
    if job.state == "finished":
        return Text(f"digest {job.digest[:12]}", style="dim")
    text = Text(job.why.text)
    if job.state in ("queued", "paused") and job.why.estimated_start_s is not None:
        text.append(f"; starts {_expected(job.why.estimated_start_s, now)}", style="cyan")
    elif job.state in ("running", "resizing") and job.why.estimated_end_s is not None:
        text.append(f"; ends {_expected(job.why.estimated_end_s, now)}", style="cyan")
    return text


def why_text(job: JobShown, now: float) -> RenderableType:
    """`jobs why`: the reason, then the numbers."""
    why = job.why
    lines = [Text.assemble((job.id, "bold"), f" ({job.name}) is ", (job.state, _STYLES[job.state]), f": {why.text}")]
    rows: list[tuple[str, str]] = [("reason", why.reason)]
    if why.position is not None:
        rows.append(("place in the queue", str(why.position)))
    if why.ahead:
        shown = ", ".join(why.ahead[:10]) + (f" and {len(why.ahead) - 10} more" if len(why.ahead) > 10 else "")
        rows.append(("ahead of it", shown))
    if why.holders:
        held = ", ".join(f"{holder} {number}" for holder, number in list(why.holders.items())[:10])
        rows.append(("who holds what", held))
    rows += _estimates(why, now)
    width = max(len(name) for name, _ in rows)
    lines += [Text(f"  {name:<{width}}  {value}") for name, value in rows]
    return Group(*lines)


def _estimates(why: Why, now: float) -> list[tuple[str, str]]:
    rows = []
    for name, moment, around in (
        ("estimated start", why.estimated_start_s, why.start_range_s),
        ("estimated end", why.estimated_end_s, why.end_range_s),
    ):
        if moment is not None:
            between = (
                f" (between {_moment(around[0], now)} and {_moment(around[1], now)})" if around and moment > now else ""
            )
            rows.append((name, f"{_expected(moment, now)}{between}"))
    return rows


def job_page(job: JobShown, events: Sequence[Event], now: float) -> RenderableType:
    """`jobs show`: everything that there is to know, and the last events."""
    rows = [
        ("name", job.name),
        ("state", job.state),
        ("why", job.why.text),
        ("tenant, owner", f"{job.tenant}, {job.owner}"),
        ("priority", str(job.priority)),
        ("logical workers", str(job.workers)),
        ("devices", f"{', '.join(job.devices) or 'none'} (may have {job.min_devices} to {job.max_devices})"),
        ("step", f"{job.step}" + (f" of {job.total}" if job.total else "")),
        ("loss", "" if job.loss is None else f"{job.loss:.6g}"),
        ("samples", "" if job.samples is None else f"{job.samples:,}"),
        ("batch size", "" if job.batch is None else str(job.batch)),
        ("noise scale", "" if job.noise_scale is None else f"{job.noise_scale:.4g}"),
        ("steps per second", "" if job.steps_per_s is None else f"{job.steps_per_s:g}"),
        ("submitted", _moment(job.submitted_s, now)),
        ("started", "" if job.started_s is None else _moment(job.started_s, now)),
        ("ended", "" if job.ended_s is None else _moment(job.ended_s, now)),
        ("digest", job.digest),
        ("error", job.error if job.state == "failed" else ""),
        ("failures", str(job.failures) if job.failures else ""),
        ("waits for", ", ".join(job.after)),
        ("script", job.script),
        ("directory", job.directory),
        ("you may", ", ".join(job.actions)),
        *_estimates(job.why, now),
    ]
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        if value:
            table.add_row(name, value)
    last = [event_line(event, now) for event in events[-12:]]
    return Group(Text(job.id, style="bold"), table, *([Text(), Text("events", style="dim"), *last] if last else []))


def event_line(event: Event, now: float) -> Text:
    fields = {name: value for name, value in event.fields.items() if value not in ("", None, [], False)}
    if "from" in fields and "to" in fields:
        fields = {
            "devices": f"{fields.pop('from')} -> {fields.pop('to')}",
            **{k: v for k, v in fields.items() if k != "devices"},
        }
    told = ", ".join(f"{name} {_short(value)}" for name, value in fields.items())
    by = f" by {event.by}" if event.by else ""
    return Text.assemble(
        (f"{_moment(event.t, now):>12}  ", "dim"), f"{event.event}{by}", (f"  {told}" if told else "", "dim")
    )


def device_table(nodes: Sequence[NodeShown]) -> RenderableType:
    parts: list[RenderableType] = []
    for node in nodes:
        away = node.num_devices - node.num_ours
        head = Text.assemble((node.name, "bold"), f"  {count(node.num_devices, 'device')} of kind {node.kind}")
        parts.append(head.append(f", {away} away" if away else "", style="magenta"))
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        for device in node.devices:
            state = Text(device.state, style=_DEVICE_STYLES[device.state])
            pinned = f"core {', '.join(map(str, device.cores))}" if device.cores else ""
            table.add_row(f"  {device.id}", state, device.job, Text(pinned, style="dim"))
        parts.append(table)
    return Group(*parts)


def _short(value: object) -> str:
    text = " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _expected(moment: float, now: float) -> str:
    return _moment(moment, now) if moment > now else "any moment"


def _moment(moment: float, now: float) -> str:
    """As people say it: so long ago, or in so long; days by date."""
    away = moment - now
    if abs(away) > 86_400:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(moment))
    return f"in {duration(away)}" if away > 0 else f"{duration(-away)} ago"

"""How `isoscale status` looks: a job's state as a rich renderable. Reads nothing but the status that it is given.

What is unknown is left out.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from isoscale.cli.progress import count, duration
from isoscale.protocol.status import ExecutorStatus, JobStatus

__all__ = ["status_table"]

_STATE_STYLES = {
    "starting": "bold yellow",
    "training": "bold green",
    "rescaling": "bold cyan",
    "recovering": "bold yellow",
    "finished": "bold green",
    "stopped": "bold yellow",
    "interrupted": "bold yellow",
    "failed": "bold red",
}
_EXECUTOR_STYLES = {"member": "green", "spare": "cyan", "leaving": "yellow"}
_BAR = 10
_IDLE_BAR = 5
#: an executor that has been silent for longer stands out
_SILENT_S = 3.0
_MAX_MESSAGES = 5
_MAX_EXECUTORS = 64
#: what comes before and after training in the life of one coordinator
_SAME_START_S = 10.0


def status_table(status: JobStatus) -> RenderableType:
    """A headline, the progress, a row per executor, and what is under way."""
    parts: list[RenderableType] = [_headline(status), _progress(status)]
    executors = status.get("executors", [])
    if executors:
        parts += [Text(), _executors(executors)]
        hidden = len(executors) - _MAX_EXECUTORS
        if hidden > 0:
            parts.append(Text(f"and {count(hidden, 'more executor')}", style="dim"))
    notes = _notes(status)
    return Group(*parts, *([Text(), *notes] if notes else []))


def _headline(status: JobStatus) -> Text:
    state = str(status.get("state") or "unknown")
    line = Text(str(status.get("job") or "job"), style="bold")
    line.append("  ").append(state, style=_STATE_STYLES.get(state, "bold"))
    if status.get("target"):
        line.append(f"  target {status['target']}", style="default")
    for name, value in (("generation", status.get("generation")), ("term", status.get("term"))):
        if value is not None:
            line.append(f"  {name} {value}", style="dim")
    return line


def _progress(status: JobStatus) -> Text:
    step, total, rate = _number(status.get("step")), _number(status.get("total")), _number(status.get("steps_per_s"))
    line = Text()
    if step is not None and total:
        filled = round(_BAR * max(0.0, min(1.0, step / total)))
        line.append("━" * filled, style="green").append("─" * (_BAR - filled), style="bright_black").append("  ")
    parts = []
    if step is not None:
        parts.append(f"step {step:.0f}{f'/{total:.0f}' if total else ''}")
    if status.get("epoch") is not None:
        parts.append(f"epoch {status['epoch']}")
    loss = _number(status.get("loss"))
    if loss is not None:
        parts.append(f"loss {loss:.4f}")
    if rate:
        parts.append(f"{rate:.3g} steps/s")
        if step is not None and total and total > step and status.get("state") not in ("finished", "failed"):
            parts.append(f"{duration((total - step) / rate)} left")
    return line.append("  ".join(parts))


def _executors(executors: Sequence[ExecutorStatus]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    # Fits 80 columns: an executor's line that is cut off would hide what it is looked at for.
    for name in ("executor", "kind", "pid", "state", "logical\nworkers", "turn", "idle", "silent"):
        right = name in ("executor", "pid", "turn", "silent")
        table.add_column(name, no_wrap=True, justify="right" if right else "left", vertical="bottom")
    for entry in executors[:_MAX_EXECUTORS]:
        state, seen = str(entry.get("state") or ""), _number(entry.get("last_seen_s"))
        silent = seen is not None and seen > _SILENT_S
        table.add_row(
            _text(entry.get("executor")),
            _text(entry.get("kind")),
            _text(entry.get("pid")),
            Text(state, style=_EXECUTOR_STYLES.get(state, "")),
            _workers(entry.get("logical_workers")),
            _short(_number(entry.get("turn_s"))),
            _idle(_number(entry.get("idle"))),
            Text(_short(seen), style="yellow" if silent else "dim"),
        )
    return table


def _notes(status: JobStatus) -> list[RenderableType]:
    notes: list[RenderableType] = []
    if status.get("pending"):
        notes.append(Text.assemble(("pending  ", "cyan"), str(status["pending"])))
    for one in status.get("set_aside", []):
        words = f"executor {one['executor']} ({one['kind']}): {one['gain']:.2f}x faster without it"
        notes.append(Text.assemble(("set aside  ", "yellow"), f"{words}; isoscale scale takes it back"))
    for request in status.get("requests", []):
        if request["outcome"] is None:
            words = f"{request['request']} {request.get('target', '')}".strip()
            words += f" batch size {request['batch']}" if "batch" in request else ""
            waiting = f", {request.get('waits_for', '')} ({duration(request.get('open_s', 0.0))})"
            notes.append(Text.assemble((f"request {request['id']}  ", "cyan"), words, waiting))
    if (batch := status.get("batch")) is not None:
        others = ", ".join(map(str, batch["sizes"]))
        words = f"{batch['size']} of {others} by rule {batch['rule'] or 'none: it cannot change'}"
        notes.append(Text.assemble(("batch size  ", "dim"), words))
    noise, skipped = _number(status.get("noise_scale")), status.get("noise_skipped")
    if noise is not None or skipped:
        parts = ["not known" if noise is None else f"{noise:.4g} samples"]
        parts += [f"{skipped} steps skipped: not measurable"] if skipped else []
        notes.append(Text.assemble(("noise scale  ", "dim"), ", ".join(parts)))
    for name, stream in status.get("streams", {}).items():
        words = f"epoch {stream['epoch']}, {stream['handed_out']} of {stream['partitions']} partitions given out"
        notes.append(Text.assemble((f"{name}  ", "dim"), f"{words}, {stream['samples']} samples used"))
    checkpoint = status.get("checkpoint")
    if checkpoint:
        words = f"of step {checkpoint['step']}, {duration(checkpoint['age_s'])} ago"
        notes.append(Text.assemble(("checkpoint  ", "dim"), words))
    ended = (("reason", status.get("stop_reason"), "dim"), ("error", status.get("error"), "red"))
    logged = "  ".join(f"{name} {_shown(value)}" for name, value in status.get("logged", {}).items())
    facts = [("logged", logged), ("took", _took(status)), ("command", status.get("command", ""))]
    facts += [("result", status.get("result", "")), ("digest", status.get("digest", ""))]
    for name, value, style in (*ended, *((name, value, "dim") for name, value in facts)):
        if value:
            notes.append(Text.assemble((f"{name}  ", style), value))
    notes += [Text.assemble(("! ", "yellow"), message) for message in status.get("messages", [])[-_MAX_MESSAGES:]]
    return notes


def _took(status: JobStatus) -> str:
    """How long a job that has ended took, from its first start to its end."""
    began, ended = status.get("began"), status.get("ended")
    if began is None or ended is None:
        return duration(status["seconds"]) if "seconds" in status else ""
    day = time.strftime("%Y-%m-%d %H:%M", time.localtime(began))
    last = status.get("seconds", 0.0)
    again = f", the last {duration(last)} after a resume" if ended - began > last + _SAME_START_S else ""
    return f"{duration(ended - began)} from {day}{again}"


def _shown(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def _workers(block: Sequence[int] | None) -> Text:
    if block is None:
        return Text("-", style="dim")
    first, last = block
    return Text(str(first) if first == last else f"{first}-{last}")


def _idle(share: float | None) -> Text:
    if share is None:
        return Text("")
    share = min(max(share, 0.0), 1.0)
    filled = round(_IDLE_BAR * share)
    bar = Text("█" * filled, style="yellow").append("░" * (_IDLE_BAR - filled), style="bright_black")
    return bar.append(f" {share:4.0%}", style="default")


def _short(seconds: float | None) -> str:
    """
    >>> _short(0.0213), _short(0.5), _short(3.21), _short(None)
    ('21 ms', '500 ms', '3.2 s', '')
    """
    if seconds is None:
        return ""
    if seconds < 1:
        return f"{1000 * seconds:.3g} ms" if seconds < 0.01 else f"{1000 * seconds:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 60 else duration(seconds)


def _number(value: object) -> float | None:
    """A number that can be shown: NaN comes as text over JSON."""
    if isinstance(value, str) and value in ("nan", "inf", "-inf"):
        return float(value)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _text(value: object) -> str:
    return "" if value is None else str(value)

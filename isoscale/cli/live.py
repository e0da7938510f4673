"""How `isoscale status` looks: a job's state as a rich renderable. Reads nothing but the dict that it is given.

Every key may be missing or None; what is unknown is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from isoscale.cli.progress import count, duration

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


def status_table(status: Mapping[str, Any]) -> RenderableType:
    """A headline, the progress, a row per executor, and what is under way."""
    parts: list[RenderableType] = [_headline(status), _progress(status)]
    executors = [entry for entry in _list(status.get("executors")) if isinstance(entry, Mapping)]
    if executors:
        parts += [Text(), _executors(executors)]
        hidden = len(executors) - _MAX_EXECUTORS
        if hidden > 0:
            parts.append(Text(f"and {count(hidden, 'more executor')}", style="dim"))
    notes = _notes(status)
    return Group(*parts, *([Text(), *notes] if notes else []))


def _headline(status: Mapping[str, Any]) -> Text:
    state = str(status.get("state") or "unknown")
    line = Text(str(status.get("job") or "job"), style="bold")
    line.append("  ").append(state, style=_STATE_STYLES.get(state, "bold"))
    if status.get("target"):
        line.append(f"  target {status['target']}", style="default")
    for name in ("generation", "term"):
        if status.get(name) is not None:
            line.append(f"  {name} {status[name]}", style="dim")
    return line


def _progress(status: Mapping[str, Any]) -> Text:
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


def _executors(executors: Sequence[Mapping[str, Any]]) -> Table:
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


def _notes(status: Mapping[str, Any]) -> list[RenderableType]:
    notes: list[RenderableType] = []
    if status.get("pending"):
        notes.append(Text.assemble(("pending  ", "cyan"), str(status["pending"])))
    for one in _list(status.get("set_aside")):
        if isinstance(one, Mapping):
            words = f"executor {one.get('executor')} ({one.get('kind')}): {_number(one.get('gain')) or 1:.2f}x faster"
            notes.append(Text.assemble(("set aside  ", "yellow"), f"{words} without it; isoscale scale takes it back"))
    for request in _list(status.get("requests")):
        if isinstance(request, Mapping) and request.get("outcome") is None:
            words = f"{request.get('request')} {request.get('target') or ''}".strip()
            waiting = f", {request.get('waits_for')} ({duration(_number(request.get('open_s')) or 0)})"
            notes.append(Text.assemble((f"request {request.get('id')}  ", "cyan"), words, waiting))
    streams = status.get("streams")
    for name, stream in streams.items() if isinstance(streams, Mapping) else ():
        words = f"epoch {stream['epoch']}, {stream['handed_out']} of {stream['partitions']} partitions given out"
        notes.append(Text.assemble((f"{name}  ", "dim"), f"{words}, {stream['samples']} samples used"))
    checkpoint = status.get("checkpoint")
    if isinstance(checkpoint, Mapping) and checkpoint.get("step") is not None:
        age = _number(checkpoint.get("age_s"))
        words = f"of step {checkpoint['step']}" + ("" if age is None else f", {duration(age)} ago")
        notes.append(Text.assemble(("checkpoint  ", "dim"), words))
    for name, key, style in (("reason", "stop_reason", "dim"), ("error", "error", "red"), ("digest", "digest", "dim")):
        if status.get(key):
            notes.append(Text.assemble((f"{name}  ", style), str(status[key])))
    messages = [str(message) for message in _list(status.get("messages"))]
    notes += [Text.assemble(("! ", "yellow"), message) for message in messages[-_MAX_MESSAGES:]]
    return notes


def _workers(block: object) -> Text:
    if not isinstance(block, Sequence) or isinstance(block, str) or len(block) != 2:
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


def _list(value: object) -> Sequence[object]:
    return value if isinstance(value, list | tuple) else ()


def _text(value: object) -> str:
    return "" if value is None else str(value)

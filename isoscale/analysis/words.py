"""How a timeline is said in words and numbers: used by figures, pages and the command line alike."""

from __future__ import annotations

from isoscale.timelines.values import Timeline

__all__ = ["STATES", "count", "duration", "scale", "sizes", "subtitle", "title"]

STATES = {
    "empty": "no events yet",
    "running": "running, or ended without a word",
    "finished": "finished",
    "stopped": "stopped",
    "failed": "failed",
}
_MAX_SIZES = 9


def title(shown: Timeline) -> str:
    return f"{shown.job}: {sizes(shown)}" if shown.job and shown.sizes else shown.job or sizes(shown) or "a run"


def subtitle(shown: Timeline) -> str:
    parts = [STATES[shown.state]]
    if shown.num_logical_workers:
        parts.append(count(shown.num_logical_workers, "logical worker"))
    if shown.state != "empty":
        parts.append(f"{count(shown.step, 'step')} in {duration(shown.seconds)}")
    if shown.rescales:
        parts.append(count(len(shown.rescales), "rescale"))
    if shown.digest:
        parts.append(f"digest {shown.digest[:16]}")
    return ", ".join(parts)


def sizes(shown: Timeline) -> str:
    """How many executors there were, one after another; of many changes, the extremes."""
    numbers = [size for _, size in shown.sizes]
    if not numbers:
        return ""
    if len(numbers) > _MAX_SIZES:
        return f"{min(numbers)} to {count(max(numbers), 'executor')}"
    last = count(numbers[-1], "executor")
    return " → ".join([*map(str, numbers[:-1]), last])


def scale(seconds: float) -> tuple[str, float]:
    """The unit for an axis of this length, and its seconds."""
    for unit, length in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds > 3 * length:
            return unit, length
    return "seconds", 1.0


def duration(seconds: float | None) -> str:
    """
    >>> duration(0.0123), duration(0.5), duration(9.44), duration(75), duration(3700), duration(200000), duration(None)
    ('12.3 ms', '500 ms', '9.4 s', '1 min 15 s', '1 h 01 min', '2 d 7 h', '')
    """
    if seconds is None:
        return ""
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms" if seconds else "0 s"
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 172800:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def count(number: int, noun: str) -> str:
    """
    >>> count(1, "executor"), count(3000, "step")
    ('1 executor', '3,000 steps')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"

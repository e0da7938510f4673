"""On what terms a coordinator begins: whoever reads the log holds the rest of it against them. Pure."""

from __future__ import annotations

from typing import Any

from isoscale.runtime.membership.target import Goal
from isoscale.types import JobSpec, Settings

__all__ = ["terms_of"]

#: settings that the log tells: how long things may take, and what there should be
_TOLD = ("heartbeat_s", "lost_after_s", "stalled_after_s", "checkpoint_every", "spares", "spawn")


def terms_of(spec: JobSpec, settings: Settings, goal: Goal, term: int) -> dict[str, Any]:
    """Fields of the event `coordinator_started`."""
    return {
        "term": term,
        "command": settings.command,
        "determinism": spec.determinism,
        "target": str(goal.target),
        "plan": [[entry.step, str(entry.devices)] for entry in goal.plan],
        "set_aside": [one.executor for one in goal.aside],
        "settings": {name: getattr(settings, name) for name in _TOLD},
    }

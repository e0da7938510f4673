"""Colours and signs that all figures share. Distinct for readers who see few colours, and in grey."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from isoscale.timelines.values import MarkKind

__all__ = ["CHECKPOINT", "FAINT", "FEW", "INK", "PALE", "RESCALE", "SIGNS", "SOFT", "Sign", "worker_colours"]

INK, SOFT, FAINT, PALE = "#222222", "#71767f", "#c9cdd3", "#f3f4f6"
RESCALE = "#5b6470"
FEW = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bb8844", "#888888")


@dataclass(frozen=True, slots=True)
class Sign:
    """How a mark is drawn, and what the legend calls it."""

    marker: str
    colour: str
    label: str


SIGNS: dict[MarkKind, Sign] = {
    "lost": Sign("X", "#cc3311", "executor lost"),
    "failed": Sign("X", "#7a1200", "job failed"),
    "straggler": Sign("v", "#d9820f", "straggler"),
    "suspect": Sign("o", "#d9820f", "suspected"),
    "notice": Sign("s", "#33557f", "notice to leave"),
    "coordinator": Sign("D", "#7b4ea3", "new coordinator"),
    "warning": Sign("d", "#b8a200", "warning"),
}
CHECKPOINT = Sign("|", SOFT, "checkpoint")


def worker_colours(num_logical_workers: int) -> list[Any]:
    """A colour per logical rank: distinct ones for a few, for many a scale on which neighbours look alike."""
    if num_logical_workers <= len(FEW):
        return list(FEW[:num_logical_workers])
    import matplotlib

    spread = matplotlib.colormaps["turbo"]
    # The ends of the scale are nearly black; and paler colours let marks stand out.
    picked = (spread(0.07 + 0.83 * rank / (num_logical_workers - 1)) for rank in range(num_logical_workers))
    return [tuple(0.82 * part + 0.14 for part in colour[:3]) for colour in picked]

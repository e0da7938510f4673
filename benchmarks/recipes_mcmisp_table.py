"""The McMisP study as a table of docs/recipes.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_HEADER = "text | backbone | measure | seeds | plain | guided | guided - plain | verdict"
_TEXTS = {"planted": "planted", "text": "State of the Union"}
#: by measure: what it is called, and the sign of what is better
_MEASURES = {
    "cue_accuracy": ("accuracy on cue sentences", 1),
    "cue_accuracy_so_far": ("the same, mean over training", 1),
    "accuracy": ("accuracy on all sentences", 1),
    "validation_loss": ("validation loss", -1),
    "party": ("party of a passage, fine-tuned", 1),
}


def mcmisp(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = [f"| {_HEADER} |", "|" + "---|" * (_HEADER.count("|") + 1)]
    for row in rows:
        cells = [_TEXTS[row["text"]], row["backbone"]]
        cells += _steps(row) if row["measure"] == "steps_to_plain_loss" else _both(row)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _both(row: Mapping[str, Any]) -> list[str]:
    name, sign = _MEASURES[row["measure"]]
    arms = [_interval(row[arm]) for arm in ("plain", "guided", "difference")]
    return [name, str(row["difference"]["n"]), *arms, verdict(row["difference"], sign)]


def _steps(row: Mapping[str, Any]) -> list[str]:
    steps = ", ".join("never" if s is None else f"{s:.0f}" for s in row["steps"])
    name, reached = "steps to plain's last validation loss", f"{row['reached']} of {row['of']} reach it"
    return [name, str(row["of"]), str(row["plain"]), steps, "", reached]


def verdict(difference: Mapping[str, Any], sign: int) -> str:
    """Better or worse only where the whole interval is on one side of zero."""
    if difference["half_width"] is None:
        return "too few seeds"
    if abs(difference["mean"]) <= difference["half_width"]:
        return "no difference shown"
    return "better" if difference["mean"] * sign > 0 else "worse"


def _interval(value: Mapping[str, Any]) -> str:
    half = "" if value["half_width"] is None else f" +- {value['half_width']:.3f}"
    return f"{value['mean']:.3f}{half}"

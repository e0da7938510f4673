"""The McMisP study as a table of docs/recipes.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_HEADER = "text | backbone | measure | seeds | knowing nothing | plain | guided | guided - plain | verdict"
_TEXTS = {"planted": "planted", "text": "State of the Union"}
#: by measure: what it is called, the sign of what is better, and digits
_MEASURES = {
    "cue_accuracy": ("cue sentences, accuracy", 1, 3),
    "cue_accuracy_midway": ("cue sentences, after {step} steps", 1, 3),
    "cue_accuracy_so_far": ("cue sentences, mean over training", 1, 3),
    "accuracy": ("all sentences, accuracy", 1, 3),
    "validation_loss": ("validation loss", -1, 3),
    "party": ("party of a passage, fine-tuned", 1, 3),
    "party_of_address": ("party of an address, fine-tuned", 1, 3),
    "steps_to_plain_loss": ("steps to plain's last validation loss", -1, 0),
}


def mcmisp(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = [f"| {_HEADER} |", "|" + "---|" * (_HEADER.count("|") + 1)]
    for row in rows:
        name, sign, digits = _MEASURES[row["measure"]]
        trivial = f"{row['trivial']:.{digits}f}" if "trivial" in row else ""
        seeds = f"{row['reached']} of {row['of']} reach it" if "reached" in row else str(row["difference"]["n"])
        arms = [_interval(row[arm], digits) for arm in ("plain", "guided", "difference")]
        name = name.format(step=row.get("step"))
        found = verdict(row["difference"], sign) if row.get("reached") == row.get("of") else "not always reached"
        cells = [_TEXTS[row["text"]], row["backbone"], name, seeds, trivial, *arms, found]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def verdict(difference: Mapping[str, Any], sign: int) -> str:
    """Better or worse only where the whole interval is on one side of zero."""
    if difference["half_width"] is None:
        return "too few seeds"
    if abs(difference["mean"]) <= difference["half_width"]:
        return "no difference shown"
    return "better" if difference["mean"] * sign > 0 else "worse"


def _interval(value: Mapping[str, Any], digits: int) -> str:
    if value["mean"] is None:
        return ""
    half = "" if value["half_width"] is None else f" +- {value['half_width']:.{digits}f}"
    return f"{value['mean']:.{digits}f}{half}"

"""What the runs of the McMisP study say: both arms of every measure, and their difference seed by seed."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

from scipy import stats

Run = dict[str, Any]

SEEDS = range(5)
#: weight of guidance in the guided arm; ELECTRA's own loss is about ten times as large as BERT's
GUIDANCE = {"bert": 0.1, "electra": 1.0}
STEPS = {"planted": 400, "text": 400}
EXAMINE_EVERY = 50

#: by part and measure: the number that stands for a run
_MEASURES: dict[str, dict[str, Callable[[Run], float]]] = {
    "planted": {
        "cue_accuracy": lambda run: run["cue_accuracy"][-1],
        "cue_accuracy_so_far": lambda run: statistics.fmean(run["cue_accuracy"]),
        "accuracy": lambda run: run["accuracy"],
    },
    "text": {"validation_loss": lambda run: run["validation_loss"][-1], "party": lambda run: run["party"]},
}


def summary(runs: Mapping[str, Run]) -> list[dict[str, Any]]:
    """For each part, backbone and measure, over the seeds of which both arms are done."""
    rows = []
    for part, measures in _MEASURES.items():
        for backbone, weight in GUIDANCE.items():
            pairs = [[runs.get(key(part, backbone, w, s)) for w in (0.0, weight)] for s in SEEDS]
            both = [(plain, guided) for plain, guided in pairs if plain is not None and guided is not None]
            for name, number in measures.items() if both else ():
                numbers = [(number(plain), number(guided)) for plain, guided in both]
                row = _row(part, backbone, name)
                row["plain"] = interval([plain for plain, _ in numbers])
                row["guided"] = interval([guided for _, guided in numbers])
                row["difference"] = interval([guided - plain for plain, guided in numbers])
                rows.append(row)
            if part == "text" and both:
                rows.append(_row(part, backbone, "steps_to_plain_loss") | _steps(both))
    return rows


def _steps(both: list[tuple[Run, Run]]) -> dict[str, Any]:
    steps = [reached(guided["validation_loss"], plain["validation_loss"][-1]) for plain, guided in both]
    finished = [s for s in steps if s is not None]
    return {"plain": STEPS["text"], "steps": steps, "reached": len(finished), "of": len(both), **interval(finished)}


def reached(curve: list[float], value: float) -> float | None:
    """The step at which a curve first comes down to a value, between examinations on a straight line."""
    before = None
    for i, here in enumerate(curve):
        if here <= value:
            share = 1.0 if before is None else (before - value) / (before - here)
            return round(EXAMINE_EVERY * (i + share), 1)
        before = here
    return None


def interval(values: list[float]) -> dict[str, Any]:
    """Mean and half-width of the 95 % interval by Student's t; None where there are too few values."""
    mean = round(statistics.fmean(values), 4) if values else None
    half = None
    if len(values) > 1:
        half = round(stats.t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5, 4)
    return {"mean": mean, "half_width": half, "n": len(values)}


def key(part: str, backbone: str, guidance: float, seed: int) -> str:
    return f"{part}/{backbone}/guidance {guidance:g}/seed {seed}"


def _row(part: str, backbone: str, measure: str) -> dict[str, Any]:
    return {"text": part, "backbone": backbone, "measure": measure}

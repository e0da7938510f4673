"""What the runs of the McMisP study say: both arms of every measure, and their difference seed by seed."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from scipy import stats

Run = dict[str, Any]

SEEDS = range(5)
#: weight of guidance in the guided arm; ELECTRA's own loss is about ten times as large as BERT's
GUIDANCE = {"bert": 0.1, "electra": 1.0}
STEPS = {"planted": {"bert": 200, "electra": 350}, "text": {"bert": 400, "electra": 700}}
EXAMINE_EVERY = 25

#: by part and measure: the number that stands for a run
_MEASURES: dict[str, dict[str, Callable[[Run], float]]] = {
    "planted": {
        "cue_accuracy": lambda run: run["cue_accuracy"][-1],
        "cue_accuracy_so_far": lambda run: statistics.fmean(run["cue_accuracy"]),
        "accuracy": lambda run: run["accuracy"],
    },
    "text": {
        "validation_loss": lambda run: run["validation_loss"][-1],
        "party": lambda run: run["party"],
        "party_of_address": lambda run: run["party_of_address"],
    },
}


def summary(runs: Mapping[str, Run]) -> list[dict[str, Any]]:
    """For each part, backbone and measure, over the seeds of which both arms are done."""
    rows = []
    for part, measures in _MEASURES.items():
        for backbone, weight in GUIDANCE.items():
            pairs = [[runs.get(key(part, backbone, w, s)) for w in (0.0, weight)] for s in SEEDS]
            both = [(plain, guided) for plain, guided in pairs if plain is not None and guided is not None]
            if part == "planted" and both:
                rows.append(_row(part, backbone, "cue_accuracy_midway") | _midway(both))
            for name, number in measures.items() if both else ():
                numbers = [(number(plain), number(guided)) for plain, guided in both]
                rows.append(_row(part, backbone, name) | _arms(numbers) | _trivial(name, [plain for plain, _ in both]))
            if part == "text" and both:
                rows.append(_row(part, backbone, "steps_to_plain_loss") | _steps(both))
    return rows


def _arms(numbers: Sequence[tuple[float, float]]) -> dict[str, Any]:
    return {
        "plain": interval([plain for plain, _ in numbers]),
        "guided": interval([guided for _, guided in numbers]),
        "difference": interval([guided - plain for plain, guided in numbers]),
    }


def _trivial(measure: str, runs: Sequence[Run]) -> dict[str, float]:
    """What a predictor that has learned nothing of the kind reaches, where runs say so."""
    values = [run["trivial"][measure] for run in runs if measure in run.get("trivial", {})]
    return {"trivial": round(statistics.fmean(values), 4)} if values else {}


def _midway(both: Sequence[tuple[Run, Run]]) -> dict[str, Any]:
    """At the examination at which the plain arm has, over all seeds, most nearly half of the cue sentences right.

    The rate is constant there, so this is what shorter training would have given. The guided arm has no say in when.
    """
    curves = [(plain["cue_accuracy"], guided["cue_accuracy"]) for plain, guided in both]
    means = [statistics.fmean(values) for values in zip(*(plain for plain, _ in curves), strict=True)]
    at = min(range(len(means)), key=lambda i: abs(means[i] - 0.5))
    return {"step": EXAMINE_EVERY * (at + 1), **_arms([(plain[at], guided[at]) for plain, guided in curves])}


def _steps(both: Sequence[tuple[Run, Run]]) -> dict[str, Any]:
    """When each arm first comes down to the plain one's last loss. The plain one may have been there before, too."""
    curves = [(plain["validation_loss"], guided["validation_loss"]) for plain, guided in both]
    plain = [reached(curve, curve[-1]) for curve, _ in curves]
    guided = [reached(curve, target[-1]) for target, curve in curves]
    done = [(a, b) for a, b in zip(plain, guided, strict=True) if a is not None and b is not None]
    return {"plain_steps": plain, "guided_steps": guided, "reached": len(done), "of": len(both), **_arms(done)}


def reached(curve: Sequence[float], value: float) -> float | None:
    """The step at which a curve first comes down to a value, between examinations on a straight line."""
    before = None
    for i, here in enumerate(curve):
        if here <= value:
            share = 1.0 if before is None else (before - value) / (before - here)
            return round(EXAMINE_EVERY * (i + share), 1)
        before = here
    return None


def interval(values: Sequence[float]) -> dict[str, Any]:
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

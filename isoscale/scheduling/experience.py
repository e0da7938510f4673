"""What jobs of one application have measured, for the next of them: nobody starts as if nothing were known.

Shared is the curve, not the level: a job with a larger batch makes fewer steps per second on any devices, and scales
like the others. Rates of each job are brought to the level of those before it where both were measured; at each number
of devices of a kind the median over the last jobs counts, so one odd job moves little. What a job measured itself
always goes before what others say. A job whose own rates contradict the curve by more than ODD is left to itself.

Pure bookkeeping for `controller`; only models made of measured points (`MeasuredSpeed`) are shared.
"""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import median

from isoscale.scheduling.measured import MeasuredSpeed
from isoscale.scheduling.state import SpeedModel

__all__ = ["ODD", "Experience"]

#: own rates, brought to the others' level, may differ from theirs by this factor
ODD = 1.5
#: jobs of an application that count, the latest
_KEPT = 32


class Experience:
    """One cluster's. Jobs without an application's name neither give nor take."""

    def __init__(self) -> None:
        #: by application and job; logarithms of rates
        self._measured: dict[str, dict[str, dict[tuple[str, int], float]]] = {}
        #: the curve of each application, made when it is asked for
        self._curves: dict[str, dict[tuple[str, int], float]] = {}

    def note(self, application: str, job: str, model: SpeedModel) -> bool:
        """What a job has measured by now; True if the application was never measured there before."""
        if not application or not isinstance(model, MeasuredSpeed) or not model.points:
            return False
        jobs = self._measured.setdefault(application, {})
        known = {key for points in jobs.values() for key in points}
        jobs.pop(job, None)
        jobs[job] = {key: math.log(rate) for key, rate in model.points.items() if rate > 0}
        if len(jobs) > _KEPT:
            del jobs[next(iter(jobs))]
        self._curves.pop(application, None)
        return not jobs[job].keys() <= known

    def informed(self, application: str, model: SpeedModel) -> SpeedModel:
        """The model with what others measured added; the same one if they have nothing to say."""
        if application not in self._measured or not isinstance(model, MeasuredSpeed):
            return model
        curve = self._curve(application)
        own = {key: math.log(rate) for key, rate in model.points.items() if rate > 0}
        both = own.keys() & curve.keys()
        level = median(own[key] - curve[key] for key in both) if both else 0.0
        if any(abs(own[key] - curve[key] - level) > math.log(ODD) for key in both):
            return model
        told = {key: math.exp(log + level) for key, log in curve.items() if key not in own}
        return replace(model, points={**told, **model.points}) if told else model

    def _curve(self, application: str) -> dict[tuple[str, int], float]:
        found = self._curves.get(application)
        if found is None:
            logs: dict[tuple[str, int], list[float]] = {}
            for points in self._measured[application].values():
                both = points.keys() & logs.keys()
                level = median(points[key] - median(logs[key]) for key in both) if both else 0.0
                for key, log in points.items():
                    logs.setdefault(key, []).append(log - level)
            found = self._curves[application] = {key: median(values) for key, values in logs.items()}
        return found

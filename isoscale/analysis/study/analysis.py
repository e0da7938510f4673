"""The whole study of one trace: every subject, the advice, and what analysis.json holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np

from isoscale.analysis.failures import CLASSES, FailureClass
from isoscale.analysis.study.advice import Check, checks
from isoscale.analysis.study.finding import Finding
from isoscale.analysis.study.statistics import INTERVAL_METHOD, SMALL
from isoscale.analysis.study.subjects.failures import failures
from isoscale.analysis.study.subjects.kinds import kinds
from isoscale.analysis.study.subjects.load import load
from isoscale.analysis.study.subjects.locality import locality
from isoscale.analysis.study.subjects.own import own
from isoscale.analysis.study.subjects.queueing import queueing
from isoscale.analysis.study.subjects.retries import retries
from isoscale.analysis.study.subjects.run_time import run_time
from isoscale.analysis.study.subjects.sizes import sizes
from isoscale.analysis.study.subjects.status import status
from isoscale.analysis.study.subjects.users import users
from isoscale.analysis.study.subjects.utilisation import host, utilisation
from isoscale.analysis.study.trace import Trace
from isoscale.analysis.study.what_if import WhatIf, what_if

__all__ = ["VERSION", "Analysis", "analyse", "as_json"]

#: of analysis.json; grows when a key changes its meaning
VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """What came of one trace."""

    trace: Trace
    findings: Sequence[Finding]
    checks: Sequence[Check]

    @property
    def missing(self) -> dict[str, str]:
        """What could not be computed -> the column or file that would tell."""
        found = {key: why for finding in self.findings for key, why in finding.missing.items()}
        return found | {f"advice.{check.key}": check.missing for check in self.checks if check.missing}


def analyse(
    trace: Trace,
    *,
    classes: Sequence[FailureClass] = CLASSES,
    present: str | None = None,
    simulate_jobs: int = 3000,
    seed: int = 0,
    on_progress: Callable[[str, int, int], None] | None = None,
) -> Analysis:
    """Every subject. With `simulate_jobs` 0 nothing is simulated."""
    findings = [
        status(trace),
        run_time(trace),
        queueing(trace),
        locality(trace),
        utilisation(trace),
        host(trace),
        failures(trace, classes),
        retries(trace),
        users(trace),
        load(trace),
        sizes(trace),
        kinds(trace),
        own(trace),
    ]
    simulated: WhatIf | str = "a simulation (--simulate-jobs 0)"
    if simulate_jobs:
        simulated = what_if(trace, present=present, most_jobs=simulate_jobs, seed=seed, on_progress=on_progress)
    return Analysis(trace=trace, findings=findings, checks=checks(trace, simulated, classes))


def as_json(analysis: Analysis) -> dict[str, Any]:
    """The stable form: JSON values only, null for what is not a number."""
    trace = analysis.trace
    found: dict[str, Any] = {
        "version": VERSION,
        "format": trace.format,
        "trace": trace.name,
        "jobs": len(trace.jobs),
        "period": _period(trace),
        "reading": trace.account.as_json(),
        "intervals": f"{INTERVAL_METHOD}; given below {SMALL:,} samples",
    }
    for finding in analysis.findings:
        found |= finding.figures
    found["says"] = {finding.key: finding.says for finding in analysis.findings if finding.says}
    found["advice"] = {
        check.key: {
            "guideline": check.guideline,
            "says": check.says,
            "device_hours": check.device_hours,
            "how": check.how,
            **check.figures,
        }
        for check in analysis.checks
    }
    found["missing"] = analysis.missing
    return {key: plain(value) for key, value in found.items()}


def _period(trace: Trace) -> dict[str, object]:
    """First submission and last end."""
    begin = trace.jobs.submit_s[np.isfinite(trace.jobs.submit_s)]
    times = np.concatenate([trace.jobs.submit_s, trace.jobs.end_s])
    times = times[np.isfinite(times)]
    if not len(begin) or not len(times):
        return {"first_submit_s": None, "last_s": None, "days": None}
    first, last = float(begin.min()), float(times.max())
    found: dict[str, object] = {"first_submit_s": first, "last_s": last, "days": (last - first) / 86_400}
    if trace.zero is not None:
        found["first"] = str(trace.zero + timedelta(seconds=round(first)))
        found["last"] = str(trace.zero + timedelta(seconds=round(last)))
    return found


def plain(value: Any) -> Any:
    """As JSON has it: no NaN, no infinity, no NumPy."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value

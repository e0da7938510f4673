"""What this cluster should change: the Philly study's guidelines as checks, each with numbers from this very trace.

A check says what was seen, what changing it would give, in device-hours where that can be said, and how that was
computed; or which column is missing for it. Estimates take the trace as it is: nobody reacts to a change.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np
from numpy.typing import NDArray

from isoscale.analysis.failures import CLASSES, NO_SIGNATURE, FailureClass
from isoscale.analysis.study.finding import hours, percent
from isoscale.analysis.study.subjects.utilisation import chosen_groups
from isoscale.analysis.study.trace import STATUSES, Trace
from isoscale.analysis.study.what_if import WhatIf
from isoscale.analysis.words import count, duration

__all__ = ["TRIAL_S", "Check", "checks"]

#: how long a trial on one device would last
TRIAL_S = 600.0
_SMALL = 4
_IDLE_PERCENT = 1.0
_FAILED = STATUSES.index("failed")
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One guideline, held against the trace."""

    key: str
    guideline: str
    #: what was found, in a sentence or two; what is missing if it could not be computed
    says: str
    #: device-hours that following it would save; None if that cannot be said
    device_hours: float | None = None
    figures: Mapping[str, object] = field(default_factory=dict)
    missing: str = ""
    how: str = ""


def checks(trace: Trace, simulated: WhatIf | str, classes: Sequence[FailureClass] = CLASSES) -> list[Check]:
    return [
        _locality(trace),
        _dedicated(trace),
        _trial(trace, classes),
        _hopeless(trace, classes),
        _idle(trace),
        _elastic(simulated),
    ]


def _locality(trace: Trace) -> Check:
    key, guideline = "locality", "Wait for devices close together if the job is long"
    jobs, attempts = trace.jobs, trace.attempts
    if not (jobs.machines > 1).any():
        what = trace.lacking("machines", "number of machines of a job") if not (jobs.machines > 0).any() else ""
        missing = what or "jobs on more than one machine"
        return Check(key=key, guideline=guideline, says=f"Not computed: {missing} is missing.", missing=missing)
    first = np.zeros(len(jobs), dtype=np.int64)
    first[attempts.job[::-1]] = np.arange(len(attempts))[::-1]
    spread_jobs = extra_wait_s = saved_s = 0.0
    with_use = 0
    sizes: dict[str, object] = {}
    for size in np.unique(jobs.devices[jobs.machines > 1]).tolist():
        of_size = (jobs.devices == size) & (jobs.machines > 0)
        packed = of_size & (jobs.machines == jobs.machines[of_size].min())
        scattered = of_size & ~packed
        if not scattered.any():
            continue
        waits = [_mean(jobs.queue_s[rows]) for rows in (packed, scattered)]
        use = [_use(trace, first[rows]) for rows in (packed, scattered)]
        extra = (waits[0] - waits[1]) * int(scattered.sum())
        spread_jobs += int(scattered.sum())
        extra_wait_s += 0.0 if math.isnan(extra) else extra
        if use[0] and use[1]:
            with_use += int(scattered.sum())
            # The same work at the packed jobs' use takes this much less.
            saved_s += float(np.nansum((jobs.run_s * jobs.devices)[scattered])) * (1 - use[1] / use[0])
        sizes[str(int(size))] = {
            "packed": int(packed.sum()),
            "spread": int(scattered.sum()),
            "mean_wait_packed_s": _plain(waits[0]),
            "mean_wait_spread_s": _plain(waits[1]),
            "use_packed": use[0],
            "use_spread": use[1],
        }
    figures = {
        "jobs_spread": int(spread_jobs),
        "extra_wait_s": extra_wait_s,
        "saved_device_s": saved_s if with_use else None,
        "by_devices": sizes,
    }
    unknown = trace.lacking("utilisation", "samples of devices")
    words = (
        f"{count(int(spread_jobs), 'job')} ran on more machines than others of their size. Waiting as those did would "
        f"have {'cost' if extra_wait_s >= 0 else 'saved'} them {duration(abs(extra_wait_s))} of waiting in all"
    )
    if with_use:
        verb = "saved" if saved_s >= 0 else "cost"
        words += f", and computing as those did would have {verb} {hours(abs(saved_s))} device-hours."
    else:
        words += f". What it would have gained is not known: {unknown} is missing."
    return Check(
        key=key,
        guideline=guideline,
        says=words,
        device_hours=saved_s / 3600 if with_use else None,
        figures=figures,
        missing="" if with_use else unknown,
        how="jobs of one size, on the fewest machines seen for it against on more: mean waits, mean use of devices",
    )


def _dedicated(trace: Trace) -> Check:
    key, guideline = "dedicated", "Give small jobs machines of their own"
    used = trace.utilisation
    if used is None or not used.devices.counts.any():
        missing = trace.lacking("utilisation", "samples of devices")
        return Check(key=key, guideline=guideline, says=f"Not computed: {missing} is missing.", missing=missing)
    if not len(trace.places):
        missing = trace.lacking("places", "machines of every attempt")
        return Check(key=key, guideline=guideline, says=f"Not computed: {missing} is missing.", missing=missing)
    small = (trace.attempts.devices > 0) & (trace.attempts.devices <= _SMALL)
    shared, alone = small & used.shared, small & ~used.shared
    means = [used.devices.figures(chosen_groups(used, rows))["mean"] for rows in (alone, shared)]
    held_s = float(trace.attempts.device_s[shared].sum())
    if means[0] is None or means[1] is None:
        missing = "small jobs both alone and beside others"
        return Check(key=key, guideline=guideline, says=f"Not computed: there are no {missing}.", missing=missing)
    saved_s = held_s * (1 - means[1] / means[0]) if means[0] else 0.0
    better = saved_s > 0
    return Check(
        key=key,
        guideline=guideline,
        says=f"Jobs of up to {_SMALL} devices use them {means[0]:.1f} % alone on their machines and {means[1]:.1f} % "
        f"beside others; those beside others held {hours(held_s)} device-hours. "
        + (f"Alone they would have needed {hours(saved_s)} fewer." if better else "There is nothing to gain here."),
        device_hours=max(saved_s, 0.0) / 3600,
        figures={
            "use_alone": means[0],
            "use_shared": means[1],
            "device_s_shared": held_s,
            "saved_device_s": saved_s,
        },
        how="device time of small attempts beside others, times what their use is below that of small attempts alone",
    )


def _trial(trace: Trace, classes: Sequence[FailureClass]) -> Check:
    key, guideline = "trial", "Try a job on one device first"
    attempts, jobs = trace.attempts, trace.jobs
    if not jobs.status.any():
        missing = trace.lacking("status", "final status of a job")
        return Check(key=key, guideline=guideline, says=f"Not computed: {missing} is missing.", missing=missing)
    machines = {one.name for one in classes if one.origin == "infrastructure"}
    names = np.array([word in machines for word in attempts.error.words], dtype=np.bool_)
    several = attempts.devices > 1
    early = attempts.failed & several & (attempts.run_s <= TRIAL_S) & ~names[attempts.error.codes]
    saved_s = float(np.nansum((attempts.run_s * (attempts.devices - 1))[early]))
    firsts = several & (attempts.number == 0)
    cost_s = float(np.nansum(np.minimum(attempts.run_s, TRIAL_S)[firsts]))
    failed = int((attempts.failed & several).sum())
    return Check(
        key=key,
        guideline=guideline,
        says=f"{int(early.sum()):,} of {failed:,} failed attempts on several devices failed within "
        f"{duration(TRIAL_S)}, so a trial on one device would have caught them: {hours(saved_s)} device-hours saved. "
        "An elastic job begins small anyway and loses nothing by it.",
        device_hours=saved_s / 3600,
        figures={
            "trial_s": TRIAL_S,
            "failed_on_several": failed,
            "caught": int(early.sum()),
            "caught_by_class": _by_class(trace, early),
            "saved_device_s": saved_s,
            "trial_device_s": cost_s,
        },
        missing="" if attempts.error.known else trace.lacking("error", "stderr of failed attempts"),
        how="failed attempts on more than one device that ended within the trial's time; of these all devices but one. "
        "Failures of the infrastructure are left out where classes are known",
    )


def _hopeless(trace: Trace, classes: Sequence[FailureClass]) -> Check:
    key, guideline = "hopeless", "Do not try again what cannot pass"
    attempts, jobs = trace.attempts, trace.jobs
    if "attempts" in trace.lacks and (attempts.number <= 0).all():
        missing = trace.lacking("attempts", "attempts of a job")
        return Check(key=key, guideline=guideline, says=f"Not computed: {missing} is missing.", missing=missing)
    by_class = attempts.error.known
    lost_before = np.zeros(len(attempts), dtype=np.bool_)
    again = attempts.number > 0
    if by_class:
        hopeless = {one.name for one in (*classes, NO_SIGNATURE) if one.retries == 0}
        words = np.array([word in hopeless for word in attempts.error.words], dtype=np.bool_)
        gave = np.zeros(len(attempts), dtype=np.bool_)
        # An attempt is hopeless if any before it of the same job failed for good.
        lost = attempts.failed & words[attempts.error.codes]
        before = np.concatenate([[0], np.cumsum(lost)])
        begin = np.searchsorted(attempts.job, attempts.job, side="left")
        gave = again & (before[np.arange(len(attempts))] > before[begin])
        # What the attempt before each of them had failed of.
        lost_before = np.append(gave[1:], False)
        how = "attempts after one whose class of error no retry cures"
    else:
        gave = again & (jobs.status[attempts.job] == _FAILED)
        how = "attempts after the first of jobs that failed in the end: seen afterwards, as no log tells the class"
    wasted_s = float(attempts.device_s[gave].sum())
    total_s = float(attempts.device_s.sum())
    passed = int((gave & ~attempts.failed).sum())
    late = f" {passed:,} of them passed all the same." if by_class and passed else ""
    return Check(
        key=key,
        guideline=guideline,
        says=f"{int(gave.sum()):,} of {int(again.sum()):,} retries were hopeless: {hours(wasted_s)} device-hours "
        f"({percent(wasted_s / total_s if total_s else None)}).{late}",
        device_hours=wasted_s / 3600,
        figures={
            "retries": int(again.sum()),
            "hopeless": int(gave.sum()),
            "device_s": wasted_s,
            "passed_all_the_same": passed,
            "judged_by_class": by_class,
            "after_class": _by_class(trace, lost_before) if by_class else {},
        },
        missing="" if by_class else trace.lacking("error", "stderr of failed attempts"),
        how=how,
    )


def _idle(trace: Trace) -> Check:
    key, guideline = "idle", "Take back devices that are held and idle"
    used = trace.utilisation
    if used is None or not used.attempt_counts.any() or math.isnan(used.every_s):
        missing = trace.lacking("utilisation", "samples of devices")
        return Check(key=key, guideline=guideline, says=f"Not computed: {missing} is missing.", missing=missing)
    held = used.devices.counts[1:].sum(axis=0)
    idle_s = float(held[0]) * used.every_s
    held_s = float(held.sum()) * used.every_s
    with np.errstate(invalid="ignore", divide="ignore"):
        means = used.attempt_sums / 1000.0 / used.attempt_counts
    dead = (used.attempt_counts > 0) & (means < _IDLE_PERCENT)
    dead_s = float(trace.attempts.device_s[dead].sum())
    return Check(
        key=key,
        guideline=guideline,
        says=f"Devices that jobs held stood at 0 to 0.1 % for {hours(idle_s)} device-hours "
        f"({percent(idle_s / held_s if held_s else None)} of what was held). {int(dead.sum()):,} attempts never used "
        f"theirs: less than {_IDLE_PERCENT:g} % over their whole life, {hours(dead_s)} device-hours.",
        device_hours=dead_s / 3600,
        figures={
            "idle_device_s": idle_s,
            "held_device_s": held_s,
            "attempts_never_used": int(dead.sum()),
            "device_s_never_used": dead_s,
        },
        how=f"samples of held devices in the lowest step of 0.1 %, {used.every_s:g} s each; only attempts that never "
        "used their devices count as savings",
    )


def _elastic(simulated: WhatIf | str) -> Check:
    key, guideline = "elasticity", "Let jobs grow and shrink"
    if isinstance(simulated, str):
        return Check(key=key, guideline=guideline, says=f"Not computed: {simulated} is missing.", missing=simulated)
    present, ours = simulated.present, simulated.ours
    measured = simulated.measured_jct_s
    told = f" In the trace itself they took {duration(measured)}." if measured is not None else ""
    return Check(
        key=key,
        guideline=guideline,
        says=f"{simulated.jobs:,} jobs in the simulator on {simulated.devices:,} devices: mean completion time "
        f"{duration(present.mean_jct_s)} under {present.policy}, {duration(ours.mean_jct_s)} under {ours.policy}, "
        f"which resizes them ({_times(present.mean_jct_s, ours.mean_jct_s)}); device-hours {present.device_hours:,.0f} "
        f"and {ours.device_hours:,.0f}.{told}",
        figures={**asdict(simulated), "assumptions": list(simulated.assumptions)},
        how="assumed: " + "; ".join(simulated.assumptions),
    )


def _times(before: float, after: float) -> str:
    if not after or math.isnan(before) or math.isnan(after):
        return "not comparable"
    return f"{before / after:.1f} times as fast" if before >= after else f"{after / before:.1f} times as slow"


def _use(trace: Trace, attempts: NDArray[np.int64]) -> float | None:
    """Mean use of the devices of these attempts, in percent."""
    used = trace.utilisation
    if used is None:
        return None
    samples = int(used.attempt_counts[attempts].sum())
    return float(used.attempt_sums[attempts].sum()) / 1000.0 / samples if samples else None


def _by_class(trace: Trace, attempts: Flags) -> dict[str, int]:
    """How many of these attempts failed of what, most first; those whose class nobody knows are left out."""
    words = trace.attempts.error.words
    counts = np.bincount(trace.attempts.error.codes[attempts], minlength=len(words)).tolist()
    known = sorted(((count, word) for count, word in zip(counts, words, strict=True) if count and word), reverse=True)
    return {word: count for count, word in known}


def _mean(values: NDArray[np.float64]) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else math.nan


def _plain(value: float) -> float | None:
    return None if math.isnan(value) else value

"""Seeded traces that look like a cluster's: sizes, durations, tenants and days after the Philly trace.

Quantiles, shares and counts below are facts computed from the public Philly jobs that the Pollux simulator uses (82,247
jobs of 2017-09-04 to 2017-12-22); between quantiles the logarithm of the duration is linear. The same spec and seed
give the same jobs on every machine. What a generated job is called, and when it was submitted, means nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isoscale import limits
from isoscale.errors import UserError, shortened
from isoscale.sim.failing import add_failures
from isoscale.sim.traces.record import TraceJob

__all__ = ["PhillyLike", "generate", "parse_generator"]

#: number of devices -> jobs that asked for as many
_SIZES = {1: 76_627, 2: 1_818, 4: 1_870, 8: 1_643, 12: 7, 16: 199, 24: 7, 32: 67, 64: 6, 128: 3}
#: cumulative probability of each quantile in _MINUTES
_LEVELS = np.array([0.0, 0.1, 0.5, 0.9, 0.99, 1.0])
#: largest size of the class -> minutes at those quantiles; the two ends are rounded
_MINUTES = {
    1: (0.2, 1.0, 18.6, 142.0, 2257.0, 30_000.0),
    4: (0.1, 0.25, 6.1, 2770.0, 12_478.0, 50_000.0),
    8: (0.2, 3.6, 395.0, 5873.0, 17_782.0, 60_000.0),
    10_000: (0.2, 1.2, 352.0, 4209.0, 19_206.0, 60_000.0),
}
#: jobs of the 15 tenants, largest first; the tail is shared out evenly
_TENANTS = (41_226, 16_091, 9_953, 7_423, *(7_554 // 11,) * 11)
#: a day's hours of submission relative to the mean: morning peak, quiet night
_PEAK_HOUR, _SWING = 14.0, 0.6
_DAY_S = 86_400.0
_BOUNDS = {
    "jobs": limits.GENERATED_JOBS,
    "days": limits.Range(1e-6, 36_500.0),
    # Seeds of an experiment count up from this one.
    "seed": limits.Range(0, 2 * limits.SEED.most),
    "largest": limits.CLUSTER_DEVICES,
    "scale": limits.Range(1e-9, 1e9),
    "hours": limits.Range(1e-3, limits.HOURS.most),
    "failing": limits.SHARE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PhillyLike:
    """What to generate. Jobs arrive as a Poisson process whose rate swings with the hour, within `days`."""

    jobs: int = 1000
    days: float = 7.0
    seed: int = 0
    #: devices of the largest job; larger ones are drawn again
    largest: int = 32
    #: factor on every duration, to set the load
    scale: float = 1.0
    #: no job runs longer than this many hours on what it asks for
    hours: float = 168.0
    #: share of jobs with trials that fail, after the study's table (`failing`)
    failing: float = 0.0

    def __post_init__(self) -> None:
        for name, bounds in _BOUNDS.items():
            limits.within(getattr(self, name), f"--trace philly:{name}", bounds)


def generate(spec: PhillyLike) -> list[TraceJob]:
    """The jobs, in order of submission.

    >>> jobs = generate(PhillyLike(jobs=3, seed=1))
    >>> [job.devices for job in jobs], jobs == generate(PhillyLike(jobs=3, seed=1))
    ([1, 1, 1], True)
    """
    # One stream per property: a change to one does not reshuffle the others.
    sizes_rng, times_rng, durations_rng, tenants_rng = (np.random.default_rng([spec.seed, part]) for part in range(4))
    choices = np.array([size for size in _SIZES if size <= spec.largest])
    weights = np.array([_SIZES[int(size)] for size in choices], dtype=float)
    sizes = sizes_rng.choice(choices, size=spec.jobs, p=weights / weights.sum())
    submits = np.sort(_arrivals(times_rng, spec))
    durations = _durations(durations_rng, sizes) * spec.scale
    tenant_weights = np.array(_TENANTS, dtype=float)
    tenants = tenants_rng.choice(len(_TENANTS), size=spec.jobs, p=tenant_weights / tenant_weights.sum())
    jobs = [
        TraceJob(
            name=f"job-{number}",
            submit_s=round(float(submits[number]), 3),
            devices=int(sizes[number]),
            duration_s=round(min(float(durations[number]), spec.hours * 3600.0), 3),
            tenant=f"tenant-{int(tenants[number])}",
        )
        for number in range(spec.jobs)
    ]
    return add_failures(jobs, spec.failing, spec.seed) if spec.failing else jobs


def parse_generator(text: str, *, field: str = "--trace") -> PhillyLike:
    """`philly` or `philly:jobs=500,days=2,seed=1` as a value."""
    name, _, rest = text.partition(":")
    if name != "philly":
        raise UserError(field=field, value=text, problem="unknown generator", remedy="give philly:jobs=1000,days=7")
    whole = {one.name for one in fields(PhillyLike) if one.type == "int"}
    options: dict[str, Any] = {}
    for part in filter(None, rest.split(",")):
        key, _, value = part.partition("=")
        if key not in _BOUNDS:
            raise UserError(
                field=field,
                value=text,
                problem=f"{shortened(part, 60)!r} is not OPTION=NUMBER",
                remedy=f"give some of {', '.join(_BOUNDS)}",
            )
        read = limits.whole if key in whole else limits.decimal
        options[key] = read(value.strip(), field, _BOUNDS[key], part_of=text)
    return PhillyLike(**options)


def _arrivals(rng: np.random.Generator, spec: PhillyLike) -> NDArray[np.float64]:
    """Times in [0, days) whose density swings over the day, by rejection; a Poisson process given its count."""
    times: list[NDArray[np.float64]] = []
    missing = spec.jobs
    while missing > 0:
        at = rng.uniform(0.0, spec.days * _DAY_S, size=2 * missing + 16)
        hour = at / 3600.0 % 24.0
        density = 1.0 + _SWING * np.cos((hour - _PEAK_HOUR) * (2 * math.pi / 24.0))
        kept = at[rng.uniform(0.0, 1.0 + _SWING, size=len(at)) < density][:missing]
        times.append(kept)
        missing -= len(kept)
    return np.concatenate(times)


def _durations(rng: np.random.Generator, sizes: NDArray[np.int64]) -> NDArray[np.float64]:
    level = rng.uniform(size=len(sizes))
    seconds = np.empty(len(sizes))
    smaller = 0
    for largest, minutes in _MINUTES.items():
        chosen = (sizes > smaller) & (sizes <= largest)
        seconds[chosen] = 60.0 * np.exp(np.interp(level[chosen], _LEVELS, np.log(minutes)))
        smaller = largest
    return seconds

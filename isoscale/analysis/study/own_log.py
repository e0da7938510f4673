"""What only our own logs tell: changes of size, what they cost, work that was done again, what was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

__all__ = ["OwnLog", "Resize"]


@dataclass(frozen=True, slots=True)
class Resize:
    """A job's devices changed after its first start; to 0 is a pause, from 0 a resumption."""

    job: int
    t: float
    before: int
    after: int
    #: seconds in which nobody computed; None if the log does not tell
    pause_s: float | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnLog:
    """Of simulated policies and of real runs alike."""

    #: "simulated", "runs" or "service"
    source: str
    resizes: tuple[Resize, ...] = ()
    #: steps that were committed and done again, and the seconds that they took; None: the log does not tell
    steps_redone: int | None = None
    redone_s: float | None = None
    executors_lost: int | None = None
    #: (seconds, devices) from when on a job could have used so many, per job number: what it asked for
    wanted: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    #: device-seconds in which devices computed, per job; NaN if not known
    busy_s: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    #: seconds from when a forecast was made to the moment that it foretold, and to when that came, of starts and ends
    forecasts: Mapping[str, tuple[tuple[float, float], ...]] = field(default_factory=dict)
    jobs_rejected: int = 0
    #: trials that failed and were tried again
    retries: int = 0
    #: when the log ends
    end_s: float = 0.0

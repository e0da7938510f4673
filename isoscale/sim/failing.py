"""Which jobs of a generated trace fail, when and of what: after the failure table of the Philly study.

Counts and times to failure below are facts of that table (Jeon et al., ATC 2019). That a class *lasts*, so that every
further trial fails in the same place, or passes after some trials, is our reading of it: the study's own advice is to
stop retrying what no retry cures. Names are those of `analysis.failures`, which decides about retries.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from isoscale.sim.traces.record import TraceJob

__all__ = ["CLASSES", "StudyClass", "add_failures"]

#: trials of a job whose error lasts: more than anybody retries
_ALWAYS = 20
# A job cannot fail after its end; one whose class usually fails later fails shortly before.
_LATEST_SHARE = 0.95
_SHORTEST_MIN = 0.1


@dataclass(frozen=True, slots=True)
class StudyClass:
    """One row of the table: failed trials by devices asked for (1, 2-4, more), jobs, minutes to failure."""

    name: str
    trials: tuple[int, int, int]
    jobs: int
    p50_min: float
    p90_min: float
    p95_min: float
    lasts: bool

    @property
    def trials_per_job(self) -> float:
        return sum(self.trials) / self.jobs


CLASSES = (
    StudyClass("CPU out of memory", (11465, 235, 376), 2803, 13.45, 17.73, 33.97, True),
    StudyClass("incorrect inputs", (5844, 2638, 1208), 4936, 1.87, 404.83, 2095.73, True),
    StudyClass("semantic error", (1603, 494, 846), 2049, 2.72, 376.00, 1436.88, True),
    StudyClass("core dump", (1936, 496, 480), 1784, 0.85, 72.75, 431.65, False),
    StudyClass("invalid memory access", (712, 774, 1116), 1235, 1.03, 403.50, 1357.38, False),
    StudyClass("model checkpoint error", (743, 384, 868), 948, 181.67, 3728.93, 8196.02, False),
    StudyClass("CUDA failure", (133, 1153, 198), 571, 1.32, 19.87, 82.17, False),
    StudyClass("syntax error", (780, 184, 168), 883, 0.58, 5.02, 12.00, True),
    StudyClass("traceback from crash", (356, 277, 144), 271, 1.02, 894.33, 1394.07, False),
    StudyClass("MPI error", (456, 54, 124), 166, 1.62, 3015.27, 5143.98, False),
    StudyClass("GPU out of memory", (237, 70, 180), 261, 18.53, 353.62, 2740.28, True),
    StudyClass("MPI runtime failure", (240, 141, 97), 420, 1389.48, 13778.60, 18090.88, False),
    StudyClass("permission error", (56, 202, 41), 151, 1.00, 8.15, 15.85, True),
    StudyClass("import error", (108, 30, 10), 148, 0.67, 4.58, 10.73, True),
    StudyClass("job preempted", (25, 95, 27), 95, 559.08, 2682.85, 5892.23, False),
    StudyClass("CUDA init failed", (16, 66, 59), 69, 1.08, 2.18, 4.63, False),
    StudyClass("model diverged", (78, 5, 1), 30, 1.48, 44.37, 76.53, True),
    StudyClass("CUDA version mismatch", (1, 1, 47), 49, 0.83, 1.65, 1.67, True),
    StudyClass("GPU ECC error", (1, 5, 4), 10, 26.82, 671.92, 2035.02, False),
    StudyClass("no signature", (1235, 294, 155), 698, 1.87, 28.00, 95.17, False),
)


def add_failures(jobs: list[TraceJob], share: float, seed: int) -> list[TraceJob]:
    """The same jobs, of which about `share` fail at least once. Each job has draws of its own, used or not."""
    failing = []
    for number, job in enumerate(jobs):
        draw = np.random.default_rng([seed, 4, number]).uniform(size=4)
        failing.append(replace(job, failures=_failures(job, draw)) if draw[0] < share else job)
    return failing


def _failures(job: TraceJob, draw: np.ndarray) -> tuple[tuple[float, str], ...]:
    """(share of its work, class) of each trial that fails."""
    size = 0 if job.devices == 1 else 1 if job.devices <= 4 else 2
    # The table counts trials by size, and jobs in all: jobs of a size are taken to fail as often as others.
    weights = np.cumsum([row.trials[size] / row.trials_per_job for row in CLASSES])
    row = CLASSES[int(np.searchsorted(weights, draw[1] * weights[-1], side="right"))]
    levels, minutes = (0.0, 0.5, 0.9, 0.95, 1.0), (_SHORTEST_MIN, row.p50_min, row.p90_min, row.p95_min, row.p95_min)
    after_s = 60.0 * math.exp(float(np.interp(draw[2], levels, np.log(minutes))))
    at = min(_LATEST_SHARE, after_s / max(job.duration_s or 0.0, 1e-9))
    # A geometric number of trials, at least one, with the mean of the table.
    again = 1.0 - 1.0 / row.trials_per_job
    trials = 1 + (int(math.log(1.0 - draw[3]) / math.log(again)) if again > 0 else 0)
    return ((round(at, 6), row.name),) * (_ALWAYS if row.lasts else min(trials, _ALWAYS))

"""How large a number may be, in one place, and how a number is read from text: its range before anything is built.

Bounds are far above what anybody uses and far below what a mistyped digit or a hostile peer asks for: nothing within
them makes a list that does not fit into memory. Reading takes time in the length of the text only. Knows no options.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from isoscale.errors import UserError, shortened

__all__ = [
    "ADDED",
    "AUDIT_EVERY",
    "BATCH",
    "CHECKPOINT_EVERY",
    "CLUSTER_DEVICES",
    "EXECUTORS",
    "EXECUTOR_ID",
    "GENERATED_JOBS",
    "HOURS",
    "INTERVAL_S",
    "KEPT_CHECKPOINTS",
    "LOADER_PROCESSES",
    "LOGICAL_RANK",
    "LOGICAL_WORKERS",
    "LOST_AFTER_S",
    "MAX_BATCHES",
    "MAX_DEVICE_SETS",
    "MAX_LENDINGS",
    "MAX_NODES",
    "MAX_NUMBER",
    "MAX_PLANNED",
    "MAX_PLAN_CHARS",
    "MAX_PLAN_ENTRIES",
    "MAX_REASON_CHARS",
    "MAX_SPEC_CHARS",
    "NOTICE_S",
    "OFTEN_HOURS",
    "PORT",
    "RETRIES",
    "SEED",
    "SEEDS",
    "SHARE",
    "SPARES",
    "SPEED",
    "STEP",
    "STEPS",
    "THREADS",
    "WARM_MINUTES",
    "Range",
    "decimal",
    "is_decimal",
    "is_whole",
    "whole",
    "within",
]


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers from `least` to `most`, both included; and 0 where it means something of its own."""

    least: float
    most: float
    #: what lies beyond, for people
    why: str = ""
    or_zero: bool = False

    def __str__(self) -> str:
        return f"{'0, or ' if self.or_zero else ''}{_shown(self.least)} to {_shown(self.most)}"

    def __contains__(self, number: float) -> bool:
        return self.least <= number <= self.most or (self.or_zero and number == 0)  # NaN is in none


# ---- of a job ----

#: every executor holds a context, and gradients until they are summed, for each logical worker that it hosts; contexts
#: of all of them are everywhere
LOGICAL_WORKERS = Range(1, 65_536, "every executor keeps the streams of all logical workers")
LOGICAL_RANK = Range(0, LOGICAL_WORKERS.most - 1)
#: each is a process that has imported torch, and is connected with all others
EXECUTORS = Range(1, 4_096, "each is a process with connections to all others")
SPARES = Range(0, EXECUTORS.most, EXECUTORS.why)
#: ids only grow; the socket's paths have nine digits
EXECUTOR_ID = Range(0, 10**9 - 1)
#: a trillion; a step of a microsecond would take eleven days. Names of checkpoints have room for it
STEPS = Range(1, 10**12)
STEP = Range(0, STEPS.most)
CHECKPOINT_EVERY = AUDIT_EVERY = STEP
KEPT_CHECKPOINTS = STEPS
#: NumPy's and torch's generators share 32 bits
SEED = Range(0, 2**32 - 1, "seeds have 32 bits")
#: no machine has more hardware threads; OpenMP would try to start them
THREADS = Range(1, 4_096, "no machine has so many")
#: samples of one logical worker's batch
BATCH = Range(1, 10**12)
#: processes that read for one executor
LOADER_PROCESSES = Range(0, 1_024, "each is a process")
#: five heartbeats must fit, and a machine pauses for a moment now and then
LOST_AFTER_S = Range(0.5, 86_400.0)
#: what an executor that was told to go has left
NOTICE_S = Range(1.0, 86_400.0)
PORT = Range(0, 65_535)
SHARE = Range(0.0, 1.0)
WARM_MINUTES = Range(0.01, 525_600.0)

#: a device set, a target or a cluster as text: every device of a large machine named one by one has room
MAX_SPEC_CHARS = 4_096
#: they are written again at every request; and the text that names so many
MAX_PLAN_ENTRIES, MAX_PLAN_CHARS = 10_000, 2**20
#: sizes that one `profile` measures, each a run of its own
MAX_BATCHES = 1_000
#: why a client wants something, in its own words
MAX_REASON_CHARS = 200

# ---- of a simulation ----

#: the largest clusters have some hundred thousand
CLUSTER_DEVICES, MAX_NODES = Range(1, 1_000_000), 100_000
#: a job is about a kilobyte
GENERATED_JOBS = Range(1, 1_000_000)
#: each has jobs of its own, held until the end
SEEDS = Range(1, 1_000)
#: a double tells neighbouring whole numbers apart up to here, and squares and sums of such numbers are finite
MAX_NUMBER = 1e15
#: whole ages; and what is between two failures of a device: more often is no cluster
HOURS, OFTEN_HOURS = Range(0.0, 1e9), Range(0.01, 1e9)
#: 0: at every event. A week has six million rounds of a tenth of a second
INTERVAL_S = Range(0.1, 1e9, or_zero=True)
#: relative, or turns per second
SPEED = Range(1e-6, 1e9)
RETRIES = Range(0, 10**6)
#: ways to choose devices of several kinds for one job that are weighed at once
MAX_DEVICE_SETS = 2**22
#: times that nodes change hands between serving and training
MAX_LENDINGS = 50_000_000
#: devices that `plan grow` adds, and the devices of all ways to choose them, each of which is a plan to be computed
ADDED, MAX_PLANNED = Range(1, 1_000), 2_000_000

_WHOLE = re.compile(r"[+-]?[0-9]{1,30}")
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,5})?")
_MAX_DIGITS = 60


def is_whole(text: str) -> bool:
    """Whether `int` may have it: at most 30 digits, and those of ASCII.

    int() alone takes "1_0" and digits of every script, and raises for more than 4300 of them.
    """
    return _WHOLE.fullmatch(text) is not None


def is_decimal(text: str) -> bool:
    """Whether `float` may have it: a number as people write it, spaces around it included; no "nan", no "inf"."""
    stripped = text.strip()
    return len(stripped) <= _MAX_DIGITS and _DECIMAL.fullmatch(stripped) is not None


def whole(text: str, field: str, bounds: Range, *, part_of: str = "") -> int:
    """The integer that `text` is. Raises UserError that names `field`, the text and the range.

    Where the number is `part_of` a longer text, the error shows that.

    >>> whole("12", "--until", STEPS)
    12
    """
    if not is_whole(text):
        digits = re.fullmatch(r"[+-]?[0-9]+", text)
        raise _refused(text, field, bounds, _beyond(bounds) if digits else "is not a whole number", part_of)
    if (number := int(text)) not in bounds:
        raise _refused(text, field, bounds, _why_not(number, bounds), part_of)
    return number


def decimal(text: str, field: str, bounds: Range, *, part_of: str = "") -> float:
    """The number that `text` is, finite and within the range; otherwise as `whole`.

    >>> decimal("1.5e2", "--interval", INTERVAL_S)
    150.0
    """
    if not is_decimal(text):
        raise _refused(text, field, bounds, "is not a number", part_of)
    if (number := float(text)) not in bounds:
        raise _refused(text, field, bounds, _why_not(number, bounds), part_of)
    return number


def within(number: float, field: str, bounds: Range, *, shown: object = None) -> float:
    """`number` itself. Raises UserError if it is not within `bounds`, with `shown` as the value if that is given."""
    if number not in bounds:
        value = number if shown is None else shown
        raise UserError(field=field, value=value, problem=_why_not(number, bounds), remedy=f"give {bounds}")
    return number


def _refused(text: str, field: str, bounds: Range, problem: str, part_of: str) -> UserError:
    if part_of:
        problem = f"{shortened(text, 60)!r} {problem}"
    return UserError(field=field, value=part_of or text, problem=problem, remedy=f"give {bounds}")


def _why_not(number: float, bounds: Range) -> str:
    if number != number:
        return "is not a number"
    return "is too small" if number < bounds.least else _beyond(bounds)


def _beyond(bounds: Range) -> str:
    return f"is too large ({bounds.why})" if bounds.why else "is too large"


def _shown(number: float) -> str:
    """
    >>> _shown(4096), _shown(0.5), _shown(1e9), _shown(1e15)
    ('4096', '0.5', '1000000000', '1e+15')
    """
    if isinstance(number, float) and (not math.isfinite(number) or abs(number) >= 1e15 or number != int(number)):
        return f"{number:g}"
    return str(int(number))

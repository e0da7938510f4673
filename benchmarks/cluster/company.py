"""How much of the machine others took while something was measured: what no profile can know."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Company:
    #: of all processors' time; known when it is over
    share: float = 0.0


@contextmanager
def company() -> Iterator[Company]:
    """What is measured has ended, and was waited for, before this ends: else it counts as others'."""
    found = Company()
    begun, busy_s, own_s = time.monotonic(), _busy_s(), _own_s()
    yield found
    others_s = _busy_s() - busy_s - (_own_s() - own_s)
    found.share = max(0.0, others_s / (time.monotonic() - begun) / (os.cpu_count() or 1))


def _busy_s() -> float:
    """Of all processors, since the machine was started; what a host took from it counts."""
    user, nice, system, _, _, irq, softirq, steal = Path("/proc/stat").read_text().split("\n")[0].split()[1:9]
    return sum(map(int, (user, nice, system, irq, softirq, steal))) / _TICKS


def _own_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)

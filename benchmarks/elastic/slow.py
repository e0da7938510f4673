"""A slow device, made of a normal one: the process runs only a part of the time.

SIGSTOP and SIGCONT in a fixed rhythm of a few milliseconds, far below a turn, from a thread that asks for real-time
priority. All threads of the process stop, so computing, copying and its part of an exchange are slower alike, as on a
slower device; the other executor keeps its core to itself. It needs no rights beyond signals and no cooperation of the
runtime, which only sees an executor whose turns take longer.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ON_S = 0.003


@contextmanager
def slowed(pid: int, times: float) -> Iterator[None]:
    """While in the block the process gets 1 / `times` of the time."""
    stop = threading.Event()

    def rhythm() -> None:
        with contextlib.suppress(OSError):  # without the right to it: the usual priority, a little less even
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        period, due = ON_S * times, time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            while not stop.is_set():
                os.kill(pid, signal.SIGSTOP)
                time.sleep(max(0.0, due + period - ON_S - time.monotonic()))
                os.kill(pid, signal.SIGCONT)
                due += period
                time.sleep(max(0.0, due - time.monotonic()))
                if time.monotonic() > due + period:  # late by a whole period: do not try to make up for it
                    due = time.monotonic()

    thread = threading.Thread(target=rhythm, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def cpu_seconds(pid: int) -> float:
    """Of all threads of the process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

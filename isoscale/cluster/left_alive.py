"""Processes of jobs that are over: what a service died before it had ended, the next one ends before it decides.

A job that is over is in nobody's book any more. Its row says which devices it still held when it ended; where it held
some somebody has to look once, since they are not free before nothing runs on them.
"""

from __future__ import annotations

import logging
from pathlib import Path

from isoscale.cluster.process import Executors
from isoscale.cluster.state_directory import job_directory
from isoscale.cluster.store import Store

__all__ = ["end_left_alive"]

_log = logging.getLogger(__name__)


def end_left_alive(store: Store, state: Path, executors: Executors, now: float) -> None:
    """Ends what lives. Of a job of which something does not die at once the next service looks again."""
    looked: list[str] = []
    for job in store.holding_over():
        directory = job_directory(state, job)
        devices = sorted({one.device for one in executors.live(directory)})
        if devices:
            _log.warning("job %s is over, and something of it lived on %s", job, ", ".join(devices))
            if set(executors.end(directory, devices)) != set(devices):
                continue
        looked.append(job)
    if looked:
        with store.write(now=now) as tx:
            for job in looked:
                tx.update(job, standing="")
            tx.event("leftovers_ended", jobs=len(looked))

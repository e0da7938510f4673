"""Named points at which a test lets the service die, to the very instruction: ISOSCALE_SERVICE_FAULT=POINT[,N].

The service is killed (SIGKILL) when it reaches the point for the N-th time. Without the variable a point costs a look
at an empty dictionary.
"""

from __future__ import annotations

import os
import signal

from isoscale import env
from isoscale.errors import UserError

__all__ = ["POINTS", "arm", "reached"]

#: in the order in which a job meets them
POINTS: tuple[str, ...] = (
    "submit-directory",  # the job's directory is written, no row is
    "submit-committed",  # the row is, nobody has been told
    "begin",  # in a transaction, before anything
    "commit",  # all is written, nothing committed
    "committed",  # of any transaction
    "start-intended",  # an attempt is recorded, no process started
    "start-spawned",  # a process waits at the gate, its id is not recorded
    "start-recorded",  # the id is recorded, the gate is closed
    "start-released",  # the coordinator runs
    "grant-written",  # a grant is decided and recorded, nobody told
    "pause-asked",
    "pause-done",
    "cancel-asked",
    "result-seen",  # the job's result is read, the row says it runs
    "ended-recorded",  # the row says it is over, its directory does not
    "reclaim-asked",  # on record, and no job was told
    "reclaim-free",  # the devices are free, and nobody knows
    "adopted",  # a new service knows who lives, and has decided nothing
)

_armed: dict[str, int] = {}


def arm() -> None:
    """As the environment says. Raises UserError."""
    text = env.service_fault()
    if not text:
        return
    point, _, count = text.partition(",")
    if point not in POINTS or (count and not count.isdecimal()):
        raise UserError(
            field=env.SERVICE_FAULT, value=text, problem="not a fault", remedy=f"give POINT[,N]: {', '.join(POINTS)}"
        )
    _armed[point] = int(count or 1)


def reached(point: str) -> None:
    if point not in _armed:
        return
    _armed[point] -= 1
    if _armed[point] <= 0:
        os.kill(os.getpid(), signal.SIGKILL)

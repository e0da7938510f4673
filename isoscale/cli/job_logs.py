"""What a job printed, for `isoscale jobs logs`: one executor's log, and that of its successor when it is gone.

Executors of a job print much the same, so one of them is shown. Those of a job that was paused, or whose devices were
moved, have other numbers and logs of their own.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import typer

from isoscale.cluster.client import Client
from isoscale.cluster.logs import LogFile
from isoscale.cluster.values import ENDED
from isoscale.errors import UserError

__all__ = ["show_logs"]

_FOLLOW_S = 0.5
_TAIL = 65_536
#: executors that run together print at about the same time; who prints so much later than another has taken its place
_TOGETHER_S = 5.0


def show_logs(client: Client, job: str, source: str | None, *, whole: bool, follow: bool) -> None:
    """To stdout, until the job is over if it is followed. Raises UserError for a log that there is not."""
    at, offset = source, 0 if whole else -_TAIL
    #: sizes of all logs when the one that is shown last grew: a successor's is shown from there on
    sizes: dict[str, int] = {}
    while True:
        over = client.job(job).state in ENDED
        files = client.logs(job)
        if source is not None and source not in [one.source for one in files]:
            _refuse(source, files, may_come=follow and not over and source.isdecimal())
        now = {one.source: one.size for one in files}
        if source is None and (successor := _who_prints(files, at)) != at:
            if at is not None:
                typer.echo(f"isoscale: executor {successor} goes on", err=True)
                offset = sizes.get(successor or "", 0)
            at = successor
        begun, offset = offset, _print(client, job, at, offset)
        if offset != begun:
            sizes = now
        if not follow or over:
            return
        time.sleep(_FOLLOW_S)


def _who_prints(files: Sequence[LogFile], shown: str | None) -> str | None:
    """The executor whose log is shown, as long as no other one has printed much later."""
    executors = [one for one in files if one.source != "coordinator"]
    late = max((one.changed_s for one in executors), default=0.0) - _TOGETHER_S
    able = [one.source for one in executors if one.changed_s >= late]
    return shown if shown in able or not able else able[0]


def _print(client: Client, job: str, source: str | None, offset: int) -> int:
    """All that there is from there on; returns where the next begins."""
    while source is not None:
        page = client.log(job, source, offset)
        sys.stdout.write(page.text)
        offset = page.next_offset
        if not page.text:
            break
    sys.stdout.flush()
    return offset


def _refuse(source: str, files: Sequence[LogFile], *, may_come: bool) -> None:
    if not may_come:
        there = ", ".join(one.source for one in files)
        raise UserError(field="--source", value=source, problem="no such log", remedy=f"give one of {there}")

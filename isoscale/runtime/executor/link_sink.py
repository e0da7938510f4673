"""A job's facts as messages to the coordinator: the `Sink` of an executor."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable
from dataclasses import asdict

from isoscale.clock import since_boot
from isoscale.core.totals import Combined
from isoscale.protocol import messages as m
from isoscale.runtime.control.executor_link import Link
from isoscale.runtime.executor.member import Member
from isoscale.runtime.training.batches import Rebatched
from isoscale.runtime.training.loader import Place
from isoscale.runtime.training.sink import Facts, Value, step_loss

__all__ = ["LinkSink"]


class LinkSink:
    def __init__(self, link: Link, member: Member, record: bool) -> None:
        """With `record` every logged value of every logical worker goes out too, exactly."""
        self._link = link
        self._member = member
        self._record = record
        self._send: Callable[[m.FromExecutor], None] = link.send_fact

    def unheard(self, facts: Facts) -> list[bytes]:
        """Those that no coordinator may have heard yet, as messages that somebody else can send."""
        # Of what another executor has told, this one knows only how long ago its own last word was heard.
        since = self._link.unheard_since() - self._member.settings.heartbeat_s
        said: list[m.FromExecutor] = []
        self._send = said.append
        try:
            for tell in facts.since(since):
                tell()
        finally:
            self._send = self._link.send_fact
        return [m.encode(message) for message in said]

    def step(
        self,
        *,
        step: int,
        epoch: int,
        values: Combined,
        seconds: float,
        samples: int,
        total: int,
        place: Place,
        noise_scale: float | None = None,
        noise_skipped: int = 0,
    ) -> None:
        self._send(
            m.StepDone(
                step=step,
                epoch=epoch,
                loss=step_loss(values),
                seconds=seconds,
                samples=samples,
                generation=self._member.generation,
                executors=len(self._member.members),
                total=total,
                loader=place.loader,
                batch=place.batch,
                of=place.of,
                at=since_boot(),
                noise_scale=noise_scale,
                noise_skipped=noise_skipped,
            )
        )
        if self._record:
            exact = {name: {r: v.hex() for r, v in by_rank.items()} for name, by_rank in values.by_rank.items()}
            self._send(m.Recorded(step=step, values=exact))

    def logged(self, *, step: int, epoch: int, values: dict[str, Value]) -> None:
        self._send(m.Logged(step=step, epoch=epoch, values=values, at=since_boot(), output=_written_so_far()))

    def audited(self, *, step: int, digest: str) -> None:
        self._send(m.Audited(step=step, digest=digest))

    def streamed(self, *, event: str, stream: str, step: int, fields: dict[str, object]) -> None:
        self._send(m.Streamed(event=event, stream=stream, step=step, fields=fields))

    def rebatched(self, change: Rebatched, /) -> None:
        self._send(m.Rebatched(**asdict(change)))

    def warned(self, *, message: str) -> None:
        self._link.send(m.Warned(message=message))


def _written_so_far() -> int:
    """To this process's log, which both its outputs go to."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
        found = os.fstat(1)
    except (OSError, ValueError, AttributeError):  # closed, or taken away by the script
        return -1
    return found.st_size if stat.S_ISREG(found.st_mode) else -1

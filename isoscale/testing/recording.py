"""A job's handle that keeps what was asked through it and what was answered, for the checker of histories."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from isoscale.analysis.promises import Asked
from isoscale.errors import IsoscaleError
from isoscale.protocol import messages as m
from isoscale.runtime.control.job_handle import JobHandle, RequestRefusedError

__all__ = ["RecordingHandle"]


class RecordingHandle(JobHandle):
    def __init__(self, directory: str | Path, asked: list[Asked], ca_file: Path | None = None) -> None:
        """`asked` grows by one with every request but those for the status."""
        super().__init__(directory, ca_file=ca_file)
        self._asked = asked
        #: what is asked from now on must be refused
        self.absurd = False

    def _ask(self, request: m.FromClient, *rest: Any, **more: Any) -> dict[str, Any]:
        if isinstance(request, m.GetStatus):
            return super()._ask(request, *rest, **more)
        begun, ok, error = time.time(), None, ""
        try:
            status = super()._ask(request, *rest, **more)
            ok = True
            return status
        except RequestRefusedError as refused:
            ok, error = False, str(refused)
            raise
        except (IsoscaleError, OSError) as failed:
            error = str(failed)
            raise
        finally:
            self._asked.append(
                Asked(
                    t=begun,
                    request=_name(request),
                    target=request.target[:200] if isinstance(request, m.Scale) else "",
                    absurd=self.absurd,
                    ok=ok,
                    error=error[:300],
                    seconds=round(time.time() - begun, 3),
                )
            )


def _name(request: m.FromClient) -> str:
    if isinstance(request, m.Scale):
        return "scale" if request.target else "migrate"
    return "checkpoint" if isinstance(request, m.TakeCheckpoint) else type(request).__name__.lower()

"""How routes find a job that a caller may see: of a service (`desk`), or the one run of a directory (`one_run`)."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from isoscale.cluster.auth import Caller
from isoscale.cluster.values import JobRecord, JobShown

__all__ = ["Looking"]


class Looking(Protocol):
    """Each raises NotFoundError, also for a job that the caller must not know of."""

    def job(self, caller: Caller, job: str) -> JobShown: ...

    def record(self, caller: Caller, job: str) -> JobRecord: ...

    def directory(self, caller: Caller, job: str) -> Path: ...

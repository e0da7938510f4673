"""Where events go: nowhere, into a list, or into `events.jsonl` as a live cluster writes it.

Same names and fields as real runs, with virtual seconds as `t`:
`cluster {nodes,quotas}` (first; of each node name, kind, devices), `job_submitted {job,devices,tenant}`,
`job_started|job_resized {job,from,to,nodes,batch,pause_s,reason}` (`to` is 0 when the job is paused),
`job_finished {job,jct_s,queue_s,busy_device_s}`, `job_failed {job,error,retried,busy_device_s}`,
`job_rejected {job,reason}`, `job_left {job,busy_device_s}` (it had not ended when the simulation did),
`device_failed|device_repaired|device_lent|device_reclaimed {node,devices}`, `prices_changed {prices}` (dollars an hour
by kind, where devices are rented), `simulation_ended {}` (last). Times are
written in full: what is computed from the log is what the simulator computed.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import msgspec

__all__ = ["FileRecorder", "ListRecorder", "NullRecorder", "Recorder"]


class Recorder(Protocol):
    def record(self, t: float, event: str, **fields: Any) -> None:
        """Called in order of time, once for each thing that happened."""
        ...


class NullRecorder:
    def record(self, t: float, event: str, **fields: Any) -> None:
        pass


class ListRecorder:
    """For tests and small runs."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def record(self, t: float, event: str, **fields: Any) -> None:
        self.events.append({"t": t, "event": event, **fields})


class FileRecorder:
    """Appends to a file in large pieces: a simulation that is killed has no use for its last lines."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=1 << 20)
        self._encode = msgspec.json.Encoder().encode

    def record(self, t: float, event: str, **fields: Any) -> None:
        self._file.write(self._encode({"t": t, "event": event, **fields}) + b"\n")

    def __enter__(self) -> FileRecorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

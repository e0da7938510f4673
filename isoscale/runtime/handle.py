"""A running job in the hands of a scheduler or a person: EDL's calls, over the job's control socket.

    with JobHandle("runs/mine") as job:
        job.scale_out(2)
        job.migrate(executor=1)
        print(job.status()["step"])

A call returns when the coordinator has accepted the request; the change itself happens beside training.
`wait_for` waits until it has. One request at a time per handle; the newest request of all counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection

from isoscale.errors import IsoscaleError, UserError
from isoscale.protocol import messages as m
from isoscale.runtime.control import read_address
from isoscale.runtime.link import open_socket

__all__ = ["JobHandle", "RequestRefusedError"]


class RequestRefusedError(IsoscaleError):
    """Raised when the coordinator says no; the message is its reason."""

    exit_code = 2


class JobHandle:
    def __init__(self, directory: str | Path, *, ca_file: Path | None = None) -> None:
        """Raises UserError if no job runs in `directory`."""
        self.directory = Path(directory)
        url, token = read_address(self.directory)
        try:
            self._socket: ClientConnection = open_socket(f"{url}/control", token, ca_file)
        except (OSError, WebSocketException):
            raise UserError(
                field="DIR",
                value=directory,
                problem="its coordinator does not answer",
                remedy=f"if it is gone, start another one: isoscale resume {directory}",
            ) from None

    def __enter__(self) -> JobHandle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    # ---- EDL's calls ----

    def scale_to(self, target: int | str) -> dict[str, Any]:
        """A number of executors, or a device set such as "cpu*2+cpu-sse*1"."""
        return self._ask(m.Scale(target=str(target)))

    def scale_out(self, count: int = 1) -> dict[str, Any]:
        return self._ask(m.Scale(target=f"+{count}", reason="scale out"))

    def scale_in(self, count: int = 1, *, executors: tuple[int, ...] = ()) -> dict[str, Any]:
        """Give up `count` executors, or these."""
        return self._ask(m.Scale(target=f"-{len(executors) or count}", away=executors, reason="scale in"))

    def migrate(self, *executors: int, executor: int | None = None) -> dict[str, Any]:
        """Move the logical workers of these executors, or of this one, to new executors of the same kinds, at once."""
        away = executors if executor is None else (*executors, executor)
        return self._ask(m.Scale(target="", away=away, reason="migrate"))

    def checkpoint(self) -> dict[str, Any]:
        """Ask for a checkpoint at the next place for one."""
        return self._ask(m.TakeCheckpoint())

    def stop(self) -> dict[str, Any]:
        """End the job after a checkpoint."""
        return self._ask(m.Stop())

    def status(self) -> dict[str, Any]:
        return self._ask(m.GetStatus())

    def profile(self) -> dict[str, Any]:
        """Measured speeds of the present executors: seconds per turn and idle share, by executor."""
        return {
            str(one["executor"]): {"kind": one["kind"], "turn_s": one["turn_s"], "idle": one["idle"]}
            for one in self.status()["executors"]
            if one["logical_workers"] is not None
        }

    def wait_for(self, done: Callable[[dict[str, Any]], bool], timeout_s: float = 60.0) -> dict[str, Any]:
        """Poll the status until `done` says so. Raises TimeoutError."""
        deadline = time.monotonic() + timeout_s
        while True:
            status = self.status()
            if done(status):
                return status
            if time.monotonic() > deadline:
                raise TimeoutError(f"not after {timeout_s} s: {status}")
            time.sleep(0.05)

    def _ask(self, request: m.FromClient) -> dict[str, Any]:
        try:
            self._socket.send(m.encode(request))
            frame = self._socket.recv(timeout=30)
        except (OSError, WebSocketException):
            raise UserError(
                field="DIR",
                value=self.directory,
                problem="the job ended, or its coordinator did",
                remedy=f"see isoscale report {self.directory}, or isoscale resume {self.directory}",
            ) from None
        reply = m.decode_reply(frame if isinstance(frame, bytes) else frame.encode())
        if not reply.ok:
            raise RequestRefusedError(reply.error)
        return reply.status

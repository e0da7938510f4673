"""A running job in the hands of a scheduler or a person: EDL's calls, over the job's control socket.

    with JobHandle("runs/mine") as job:
        job.scale_out(2)
        asked = job.migrate(0, 1)
        print(job.wait_answer(asked["request"])["outcome"])

A call returns when the coordinator has accepted the request; the change itself happens beside training. `wait_answer`
waits until it has happened, or will not. One request at a time per handle; the newest request of all counts. After a
call that got no reply in time the next one opens another connection, to whoever is the coordinator then.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection

from isoscale.errors import IsoscaleError, UserError
from isoscale.protocol import messages as m
from isoscale.protocol.events import read_events
from isoscale.protocol.status import JobStatus
from isoscale.runtime.control.absence import absent, stopped
from isoscale.runtime.control.directory import read_address
from isoscale.runtime.control.executor_link import open_socket

__all__ = ["JobHandle", "RequestRefusedError"]

_POLL_S = 0.05


class RequestRefusedError(IsoscaleError):
    """Raised when the coordinator says no; the message is its reason."""

    exit_code = 2


class JobHandle:
    def __init__(self, directory: str | Path, *, ca_file: Path | None = None, answer_s: float = 30.0) -> None:
        """Raises UserError if no job runs in `directory`, or its coordinator does not answer."""
        self.directory = Path(directory)
        #: how long a reply may take
        self.answer_s = answer_s
        self._ca_file = ca_file
        #: a connection on which no reply is awaited; None after a call that got none
        self._socket: ClientConnection | None = self._connect()

    def __enter__(self) -> JobHandle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        socket, self._socket = self._socket, None
        if socket is not None:
            socket.close()

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

    def stop(self, *, now: bool = False, wait: bool = False) -> dict[str, Any]:
        """End the job after a checkpoint, or `now` without one. With `wait` what became of that."""
        accepted = self._ask(m.Stop(now=now))
        return self.wait_answer(accepted["request"]) if wait else accepted

    def status(self) -> JobStatus:
        return cast(JobStatus, self._ask(m.GetStatus()))

    def profile(self) -> dict[str, Any]:
        """Measured speeds of the present executors: seconds per turn and idle share, by executor."""
        return {
            str(one["executor"]): {"kind": one["kind"], "turn_s": one["turn_s"], "idle": one["idle"]}
            for one in self.status()["executors"]
            if one["logical_workers"] is not None
        }

    def wait_for(self, done: Callable[[JobStatus], bool], timeout_s: float = 60.0) -> JobStatus:
        """Poll the status until `done` says so. Raises TimeoutError."""
        deadline = time.monotonic() + timeout_s
        while True:
            status = self.status()
            if done(status):
                return status
            if time.monotonic() > deadline:
                raise TimeoutError(f"not after {timeout_s} s: {status}")
            time.sleep(0.05)

    def wait_answer(
        self,
        request: int,
        timeout_s: float | None = None,
        on_wait: Callable[[JobStatus], None] = lambda status: None,
    ) -> dict[str, Any]:
        """Until the request of this id (`request` in what the call gave) is answered: its `outcome` and `detail`.

        `on_wait` gets every status in between. Raises TimeoutError; UserError if nobody is left to answer.
        """
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while True:
            try:
                status = self.status()
            except UserError:
                return self._answer_left_behind(request)
            for one in status["requests"]:
                if one["id"] == request and one["outcome"] is not None:
                    return dict(one)
            on_wait(status)
            if time.monotonic() > deadline:
                raise TimeoutError(f"request {request}: no answer after {timeout_s} s")
            time.sleep(_POLL_S)

    def wait_gone(self, timeout_s: float = 60.0) -> None:
        """Until the job's coordinator has ended: another one may be started then."""
        deadline = time.monotonic() + timeout_s
        with contextlib.suppress(UserError):
            while time.monotonic() < deadline:
                self.status()
                time.sleep(_POLL_S)

    def _answer_left_behind(self, request: int) -> dict[str, Any]:
        """What a coordinator that is gone has written down."""
        with contextlib.suppress(OSError):
            for event in read_events(self.directory / "events.jsonl"):
                if event["event"] == "answered" and event["id"] == request:
                    return dict(event)
        raise UserError(
            field="DIR",
            value=self.directory,
            problem=f"its coordinator is gone and has not answered request {request}",
            remedy=f"start another one, and ask again: isoscale resume {self.directory}",
        )

    def _ask(self, request: m.FromClient) -> dict[str, Any]:
        # A connection whose reply did not come in time is not used again: the reply would answer the next request.
        socket, self._socket = self._socket or self._connect(), None
        try:
            socket.send(m.encode(request))
            frame = socket.recv(timeout=self.answer_s)
        except BaseException as error:
            socket.close()
            if isinstance(error, OSError | WebSocketException):
                raise absent(self.directory, asked=True) from None
            raise
        self._socket = socket
        reply = m.decode_reply(frame if isinstance(frame, bytes) else frame.encode())
        if not reply.ok:
            raise RequestRefusedError(reply.error)
        status: dict[str, Any] = {**(reply.status or {})}
        return {**status, "request": reply.id} if reply.id is not None else status

    def _connect(self) -> ClientConnection:
        """To the coordinator that the run's directory names now."""
        url, token = read_address(self.directory)
        if (error := stopped(self.directory)) is not None:
            raise error  # it would take the connection, and never answer
        try:
            return open_socket(f"{url}/control", token, self._ca_file)
        except (OSError, WebSocketException):
            raise absent(self.directory) from None

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
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection

from isoscale.backends.seam import Device
from isoscale.errors import IsoscaleError, UserError
from isoscale.protocol import messages as m
from isoscale.protocol.events import read_events
from isoscale.protocol.status import GrantStatus, JobStatus
from isoscale.runtime.control.absence import absent, stopped
from isoscale.runtime.control.directory import read_address
from isoscale.runtime.control.ended import is_over
from isoscale.runtime.control.executor_link import open_socket
from isoscale.runtime.control.grants import DeviceGrant, device_named, read_grant, write_grant

__all__ = ["JobHandle", "RequestRefusedError"]

_POLL_S = 0.05


class RequestRefusedError(IsoscaleError):
    """Raised when the coordinator says no; the message is its reason."""

    exit_code = 2


class JobHandle:
    #: what a person calls `place`, in errors
    field = "DIR"

    def __init__(self, directory: str | Path, *, ca_file: Path | None = None, answer_s: float = 30.0) -> None:
        """Raises UserError if no job runs in `directory`, or its coordinator does not answer."""
        self.directory = Path(directory)
        self._begin(ca_file, answer_s)

    def _begin(self, ca_file: Path | None, answer_s: float) -> None:
        #: how long a reply may take
        self.answer_s = answer_s
        self._ca_file = ca_file
        #: a connection on which no reply is awaited; None after a call that got none
        self._socket: ClientConnection | None = self._connect()

    @property
    def place(self) -> str:
        """The name of the run in messages: its directory, or its URL."""
        return str(self.directory)

    def __enter__(self) -> JobHandle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """The job is not asked for anything any more."""
        socket, self._socket = self._socket, None
        if socket is not None:
            socket.close()

    # ---- EDL's calls ----

    def scale_to(
        self, target: int | str | None = None, *, batch: int | None = None, reason: str = "asked"
    ) -> dict[str, Any]:
        """A number of executors, or a device set such as "cpu*2+cpu-sse*1"; with `batch` the batch size of every
        logical worker too, which changes with them, or alone where no target is given."""
        if target is None and batch is None:
            problem, remedy = "neither devices nor a batch size", "give one of them, or both"
            raise UserError(field="scale_to", value="nothing", problem=problem, remedy=remedy)
        return self._ask(m.Scale(target="" if target is None else str(target), batch=batch, reason=reason))

    def scale_out(self, count: int = 1) -> dict[str, Any]:
        """More executors."""
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

    # ---- of a job that a cluster service runs ----

    def grant(
        self,
        number: int,
        devices: Sequence[Device | str],
        *,
        batch: int | None = None,
        within_s: float | None = None,
        reason: str = "granted",
    ) -> dict[str, Any]:
        """These devices and no others, from now on: written down first, then told. Higher numbers override lower ones.

        With `within_s` what is taken away is free by then: whoever cannot leave is ended, and the others do the open
        step again. What was given up is in `held()["abandoned_s"]`.
        """
        return self._grant(number, devices, batch, m.Grant(number=number, within_s=within_s, reason=reason))

    def pause(
        self, number: int, *, within_s: float | None = None, force: bool = False, reason: str = "paused"
    ) -> dict[str, Any]:
        """Save the state and end: the job holds no device when its coordinator is gone, and has the word "paused".

        With `within_s` the open step is given up if it does not end in time. Raises RequestRefusedError if the state
        cannot be written by then, with what would be lost, unless `force`.
        """
        if within_s is not None and not force and (loss := self.loss(within_s)):
            raise RequestRefusedError(loss)
        return self._grant(number, (), None, m.Grant(number=number, within_s=within_s, reason=reason))

    def cancel(self, number: int, reason: str = "cancelled") -> dict[str, Any]:
        """End at once, saving nothing."""
        return self._grant(number, (), None, m.Grant(number=number, cancel=True, reason=reason))

    def held(self) -> GrantStatus:
        """What the job holds, and by which grant it goes. Raises RequestRefusedError if no service runs it."""
        status = self.status()
        if "grant" not in status:
            raise RequestRefusedError(f"{self.place}: no service runs this job")
        return status["grant"]

    def loss(self, within_s: float) -> str:
        """What a pause within so many seconds would lose of committed work; "" if nothing, as far as is known."""
        held = self.held()
        if not held["unsaved_steps"] or (held["write_s"] or 0.0) <= within_s:
            return ""
        return (
            f"its state took {held['write_s']:.1f} s to write: within {within_s:g} s the newest checkpoint counts, and "
            f"{held['unsaved_steps']} committed steps will be trained again"
        )

    def _grant(self, number: int, devices: Sequence[Device | str], batch: int | None, told: m.Grant) -> dict[str, Any]:
        named = tuple(device_named(one) if isinstance(one, str) else one for one in devices)
        before = read_grant(self.directory)
        job = before.job if before is not None else ""
        if not write_grant(self.directory, DeviceGrant(number=number, devices=named, batch=batch, job=job)):
            raise RequestRefusedError(f"grant {number}: a newer one is on the disk")
        return self._ask(told)

    def status(self) -> JobStatus:
        """What `isoscale status --json` prints."""
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
        on_wait: Callable[[JobStatus], None] | None = None,
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
            if on_wait is not None:
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
            for event in self._events_left_behind():
                if event["event"] == "answered" and event["id"] == request:
                    return dict(event)
        raise UserError(
            field=self.field,
            value=self.place,
            problem=f"its coordinator is gone and has not answered request {request}",
            remedy=f"start another one, and ask again: isoscale resume {self.place}",
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
                raise self._absent(asked=True) from None
            raise
        self._socket = socket
        reply = m.decode_reply(frame if isinstance(frame, bytes) else frame.encode())
        if not reply.ok:
            raise RequestRefusedError(reply.error)
        status: dict[str, Any] = {**(reply.status or {})}
        return {**status, "request": reply.id} if reply.id is not None else status

    def _connect(self) -> ClientConnection:
        """To the coordinator that the run's directory names now."""
        url, token = self._find()
        try:
            return open_socket(f"{url}/control", token, self._ca_file)
        except (OSError, WebSocketException):
            raise self._absent(asked=False) from None

    # ---- where the run is: other places do these in their own way ----

    def _find(self) -> tuple[str, str]:
        """Address of the coordinator, and the run's token. Raises UserError."""
        try:
            found = read_address(self.directory)
        except UserError as nobody:
            raise (is_over(self.directory) or nobody) from None
        if (error := stopped(self.directory)) is not None:
            raise error  # it would take the connection, and never answer
        return found

    def _absent(self, *, asked: bool) -> UserError:
        """The coordinator did not answer. `asked`: it was sent a request."""
        return absent(self.directory, asked=asked)

    def _events_left_behind(self) -> Iterator[dict[str, Any]]:
        """Raises OSError."""
        yield from read_events(self.directory / "events.jsonl")

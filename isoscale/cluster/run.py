"""The service's end of one job's coordinator: a thread that starts it, asks it, tells it, and sees it end.

One thread per job, so a coordinator that does not answer delays nobody else. It decides nothing: what it sees it posts
to the engine, what the engine says it does, in order.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from isoscale.clock import since_boot
from isoscale.cluster import coordinator
from isoscale.cluster.outcome import INPUT, MACHINE, Outcome, forget_summary, outcome_of
from isoscale.cluster.process import CoordinatorProcess, Executors, LocalExecutors, start_gated, until_readable
from isoscale.errors import IsoscaleError
from isoscale.protocol.status import JobStatus
from isoscale.runtime.control.job_handle import JobHandle, RequestRefusedError
from isoscale.scheduling.driving import DevicesReleased, Grant, GrantReported, RunAnswers, RunSilent

__all__ = ["Ended", "Post", "Run", "Seen", "Unwritten"]

_log = logging.getLogger(__name__)

#: between looks: while something changes, a share of the time since it began, within limits; and otherwise
_BUSY_SHARE, _SOONEST_S, _LATEST_S, _CALM_S = 0.05, 0.03, 0.2, 1.0
#: after an error of the service's own
_AGAIN_S = 1.0
#: between two looks at what outlived being killed, with nobody left who would tell of its end
_STUCK_S = 10.0
#: how long one that lives may leave a question open, and one that starts may take until it has an address
_ANSWER_S, _START_S = 4.0, 60.0
#: a job writes a checkpoint so often, if it trains undisturbed: what a loss of power costs at most
_CHECKPOINT_S = 600.0


@dataclass(frozen=True, slots=True)
class Seen:
    """A coordinator's answer."""

    job: str
    attempt: int
    status: JobStatus


@dataclass(frozen=True, slots=True)
class Ended:
    """A coordinator is gone. `alive`: devices on which executors of it live."""

    job: str
    attempt: int
    outcome: Outcome
    alive: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Unwritten:
    """A grant could not be written down, and is tried again until it can be, or a newer one overtakes it."""

    job: str
    number: int
    error: str


Post = Callable[[Any], None]


class Run:
    def __init__(
        self,
        job: str,
        directory: Path,
        post: Post,
        now: Callable[[], float],
        terms: coordinator.Terms | None = None,
        executors: Executors | None = None,
    ) -> None:
        """`now`: the engine's clock, in which deadlines are told."""
        self.job, self.directory = job, directory
        self._post, self._now, self._terms = post, now, terms or coordinator.Terms()
        self._executors = executors or LocalExecutors()
        self._orders: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._wake, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        #: who writes into the pipe, or closes it: its number may be another file's a moment later
        self._waking = threading.Lock()
        self._process: CoordinatorProcess | None = None
        self._handle: JobHandle | None = None
        self._attempt = 0
        self._begun_s = 0.0
        #: when it was last asked for a checkpoint, and when it was last told to change something
        self._saved_s = self._changed_s = 0.0
        self._is_calm = False
        self._is_silent = False
        self._has_answered = False
        #: an order for a coordinator that has not answered yet
        self._unsaid: Callable[[JobHandle], object] | None = None
        #: a grant that could not be written down, and how to tell of it
        self._unwritten: tuple[Grant, Callable[[JobHandle], object]] | None = None
        self._tried_s = 0.0
        #: when it first left a question open
        self._unanswered_s: float | None = None
        self._reported: GrantReported | None = None
        #: that this coordinator has told of so far
        self._abandoned_s = 0.0
        #: the end of an attempt that the engine was not told of yet
        self._ended: Ended | None = None
        #: devices on which something was killed and lives, and whom no coordinator looks after
        self._stuck: tuple[str, ...] = ()
        self._killed_s = 0.0
        self._is_closing = False
        self._thread = threading.Thread(target=self._work, name=f"run-{job}", daemon=True)
        self._thread.start()

    # ---- orders, from the engine ----

    def launch(
        self,
        attempt: int,
        grant: Grant,
        start: Callable[[Grant], coordinator.Start],
        record: Callable[[int, int], None],
    ) -> None:
        """`start` prepares the directory; `record` makes the process known before it does anything."""
        self._order(lambda: self._launch(attempt, grant, start, record))

    def adopt(self, attempt: int, process: CoordinatorProcess) -> None:
        """One that an earlier service started."""
        self._order(lambda: self._take(attempt, process))

    def send(self, grant: Grant) -> None:
        self._order(
            lambda: self._tell(grant, lambda handle: coordinator.send_grant(handle, grant, self._now(), self._terms))
        )

    def pause(self, grant: Grant) -> None:
        self._order(lambda: self._tell(grant, lambda handle: coordinator.pause(handle, grant, self._now())))

    def cancel(self, grant: Grant) -> None:
        self._order(lambda: self._tell(grant, lambda handle: coordinator.cancel(handle, grant)))

    def kill(self, devices: tuple[str, ...], *, coordinator_too: bool) -> None:
        self._order(lambda: self._kill(devices, coordinator_too))

    def close(self) -> None:
        """The service ends, or the job has: the coordinator, if there is one, goes on."""
        self._is_closing = True
        self._order(lambda: None)

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    def _order(self, what: Callable[[], None]) -> None:
        self._orders.put(what)
        with self._waking, contextlib.suppress(OSError):  # full: it is awake
            if self._waker >= 0:
                os.write(self._waker, b"1")

    # ---- the thread ----

    def _work(self) -> None:
        next_look_s = 0.0
        try:
            while not self._is_closing:
                try:
                    next_look_s = self._turn(next_look_s)
                except Exception:  # a job that nobody watches would keep its devices for ever
                    _log.exception("job %s: looked at again in %g s", self.job, _AGAIN_S)
                    time.sleep(_AGAIN_S)
        finally:
            self._drop_handle()
            with self._waking:
                os.close(self._wake)
                os.close(self._waker)
                self._waker = -1
            if self._process is not None:
                self._process.close()

    def _turn(self, next_look_s: float) -> float:
        """Returns when to look next."""
        ended = self._wait(max(0.0, next_look_s - since_boot()))
        if self._follow_orders():
            next_look_s = 0.0
        process = self._process
        if self._is_closing:
            return next_look_s
        if process is None:
            self._finish_ends()
            return next_look_s
        if ended or not process.is_alive():
            self._on_ended(process)
        elif since_boot() >= next_look_s:
            if self._unwritten is not None and since_boot() - self._tried_s >= _AGAIN_S:
                self._tried_s = since_boot()
                self._tell(*self._unwritten)
            self._look()
            next_look_s = since_boot() + self._between_looks_s()
        return next_look_s

    def _between_looks_s(self) -> float:
        if self._is_calm:
            return _CALM_S
        # Devices that are free are another job's a moment later; but a change may also take minutes.
        return min(_LATEST_S, max(_SOONEST_S, _BUSY_SHARE * (since_boot() - self._changed_s)))

    def _wait(self, seconds: float) -> bool:
        """Until an order comes, the coordinator has ended (True), or the time is over."""
        ended = False
        if self._process is not None:
            ended = self._process.wait(seconds, self._wake)
        else:
            again_s = _AGAIN_S if self._ended is not None else _STUCK_S if self._stuck else None
            until_readable(self._wake, seconds=again_s)
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake, 4096)
        return ended

    def _follow_orders(self) -> bool:
        """Whether there were any."""
        followed = False
        while not self._is_closing and not self._orders.empty():
            order, followed = self._orders.get(), True
            try:
                order()
            except Exception:
                _log.exception("job %s", self.job)
        return followed

    # ---- doing ----

    def _launch(
        self,
        attempt: int,
        grant: Grant,
        start: Callable[[Grant], coordinator.Start],
        record: Callable[[int, int], None],
    ) -> None:
        if not forget_summary(self.directory):
            # Its result is there: a second one must not come.
            self._end(Ended(self.job, attempt, outcome_of(self.directory)))
            return
        try:
            what = start(grant)
            process = start_gated(
                what.command,
                cwd=what.cwd,
                environment=what.environment,
                log=self.directory / "coordinator.log",
                record=record,
            )
        except Exception as error:
            text = f"it could not be started: {error}"
            if isinstance(error, IsoscaleError):
                outcome = Outcome(kind="failed", error=text, error_class=INPUT, exit_code=2)
            else:  # a full disk, too many processes, a busy database: no fault of the job's
                _log.exception("job %s", self.job)
                outcome = Outcome(kind="died", error=text, error_class=MACHINE)
            self._end(Ended(self.job, attempt, outcome))
            return
        self._take(attempt, process)

    def _take(self, attempt: int, process: CoordinatorProcess) -> None:
        self._process, self._attempt, self._stuck = process, attempt, ()
        self._begun_s = self._saved_s = self._changed_s = since_boot()
        self._is_calm = self._is_silent = self._has_answered = False
        self._unsaid, self._abandoned_s, self._unwritten = None, 0.0, None
        self._unanswered_s = self._reported = None

    def _kill(self, devices: tuple[str, ...], coordinator_too: bool) -> None:
        process = self._process
        if coordinator_too and process is not None:
            process.kill()
        if process is None:  # a coordinator tells by itself what it still holds
            self._stuck, self._killed_s = devices, since_boot()
        freed = self._executors.end(self.directory, devices)
        self._stuck = tuple(device for device in self._stuck if device not in freed)
        self._post(DevicesReleased(self.job, tuple(freed)))

    def _tell(self, grant: Grant, what: Callable[[JobHandle], object]) -> None:
        """On the disk before anybody hears of it, and also if nobody does: a coordinator that was stopped and wakes up
        when its devices are another job's must not start anything on them."""
        try:
            coordinator.write_down(self.directory, self.job, grant, self._terms)
        except OSError as error:
            # A full disk, say. Its devices stay what they are in everybody's book until it can be written.
            if self._unwritten is None or self._unwritten[0].number != grant.number:
                self._post(Unwritten(self.job, grant.number, str(error)))
            self._unwritten = (grant, what)
            return
        if self._unwritten is not None and self._unwritten[0].number <= grant.number:
            self._unwritten = None
        self._ask(what)

    def _ask(self, what: Callable[[JobHandle], object]) -> bool:
        """One that starts is told when it answers first; one that falls silent, by the driver when it answers again.

        The newest order overtakes older ones. False if it was not heard.
        """
        self._is_calm, self._changed_s, self._unsaid = False, since_boot(), what
        if self._process is None or not self._has_answered:
            return False
        self._unsaid = None
        try:
            what(self._reach())
        except RequestRefusedError as refusal:
            # It answers, and will not: it is ending, or has heard of a newer grant. What becomes of that it reports.
            _log.info("job %s: %s", self.job, refusal)
        except (IsoscaleError, TimeoutError, OSError) as error:
            self._drop_handle()
            _log.warning("job %s: its coordinator does not take an order: %s", self.job, error)
            self._fall_silent()
            return False
        return True

    # ---- looking ----

    def _look(self) -> None:
        try:
            status = self._reach().status()
        except Exception as error:
            if self._unanswered_s is None and not isinstance(error, IsoscaleError | OSError):
                _log.exception("job %s: its coordinator's answer is none", self.job)
            self._drop_handle()
            self._on_no_answer()
            return
        self._unanswered_s, self._has_answered = None, True
        if (unsaid := self._unsaid) is not None:
            self._ask(unsaid)
        if self._is_silent:
            self._is_silent = False
            self._post(RunAnswers(self.job))
            self._reported = None
        report = coordinator.report_of(self.job, status, self._abandoned_s)
        if report is not None and report != self._reported:
            self._abandoned_s += report.abandoned_s
            self._reported = replace(report, abandoned_s=0.0)
            self._post(report)
        self._is_calm = status["state"] == "training" and (report is None or report.is_settled)
        if self._is_calm and since_boot() - self._saved_s >= _CHECKPOINT_S:
            self._saved_s = since_boot()
            self._ask(lambda handle: handle.checkpoint())
        self._post(Seen(self.job, self._attempt, status))

    def _on_no_answer(self) -> None:
        now = since_boot()
        if not self._has_answered and now - self._begun_s < _START_S:
            return
        if self._unanswered_s is None:
            self._unanswered_s = now
        if now - self._unanswered_s >= _ANSWER_S:
            self._fall_silent()

    def _fall_silent(self) -> None:
        if not self._is_silent and self._process is not None and self._process.is_alive():
            self._is_silent = True
            self._post(RunSilent(self.job))

    def _on_ended(self, process: CoordinatorProcess) -> None:
        code = process.exit_code()
        process.close()
        self._process = None
        self._drop_handle()
        outcome = outcome_of(self.directory, code)
        left_s = max(0.0, outcome.abandoned_s - self._abandoned_s)
        self._end(Ended(self.job, self._attempt, replace(outcome, abandoned_s=left_s)))

    # ---- what is left ----

    def _end(self, ended: Ended) -> None:
        self._ended = ended
        self._finish_ends()

    def _finish_ends(self) -> None:
        """Told with what lives of it, also of one that could not be started: an earlier one may have left executors.
        Until somebody has looked nothing is told, since devices of which nobody knows are not free."""
        if self._ended is not None:
            alive = tuple(sorted({one.device for one in self._executors.live(self.directory)}))
            ended, self._ended = self._ended, None
            self._post(replace(ended, alive=alive))
        elif self._stuck and since_boot() - self._killed_s >= _STUCK_S:
            self._kill(self._stuck, False)

    def _reach(self) -> JobHandle:
        if self._handle is None:
            self._handle = JobHandle(self.directory, answer_s=_ANSWER_S)
        return self._handle

    def _drop_handle(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            with contextlib.suppress(Exception):
                handle.close()

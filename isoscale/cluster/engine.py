"""One thread that knows what every job holds and shall hold: events in, the driver's instructions out, recorded first.

A turn: everything that was posted goes to the driver; what it says is written down in one transaction (intent); then it
is done (act), by the threads of the jobs concerned; then a new picture is published. Nothing here waits for a job.
"""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from isoscale.cluster import faults
from isoscale.cluster.adoption import wishes
from isoscale.cluster.bundle import Codes
from isoscale.cluster.change_costs import ChangeCosts
from isoscale.cluster.desk import write_ended
from isoscale.cluster.forecast import KnownJob
from isoscale.cluster.hands import Hands
from isoscale.cluster.learning import Learner
from isoscale.cluster.live import Live
from isoscale.cluster.outcome import Outcome
from isoscale.cluster.outlook import known_jobs, loss
from isoscale.cluster.picture import Estimate, Picture
from isoscale.cluster.publishing import later, picture_of
from isoscale.cluster.recording import Recorder
from isoscale.cluster.requests import asked_of, has_passed, learned, progress_of, submission_of
from isoscale.cluster.retrying import class_of
from isoscale.cluster.run import Ended, Seen, Unwritten
from isoscale.cluster.state_directory import job_directory
from isoscale.cluster.store import Store, SupersededError
from isoscale.cluster.values import JobRecord, State
from isoscale.protocol.status import JobStatus
from isoscale.scheduling.driver import Driver
from isoscale.scheduling.driving import (
    CancelAsked,
    GrantReported,
    Happening,
    Instruction,
    Launch,
    PauseAsked,
    ResumeAsked,
    ReturnDevices,
    RunEnded,
    SendGrant,
    StateChanged,
)
from isoscale.scheduling.events import JobSubmitted, RequestChanged
from isoscale.scheduling.state import Cluster
from isoscale.sim.costs import Costs

__all__ = ["Engine"]

_log = logging.getLogger(__name__)

T = TypeVar("T")

#: how long a cancelled job may take to go by itself
_CANCEL_S = 10.0
#: a turn at least so often: deadlines and rounds are looked at by then
_LONGEST_WAIT_S = 30.0
#: between tries to write to a disk that is full
_DISK_S = 1.0
#: between two times that a job is told the same batch size
_REBATCH_S = 5.0


class Engine:
    def __init__(
        self,
        store: Store,
        state: Path,
        driver: Driver,
        devices: Sequence[Sequence[str]],
        codes: Codes,
        *,
        now: Callable[[], float],
        policy: str,
        quotas: Mapping[str, int],
        cores: Mapping[str, tuple[int, ...]] | None = None,
        on_returned: Callable[[ReturnDevices], None] = lambda returned: None,
        on_broken: Callable[[BaseException], None] = lambda error: None,
    ) -> None:
        """`on_broken`: the engine cannot go on, and the service must end."""
        self._store, self._state, self._driver = store, state, driver
        self._cluster: Cluster = driver.controller.cluster
        self.device_names = devices
        self._now = now
        #: may be replaced, in the engine's thread
        self.policy, self.quotas = policy, quotas
        self._cores = cores or {}
        self._on_returned, self._on_broken = on_returned, on_broken
        self._recorder = Recorder(store, driver)
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        #: taken out of the inbox while decisions could not be written down
        self._backlog: list[Any] = []
        self.live: dict[str, Live] = {}
        #: by which instructions are carried out
        self.hands = Hands(state, self.live, codes, self._recorder, self._cores, self.post, now)
        #: devices that are not ours
        self.away: set[str] = set()
        self.estimates: Mapping[str, Estimate] = {}
        #: called after a turn that changed something
        self.on_change: Callable[[], None] = lambda: None
        self.picture = Picture(t=now(), policy=policy)
        self.turn_s = 0.0
        #: seconds that a new job trains on as few devices as it can before it may get more, and failures in that time
        self.trial_s, self.trial_failures = 0.0, 0
        #: what keeps it from deciding; "" if nothing does
        self.trouble = ""
        #: times of the last turn and of the next decision
        self._turned_s, self._due_s = now(), math.inf
        self._costs = ChangeCosts()
        self._is_closing = False
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)

    def start(self) -> None:
        self._due_s = self._driver.next_due_s(self._turned_s)
        self.publish()
        self._thread.start()

    def post(self, message: Any) -> None:
        """From any thread."""
        self._inbox.put(message)

    def tell(self, what: str, job: str) -> None:
        """A client changed something in the database."""
        self._inbox.put(_Told(what, job))

    def call(self, work: Callable[[Engine], list[Happening]]) -> None:
        """In the engine's thread: what it returns goes to the driver."""
        self._inbox.put(work)

    def ask(self, look: Callable[[Engine], list[Any]]) -> None:
        """In the engine's thread, and no news: nobody is woken by it."""
        self._inbox.put(_Look(look))

    def close(self) -> None:
        """Jobs go on without the service."""
        self._is_closing = True
        self._inbox.put(None)
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(10)
        self.hands.close()

    @property
    def is_well(self) -> bool:
        return self._thread.is_alive() and not self.trouble

    # ---- the thread ----

    def _work(self) -> None:
        try:
            while not self._is_closing:
                messages = self._next_messages()
                if self._is_closing:
                    return
                begun = self._now()
                self.turn(messages)
                self.turn_s = self._now() - begun
        except SupersededError as error:
            _log.error("%s", error)
            self._on_broken(error)
        except BaseException as error:
            _log.exception("the engine fails")
            self._on_broken(error)

    def _next_messages(self) -> list[Any]:
        wait_s = 0.0 if self._backlog else max(0.0, self._due_s - self._now())
        messages, self._backlog = self._backlog, []
        with contextlib.suppress(queue.Empty):
            messages.append(self._inbox.get(timeout=min(wait_s, _LONGEST_WAIT_S)))
        while not self._inbox.empty():
            messages.append(self._inbox.get())
        return messages

    def turn(self, messages: Sequence[Any]) -> None:
        """Everything that was posted, at once: a burst of submissions is one decision."""
        now, before = self._moment(), self._driver.num_changes
        events = [event for message in messages for event in self._events_of(message)]
        instructions = list(self._driver.handle(*events, now=now)) if events else []
        if self._driver.next_due_s(now) <= now:
            self._report_progress(now)
            instructions += self._driver.decide(now)
        self._due_s = self._driver.next_due_s(now)
        is_news = bool(instructions) or any(not isinstance(message, Seen | _Look) for message in messages)
        if not is_news and self._driver.num_changes == before:
            # Most turns: jobs have told how far they are, and all else stands as it stood.
            self.publish({message.job for message in messages if isinstance(message, Seen)})
            return
        if is_news:
            self.carry_out(instructions, now)
        self.publish()
        if is_news:
            self.on_change()

    def _moment(self) -> float:
        """Now; or, a moment late for a round, the round's own time: the controller asks for exactly that."""
        late, due_s, interval_s = self._now(), self._due_s, self._driver.controller.interval_s
        now = late
        if due_s <= late and interval_s > 0:
            # Of rounds that were missed (a suspended machine) only the last one counts.
            now = due_s + (late - due_s) // interval_s * interval_s
            # The same round, as the controller computes it: rounding may put it a hair later.
            now = max(now, round_s) if (round_s := self._driver.next_due_s(now)) <= late else now
        self._turned_s = max(self._turned_s, now)
        return self._turned_s

    def carry_out(self, instructions: Sequence[Instruction], now: float) -> None:
        ended = self.persist(lambda: self._recorder.record(instructions, self.live, now))
        if any(isinstance(one, SendGrant | Launch) for one in instructions):
            faults.reached("grant-written")
        for instruction in instructions:
            if isinstance(instruction, StateChanged) and instruction.job in self.live:
                self._time_start(self.live[instruction.job], instruction, now)
            self.hands.perform(instruction)
            if isinstance(instruction, ReturnDevices):
                self.away.update(instruction.devices)
                self._on_returned(instruction)
        for job in ended:
            self._bury(job)
        self.hands.let_go(lambda job: job in self.live or job in self._driver)

    def persist(self, write: Callable[[], T]) -> T:
        """In the engine's thread. Nothing is done before it is written down, however long the disk is full: jobs train
        on meanwhile."""
        while True:
            try:
                written = write()
                self.trouble = ""
                return written
            except sqlite3.OperationalError as error:
                if self._is_closing:
                    raise
                if not self.trouble:
                    _log.error("decisions cannot be written down, and wait: %s", error)
                self.trouble = f"decisions cannot be written down: {error}"
                time.sleep(_DISK_S)
                self._show_meanwhile()

    def _show_meanwhile(self) -> None:
        """How far jobs are, as they say; of each only the last counts. All else that was posted keeps its order."""
        while not self._inbox.empty():
            self._backlog.append(self._inbox.get())
        last = {message.job: message for message in self._backlog if isinstance(message, Seen)}
        self._backlog = [one for one in self._backlog if not isinstance(one, Seen) or one is last[one.job]]
        shown = {job for job in last if job in self.live and job in self.picture.jobs}
        for job in shown:
            live, status = self.live[job], last[job].status
            live.status, live.samples = status, status.get("samples", live.samples)
        self.publish(shown)

    def _time_start(self, live: Live, change: StateChanged, now: float) -> None:
        if change.new == "starting":
            live.launched_s = now
        elif change.new == "running" and change.old == "starting" and live.launched_s:
            self._costs.started(now - live.launched_s)

    # ---- from messages to events ----

    def _events_of(self, message: Any) -> list[Happening]:
        match message:
            case None:
                return []
            case _Told(what, job):
                return self._on_told(what, job)
            case Seen(job, attempt, status):
                return self._on_seen(job, attempt, status)
            case Ended():
                return self._on_ended(message)
            case Unwritten(job, number, error):
                self._recorder.unwritten(self.live.get(job), number, error, self._now())
                return []
            case GrantReported() if message.job in self._driver:
                # A job may still hold what this service does not have any more.
                held, given_up = self._known(message.held), self._known(message.given_up)
                return [replace(message, held=held, given_up=given_up)]
            case _Look(look):
                return look(self)
            case _ if callable(message):
                return list(message(self))
        known = getattr(message, "job", "")
        return [message] if not known or known in self._driver else []

    def _on_told(self, what: str, job: str) -> list[Happening]:
        record = self._store.job(job)
        if record is None or record.is_over:
            return []
        if what == "submitted" and job not in self.live:
            return self.admit(record)
        live = self.live.get(job)
        if live is None:
            return []
        live.record = record
        if not live.is_offered:  # it waits for others, and nobody decides about it yet
            if what == "cancel":
                self.cancel_waiting(job)
            return []
        match what:
            case "pause":
                return [PauseAsked(job, "its owner paused it")]
            case "run":
                return [ResumeAsked(job)]
            case "cancel":
                return [CancelAsked(job, self._now() + _CANCEL_S, "its owner cancelled it")]
        return [RequestChanged(asked_of(live, self._cluster))]

    def admit(self, record: JobRecord) -> list[Happening]:
        """A job that is new to the engine; the driver hears of it, and of what its owner wants, when it waits for
        nobody."""
        live = self.live.get(record.id) or self.know(record)
        live.record = record
        found = {one: self._store.job(one) for one in record.submission.after}
        live.waits_for = tuple(id_ for id_, one in found.items() if one is None or one.state != "finished")
        lost = [id_ for id_, one in found.items() if one is None or one.state in ("failed", "cancelled")]
        if lost:
            self._end_waiting(live, "failed", f"{lost[0]}, which it waits for, did not finish")
            return []
        if live.waits_for:
            return []
        live.is_offered = True
        return [self.submission(live), *wishes(record, None, self._now() + _CANCEL_S)]

    def know(self, record: JobRecord) -> Live:
        """One that has begun before is past its trial; where a policy gives a job all or nothing there is none."""
        live = self.live[record.id] = Live(record, self.learner(record))
        is_gang = self._driver.controller.policy.gang
        live.is_on_trial = self.trial_s > 0 and not is_gang and record.started_s is None
        return live

    def submission(self, live: Live) -> JobSubmitted:
        return submission_of(live, self._cluster)

    def learner(self, record: JobRecord) -> Learner:
        learner = Learner(workers=record.submission.workers, kinds=self._cluster.kinds)
        known = self._store.speeds(record.id) or self._store.speeds_of(record.script, record.submission.workers)
        for text, (step_s, looks) in known.items():
            learner.learn_point(msgspec.json.decode(text, type=tuple[tuple[str, int], ...]), step_s, looks)
        return learner

    def cancel_waiting(self, job: str) -> None:
        """One that waits for others: the driver has not heard of it."""
        if (live := self.live.get(job)) is not None:
            self._end_waiting(live, "cancelled", "its owner cancelled it")

    def _end_waiting(self, live: Live, state: State, error: str) -> None:
        self.persist(lambda: self._recorder.end_waiting(live, state, error, self._now()))
        self._bury(live.record.id)

    def close_attempt(self, job: str, attempt: int, outcome: Outcome) -> None:
        """A coordinator of an earlier service is gone: written down with what follows from it."""
        self._recorder.closing.append((job, attempt, outcome.kind))

    def finish_found(self, job: str) -> None:
        """Its result was there when the service came."""
        self.persist(lambda: self._recorder.finish_found(self.live[job], self._now()))
        self._bury(job)

    def _on_seen(self, job: str, attempt: int, status: JobStatus) -> list[Happening]:
        live = self.live.get(job)
        if live is None or job not in self._driver or self._driver.standing(job).attempt != attempt:
            return []
        before = live.restart_s
        events = learned(live, status, self._cluster, self._now())
        if live.restart_s is not None and live.restart_s != before:
            self._costs.changed(live.restart_s)
            self._driver.controller.rescale_s = self._costs.rescale_s
        self._look_at_batch(live, status)
        if has_passed(live, status, self._now(), self.trial_s):
            events.append(RequestChanged(asked_of(live, self._cluster)))
        return events

    def _look_at_batch(self, live: Live, status: JobStatus) -> None:
        """A size that was decided and that the job does not have: told again, since it may have begun only then."""
        job, standing = live.record.id, self._driver.standing(live.record.id)
        if live.batches is None or not standing.batch or standing.state != "running":
            return
        size = standing.batch // live.record.submission.workers
        if size == live.batches.size:
            live.batches.accepted(size)
            return
        is_open = any(one["outcome"] is None for one in status.get("requests", ()))
        if is_open or self._now() - live.rebatched_s < _REBATCH_S:
            return
        live.rebatched_s = self._now()
        if live.batches.refused(size):
            self.hands.run_of(job).send(self._driver.grant(job))
        else:
            _log.warning("job %s does not take the batch size %d", job, size)
            self.post(RequestChanged(asked_of(live, self._cluster)))

    def _report_progress(self, now: float) -> None:
        """Policies that look at the time look at work that is left."""
        events = [event for live in self.live.values() if live.record.id in self._driver for event in progress_of(live)]
        if events:
            self._driver.handle(*events, now=now)

    def _on_ended(self, message: Ended) -> list[Happening]:
        live, outcome = self.live.get(message.job), message.outcome
        if live is None:
            return []
        faults.reached("pause-done" if outcome.kind == "paused" else "result-seen")
        live.outcome = outcome
        step = max(outcome.step, live.status["step"] if live.status else 0)
        progressed = step > live.reached
        live.reached = max(live.reached, step)
        live.status, live.seen_s = None, 0.0
        if live.is_on_trial and outcome.kind == "failed":
            self.trial_failures += 1
        self._recorder.closing.append((message.job, message.attempt, outcome.kind))
        return [
            RunEnded(
                message.job,
                message.attempt,
                outcome.kind,
                error=class_of(outcome),
                reason=outcome.error,
                alive=self._known(message.alive),
                progressed=progressed,
                abandoned_s=outcome.abandoned_s,
            )
        ]

    def _known(self, devices: Sequence[str]) -> tuple[str, ...]:
        there = {device for node in self.device_names for device in node}
        return tuple(device for device in devices if device in there)

    def _bury(self, job: str) -> None:
        """A job is over: its row says so. Those who waited for it go on, or end too."""
        faults.reached("ended-recorded")
        live = self.live.pop(job)
        write_ended(job_directory(self._state, job), live.record)
        for other in [one for one in self.live.values() if job in one.waits_for]:
            self.tell_later(other.record.id)

    def tell_later(self, job: str) -> None:
        """Look at its dependencies again."""

        def look(engine: Engine) -> list[Happening]:
            live = engine.live.get(job)
            return engine.admit(live.record) if live is not None and live.waits_for else []

        self.call(look)

    # ---- telling ----

    def known_jobs(self) -> list[KnownJob]:
        """In the engine's thread."""
        return known_jobs(self._driver.controller, self.live, self._now())

    def costs(self) -> Costs:
        """What changes cost here, as far as it was measured."""
        return self._costs.costs()

    def loss(self, node: int, remaining: int, within_s: float) -> str:
        """What committed work would be lost if so many devices of a node remained; "" if none, as far as is known."""
        return loss(self.live, self.picture, self.device_names[node], remaining, within_s)

    def publish(self, only: Collection[str] | None = None) -> None:
        """`only`: nothing has changed but what these jobs say of themselves."""
        if only is not None:
            now, due = self._now(), self._due_s
            self.picture = later(self.picture, self.live, only, now, due, self.estimates)
            return
        self.picture = picture_of(
            self._driver,
            self.device_names,
            self.live,
            now=self._now(),
            policy=self.policy,
            quotas=self.quotas,
            away=self.away,
            cores=self._cores,
            estimates=self.estimates,
        )


@dataclass(frozen=True, slots=True)
class _Look:
    look: Callable[[Engine], list[Any]]


@dataclass(frozen=True, slots=True)
class _Told:
    what: str
    job: str

"""Writes down what the driver says before anybody does it: states, standings, attempts, events in one transaction."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from isoscale.cluster import faults
from isoscale.cluster.live import Live
from isoscale.cluster.retrying import Verdict, class_of
from isoscale.cluster.store import Store, Transaction
from isoscale.cluster.values import ENDED, State
from isoscale.scheduling.driver import Driver
from isoscale.scheduling.driving import (
    Instruction,
    KillRun,
    Launch,
    RejectJob,
    ReturnDevices,
    SendGrant,
    Standing,
    StateChanged,
)
from isoscale.scheduling.state import num_devices

__all__ = ["Recorder", "load_standing", "save_standing"]

#: events that tell of a new state
_EVENTS: dict[State, str] = {
    "queued": "job_queued",
    "starting": "job_starting",
    "running": "job_running",
    "resizing": "job_resizing",
    "pausing": "job_pausing",
    "paused": "job_paused",
    "finished": "job_finished",
    "failed": "job_failed",
    "cancelled": "job_cancelled",
}


def save_standing(standing: Standing) -> str:
    return msgspec.json.encode(standing).decode()


def load_standing(text: str) -> Standing | None:
    """None if there is none, or it cannot be read: the job is then looked at afresh."""
    if not text:
        return None
    try:
        return msgspec.json.decode(text, type=Standing)
    except msgspec.MsgspecError:
        return None


class Recorder:
    """Used by the engine's thread, but for `started`."""

    def __init__(self, store: Store, driver: Driver) -> None:
        self._store, self._driver = store, driver
        #: standings as they were last written
        self._saved: dict[str, str] = {}
        #: coordinators that have ended, to be written with what follows from it: job, attempt, how
        self.closing: list[tuple[str, int, str]] = []
        #: devices of each job when it was last told of
        self._devices: dict[str, int] = {}
        #: when a change of devices began that is not over
        self._resized: dict[str, float] = {}
        #: what was said of each job's last failure, once that was told
        self._verdicts: dict[str, Verdict] = {}

    def record(self, instructions: Sequence[Instruction], live: dict[str, Live], now: float) -> list[str]:
        """Returns jobs that are over."""
        standings = self._changed_standings(live)
        if not instructions and not standings and not self.closing:
            return []
        before = {job: one.record for job, one in live.items()}
        told, resized = dict(self._devices), dict(self._resized)
        try:
            ended = self._record(instructions, standings, live, now)
        except BaseException:  # nothing is written, and it may be tried again
            self._devices, self._resized = told, resized
            for job, record in before.items():
                live[job].record = record
            raise
        self.closing.clear()
        self._saved |= standings
        for one in instructions:
            if isinstance(one, StateChanged) and one.job in live and (said := live[one.job].verdict) is not None:
                self._verdicts[one.job] = said
        for job in ended:
            for book in (self._saved, self._devices, self._resized, self._verdicts):
                book.pop(job, None)
        return ended

    def _record(
        self, instructions: Sequence[Instruction], standings: Mapping[str, str], live: dict[str, Live], now: float
    ) -> list[str]:
        ended: list[str] = []
        with self._store.write(now=now) as tx:
            for job, attempt, how in self.closing:
                tx.ended(job, attempt, how)
                tx.event("coordinator_ended", live[job].record if job in live else None, attempt=attempt, how=how)
            for instruction in instructions:
                self._write(tx, instruction, live, ended)
            for job, text in standings.items():
                if job in live and job not in ended:
                    live[job].record = tx.update(job, standing=text, failures=self._driver.standing(job).failures)
            for job in ended:  # what it still holds is for the next service, if this one does not come to end it
                live[job].record = tx.update(job, standing=standings.get(job, ""))
            if not tx.last_event:
                tx.event("standing", devices=len(standings))
        return ended

    def started(self, job: str, attempt: int, pid: int, born: int, now: float) -> None:
        """A coordinator's process is there, and does nothing yet."""
        with self._store.write(now=now) as tx:
            tx.started(job, attempt, pid, born)
            tx.event("coordinator_started", tx.job(job), attempt=attempt, pid=pid)

    def unwritten(self, live: Live | None, number: int, error: str, now: float) -> None:
        """A grant is not in its job's directory, and is tried again. On a disk that is full this is not told either."""
        with contextlib.suppress(sqlite3.OperationalError), self._store.write(now=now) as tx:
            tx.event("grant_unwritten", live.record if live is not None else None, grant=number, error=error)

    def end_waiting(self, live: Live, state: State, error: str, now: float) -> None:
        """Of a job that the driver has not heard of."""
        with self._store.write(now=now) as tx:
            live.record = tx.set_state(live.record.id, state, ended_s=now, error=error)
            tx.event(_EVENTS[state], live.record, error=error)

    def finish_found(self, live: Live, now: float) -> None:
        """Of a job whose result is there, and whom the driver need not hear of."""
        record = live.record
        with self._store.write(now=now) as tx:
            open_ = tx.open_attempt(record.id)
            if open_ is not None:
                tx.ended(record.id, open_, "finished")
            self._turn(tx, live, "finished", "its result was there when the service came back")

    def _changed_standings(self, live: Mapping[str, Any]) -> dict[str, str]:
        found = {job: save_standing(self._driver.standing(job)) for job in self._driver.jobs if job in live}
        return {job: text for job, text in found.items() if self._saved.get(job) != text}

    def _write(self, tx: Transaction, instruction: Instruction, live: dict[str, Live], ended: list[str]) -> None:
        match instruction:
            case Launch(job, attempt, grant, goes_on):
                tx.intend(job, attempt)
                faults.reached("start-intended")
                record = live[job].record
                first = record.started_s is None
                if first:
                    live[job].record = record = tx.update(job, started_s=tx.now)
                    tx.came_true(job, "start")
                name = "job_started" if first else "job_resumed"
                tx.event(name, record, attempt=attempt, goes_on=goes_on, **self._told(job, grant))
            case SendGrant(job, grant):
                tx.event("job_resized", live[job].record if job in live else None, **self._told(job, grant))
            case StateChanged(job, _, new, reason):
                if job in live:
                    self._turn(tx, live[job], new, reason)
                    if new in ENDED:
                        ended.append(job)
            case RejectJob(job, reason):
                tx.event("job_rejected", live[job].record if job in live else None, reason=reason)
            case KillRun(job, devices, coordinator, reason):
                record_ = live[job].record if job in live else None
                tx.event("job_killed", record_, devices=devices, coordinator=coordinator, reason=reason)
            case ReturnDevices(reclaim, devices, abandoned_s, is_late):
                tx.event("devices_returned", reclaim=reclaim, devices=devices, abandoned_s=abandoned_s, late=is_late)

    def _told(self, job: str, grant: Any) -> dict[str, Any]:
        """Of a grant: who has how many now, and why."""
        before, after = self._devices.get(job, 0), len(grant.devices)
        self._devices[job] = after
        told = {"from": before, "to": after, "devices": grant.devices, "grant": grant.number, "reason": grant.reason}
        if 0 < after < before and (others := self._takers(job)):
            told["for"] = others
        return told

    def _takers(self, job: str) -> list[str]:
        """Jobs that shall have more than they have: for whom others give devices up."""
        standings = {one: self._driver.standing(one) for one in self._driver.jobs if one != job}
        return [one for one, held in standings.items() if num_devices(held.wanted) > len(held.granted)]

    def _turn(self, tx: Transaction, live: Live, new: State, reason: str) -> None:
        record, outcome = live.record, live.outcome
        fields: dict[str, Any] = {"step": max(record.step, live.reached), "total": record.total}
        if live.samples is not None:
            fields["samples"] = live.samples
        told: dict[str, Any] = {"reason": reason}
        if live.verdict is not None and live.verdict is not self._verdicts.get(record.id):
            told |= {"class": class_of(outcome), "retry": live.verdict.why, "on_trial": live.is_on_trial}
        if new == "resizing":
            self._resized[record.id] = tx.now
        elif new == "running" and record.id in self._resized:
            told["took_s"] = round(tx.now - self._resized.pop(record.id), 3)
        if new in ENDED:
            fields |= {"ended_s": tx.now}
            tx.came_true(record.id, "end")
            for devices, point in live.learner.points.items():
                tx.learn(record.id, msgspec.json.encode(devices).decode(), point.step_s, max(1, round(point.looks)))
        if new == "finished":
            fields |= {"digest": outcome.digest, "step": outcome.step, "exit_code": outcome.exit_code, "error": ""}
            fields |= {"samples": outcome.samples} if outcome.samples is not None else {}
            told |= {"digest": outcome.digest, "step": outcome.step}
        elif new == "failed":
            fields |= {"error": outcome.error or reason, "exit_code": outcome.exit_code or 1}
            fields |= {"failures": max(record.failures, live.failures)}
            told |= {"error": outcome.error or reason}
        elif new == "cancelled":
            fields |= {"error": reason, "exit_code": 130}
        elif new in ("paused", "queued"):
            self._devices[record.id] = 0
        live.record = tx.set_state(record.id, new, **fields)
        tx.event(_EVENTS[new], live.record, **told)

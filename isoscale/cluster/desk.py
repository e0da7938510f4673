"""What clients ask for: checked, written down, and only then told to the engine. Any thread may call.

What a call wants is durable before it is acknowledged (`wanted` and an event in one transaction). The engine is told
afterwards; if the service dies in between, the next one reads it from the database.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from isoscale import limits
from isoscale.cluster import faults
from isoscale.cluster.auth import Caller, ConflictError, ForbiddenError, NotFoundError, TooManyError
from isoscale.cluster.bundle import Codes
from isoscale.cluster.picture import Picture
from isoscale.cluster.retrying import last_words
from isoscale.cluster.showing import show_job, show_nodes
from isoscale.cluster.state_directory import job_directory
from isoscale.cluster.store import Store
from isoscale.cluster.values import ENDED, PRIORITY, JobRecord, JobShown, NodeShown, Submission, Wanted, Why
from isoscale.errors import UserError
from isoscale.protocol.files import write_text_synced

__all__ = ["Desk", "Told"]

#: what the engine is told: a job has changed in the database, and how
Told = tuple[str, str]


class Desk:
    def __init__(
        self,
        store: Store,
        state: Path,
        *,
        now: Callable[[], float],
        picture: Callable[[], Picture],
        tell: Callable[[str, str], None],
        max_waiting: int = 10_000,
    ) -> None:
        """`tell(what, job)`: the engine reads the job's row again. `max_waiting`: a tenant's jobs that are not over."""
        self._store = store
        self._state = state
        self._now = now
        self._picture = picture
        self._tell = tell
        self._max_waiting = max_waiting
        #: before a job's id: its directory, as text (a thousand paths cost more than a thousand rows)
        self._jobs = str(job_directory(state, "_")).removesuffix("_")
        self.codes = Codes(state / "code")
        self._numbers = threading.Lock()
        self._last = store.last_number()

    # ---- looking ----

    def jobs(
        self, caller: Caller, *, limit: int = 200, before: int | None = None, states: Sequence[str] = ()
    ) -> list[JobShown]:
        """The newest `limit` that the caller may see, and all that are not over; in order of submission."""
        tenant = caller.only_tenant
        found = {job.id: job for job in self._store.jobs(tenant=tenant, limit=limit, before=before)}
        if before is None:
            found |= {job.id: job for job in self._store.live_jobs() if caller.sees(job.tenant)}
        picture = self._picture()
        shown = [self._show(job, caller, picture) for job in sorted(found.values(), key=lambda job: job.number)]
        return [job for job in shown if not states or job.state in states]

    def shown(self, caller: Caller, records: Sequence[JobRecord]) -> list[JobShown]:
        """Of records that the caller may see."""
        picture = self._picture()
        return [self._show(record, caller, picture) for record in records]

    def job(self, caller: Caller, job: str) -> JobShown:
        record = self._visible(caller, job)
        shown = self._show(record, caller, self._picture())
        # Of one job only: to find the class of an error takes too long for a list of a thousand.
        if words := last_words(record):
            shown = replace(shown, why=replace(shown.why, text=f"{shown.why.text} ({words})"))
        return shown

    def why(self, caller: Caller, job: str) -> Why:
        return self.job(caller, job).why

    def nodes(self, caller: Caller) -> list[NodeShown]:
        return show_nodes(self._picture(), caller)

    def directory(self, caller: Caller, job: str) -> Path:
        """Of a job that the caller may see: the only way from a request to a path."""
        return job_directory(self._state, self._visible(caller, job).id)

    def record(self, caller: Caller, job: str) -> JobRecord:
        return self._visible(caller, job)

    # ---- submitting ----

    def submit(self, caller: Caller, submission: Submission) -> JobShown:
        """When it returns the job is not lost any more. Raises UserError, and the errors of `auth`."""
        submission.check()
        submission = replace(submission, tenant=caller.submits_for(submission.tenant))
        manifest = self.codes.manifest(submission.code)
        if submission.key and (known := self._by_key(caller, submission)) is not None:
            return self._show(known, caller, self._picture())
        for one in submission.after:
            self._visible(caller, one)
        number = self._next_number()
        name = submission.name or Path(manifest.script).stem
        job = JobRecord(
            id=f"j{number}",
            number=number,
            submission=submission,
            name=name,
            tenant=submission.tenant,
            owner=caller.name,
            priority=submission.priority,
            script=manifest.script,
            submitted_s=self._now(),
        )
        directory = job_directory(self._state, job.id)
        shutil.rmtree(directory, ignore_errors=True)  # of a submission that never was acknowledged
        directory.mkdir(mode=0o700)
        # For `serve --rebuild`. The database is what is synced before the answer: this is its second copy.
        (directory / "submission.json").write_bytes(msgspec.json.encode(job))
        faults.reached("submit-directory")
        try:
            known = self._insert(caller, job)
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        if known is not None:  # somebody sent the same key at the same time
            shutil.rmtree(directory, ignore_errors=True)
            return self._show(_same(known, submission), caller, self._picture())
        faults.reached("submit-committed")
        self._tell("submitted", job.id)
        return self._show(job, caller, self._picture())

    def _next_number(self) -> int:
        """Never that of a directory in which something ran: one that `serve --rebuild` could not read stays."""
        with self._numbers:
            self._last += 1
            while (job_directory(self._state, f"j{self._last}") / "control").exists():
                self._last += 1
            return self._last

    def _insert(self, caller: Caller, job: JobRecord) -> JobRecord | None:
        """None, or the job that had this key before."""
        with self._store.write(now=job.submitted_s, by=caller.name) as tx:
            if job.submission.key and (known := tx.by_key(caller.token, job.submission.key)) is not None:
                return known
            if tx.num_waiting(job.tenant) >= self._max_waiting:
                raise TooManyError(
                    f"tenant={job.tenant}: {self._max_waiting} jobs are not over, and no more are taken; "
                    "wait for some, or cancel some"
                )
            tx.insert(job, caller.token)
            tx.event(
                "job_submitted",
                job,
                name=job.name,
                workers=job.submission.workers,
                devices=job.submission.most_devices,
                priority=job.priority,
            )
        return None

    def _by_key(self, caller: Caller, submission: Submission) -> JobRecord | None:
        """The job of an earlier submission with this key. Raises ConflictError if it was another one."""
        with self._store.write(now=self._now()) as tx:
            known = tx.by_key(caller.token, submission.key)
        return None if known is None else _same(known, submission)

    # ---- verbs ----

    def pause(self, caller: Caller, job: str) -> JobShown:
        return self._want(caller, job, "pause", "pause_asked")

    def resume(self, caller: Caller, job: str) -> JobShown:
        return self._want(caller, job, "run", "resume_asked")

    def cancel(self, caller: Caller, job: str) -> JobShown:
        """One that is over stays as it is: to cancel twice is no mistake."""
        return self._want(caller, job, "cancel", "cancel_asked")

    def set_priority(self, caller: Caller, job: str, priority: int) -> JobShown:
        limits.within(priority, "priority", PRIORITY)
        found = self._changeable(caller, job)
        with self._store.write(now=self._now(), by=caller.name) as tx:
            before = found.priority
            found = tx.update(job, priority=priority)
            tx.event("priority_changed", found, **{"from": before, "to": priority})
        self._tell("changed", job)
        return self._show(found, caller, self._picture())

    def scale(self, caller: Caller, job: str, most: int) -> JobShown:
        """The most devices that the policy may give it from now on; 0: as submitted."""
        found = self._changeable(caller, job)
        least, workers = found.submission.min_devices, found.submission.workers
        if most:
            limits.within(most, "devices", limits.Range(least, workers, "more than it has logical workers"))
        with self._store.write(now=self._now(), by=caller.name) as tx:
            found = tx.update(job, cap=most)
            tx.event("scale_asked", found, most=most or found.submission.most_devices)
        self._tell("changed", job)
        return self._show(found, caller, self._picture())

    def _want(self, caller: Caller, job: str, wanted: Wanted, event: str) -> JobShown:
        found = self._visible(caller, job)
        if found.state in ENDED and wanted == "cancel":
            return self._show(found, caller, self._picture())
        self._changeable(caller, job)
        with self._store.write(now=self._now(), by=caller.name) as tx:
            found = tx.job(job) or found  # as it is now: of two who ask at once the second one sees what the first did
            if found.wanted == "cancel" and wanted != "cancel":
                raise ConflictError(f"{job}: it was cancelled; submit it again")
            if is_new := found.wanted != wanted:
                found = tx.want(job, wanted)
                tx.event(event, found)
        if is_new:
            faults.reached("cancel-asked" if wanted == "cancel" else "pause-asked")
            self._tell(wanted, job)
        return self._show(found, caller, self._picture())

    # ---- who may ----

    def _visible(self, caller: Caller, job: str) -> JobRecord:
        """Raises NotFoundError, also for a job of another tenant: that it is there is nobody else's business."""
        found = self._store.job(job) if len(job) <= 32 else None
        if found is None or not caller.sees(found.tenant):
            raise NotFoundError(f"ID={job[:40]}: no such job; see isoscale jobs")
        return found

    def _changeable(self, caller: Caller, job: str) -> JobRecord:
        found = self._visible(caller, job)
        if not caller.may("user"):
            raise ForbiddenError(f"{job}: needs the role user")
        if found.state in ENDED:
            raise ConflictError(f"{job}: it is {found.state}; nothing of it can be changed")
        return found

    def _show(self, job: JobRecord, caller: Caller, picture: Picture) -> JobShown:
        return show_job(job, picture, caller, f"{self._jobs}{job.id}")


def _same(known: JobRecord, submission: Submission) -> JobRecord:
    """The job that had this key before. Raises ConflictError if it was submitted otherwise."""
    if known.submission != submission:
        raise ConflictError(
            f"key={submission.key}: used before for {known.id}, which was submitted with other options; "
            "give another key"
        )
    return known


def write_ended(directory: Path, job: JobRecord) -> None:
    """For `serve --rebuild`: how the job ended, beside what it left. A full disk costs the copy only."""
    with contextlib.suppress(OSError):
        write_text_synced(directory / "ended.json", msgspec.json.encode(job).decode())


def node_named(picture: Picture, name: str) -> int:
    """Raises UserError."""
    names = [node.name for node in picture.nodes]
    if name not in names:
        raise UserError(field="NODE", value=name, problem="no such node", remedy=f"give one of {', '.join(names)}")
    return names.index(name)

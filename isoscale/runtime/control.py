"""DIR/control: what a coordinator leaves for executors, for people's commands and for its successor.

    lock              held by the coordinator that is alive
    token             the run's secret, mode 0600
    coordinator.json  its address and term
    job.json          what the job is, and which devices it should have
    executors.json    processes by executor, so that a successor finds them
    result.json       the end, from an executor that had no coordinator to tell

A coordinator that takes over raises the term; executors obey the highest.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import msgspec

from isoscale.errors import UserError
from isoscale.kinds import DeviceSet
from isoscale.protocol.files import write_json_atomic, write_text_atomic
from isoscale.runtime.link import ADDRESS_FILE
from isoscale.types import JobSpec, Settings

__all__ = ["Control", "SavedJob", "control_directory", "parse_target", "read_address", "saved"]

#: a file system in memory, where the system has one
_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class SavedJob:
    spec: JobSpec
    settings: Settings
    target: str
    #: step and devices
    plan: tuple[tuple[int, str], ...] = ()
    #: of the control socket; whoever takes over must show the same
    certificate: Path | None = None
    key: Path | None = None
    #: devices of the target that the job does better without: executor, kind and how many times as fast it is then
    aside: tuple[tuple[int, str, float], ...] = ()


def control_directory(out: Path) -> Path:
    return out / "control"


class Control:
    """The directory, with the lock held. One per coordinator."""

    def __init__(self, out: Path, *, field: str = "--out") -> None:
        """Raises UserError if another coordinator has it."""
        self.path = control_directory(out)
        try:
            self.path.mkdir(exist_ok=True)
            self._lock: IO[str] = (self.path / "lock").open("a+")
        except OSError as error:
            raise _cannot_write(field, out, error) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise UserError(
                field=field, value=out, problem="another coordinator runs this job", remedy="see isoscale status"
            ) from None
        try:
            self.token = self._read_token()
            self.term = self._read_term() + 1
            write_text_atomic(self.path / "term", f"{self.term}\n")
        except OSError as error:
            self._lock.close()
            raise _cannot_write(field, out, error) from None

    def meeting_place(self) -> Path:
        """Prefix of the files through which executors of this machine find each other.

        In memory where there is a place for that: those who lost a peer must find each other on a full disk, too.
        """
        directory = _in_memory(self.token) or self.path.resolve()
        return directory / f"store-{self.term}"

    def announce(self, url: str) -> None:
        write_json_atomic(self.path / ADDRESS_FILE, {"url": url, "term": self.term, "pid": os.getpid()})

    def save_job(self, job: SavedJob) -> None:
        write_json_atomic(self.path / "job.json", msgspec.to_builtins(job, enc_hook=str))

    def load_job(self) -> SavedJob:
        """Raises UserError if there is no run here."""
        path = self.path / "job.json"
        try:
            return msgspec.json.decode(path.read_bytes(), type=SavedJob, dec_hook=lambda _, text: Path(text))
        except (OSError, msgspec.DecodeError) as error:
            raise UserError(
                field="DIR",
                value=self.path.parent,
                problem=f"no job to go on with (control/job.json: {getattr(error, 'strerror', None) or error})",
                remedy="give the directory of a run",
            ) from None

    def save_executors(self, executors: dict[int, dict[str, Any]]) -> None:
        write_json_atomic(self.path / "executors.json", {str(e): fields for e, fields in executors.items()})

    def load_executors(self) -> dict[int, dict[str, Any]]:
        with contextlib.suppress(OSError, ValueError):
            return {int(e): fields for e, fields in json.loads((self.path / "executors.json").read_text()).items()}
        return {}

    def result(self) -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError):
            found: dict[str, Any] = json.loads((self.path / "result.json").read_text())
            return found
        return {}

    def close(self) -> None:
        """The job is over or goes on without this coordinator: nobody is at the address any more."""
        (self.path / ADDRESS_FILE).unlink(missing_ok=True)
        if (directory := _in_memory(self.token)) is not None:
            shutil.rmtree(directory, ignore_errors=True)
        self._lock.close()

    def _read_token(self) -> str:
        path = self.path / "token"
        if not path.exists():
            write_text_atomic(path, secrets.token_urlsafe(32), mode=0o600)
        return path.read_text().strip()

    def _read_term(self) -> int:
        with contextlib.suppress(OSError, ValueError):
            return int((self.path / "term").read_text())
        return 0


def _in_memory(token: str) -> Path | None:
    """A directory of this run that only its user can enter. Named after the run, so that a successor finds it."""
    path = _MEMORY / f"isoscale-{hashlib.sha256(token.encode()).hexdigest()[:24]}"
    with contextlib.suppress(OSError):
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077:
            return path
    return None


def _cannot_write(field: str, out: Path, error: OSError) -> UserError:
    return UserError(
        field=field,
        value=out,
        problem=f"cannot be written ({error.strerror})",
        remedy="free space, or give another one",
    )


def read_address(out: Path) -> tuple[str, str]:
    """The coordinator's URL and the run's token. Raises UserError if nobody is there."""
    control = control_directory(out)
    try:
        address = json.loads((control / ADDRESS_FILE).read_text())
        return str(address["url"]), (control / "token").read_text().strip()
    except (OSError, ValueError, KeyError):
        if not (control / "job.json").exists():
            problem, remedy = "not the directory of a run", "give the --out directory of isoscale run"
        else:
            problem, remedy = "no coordinator runs this job", f"start one: isoscale resume {out}"
        raise UserError(field="DIR", value=out, problem=problem, remedy=remedy) from None


def parse_target(text: str, present: DeviceSet, spec: JobSpec) -> DeviceSet:
    """`4`, `+1`, `-1` or a device set. Counts change the first kind when they grow, the last ones when they shrink."""
    number = text.strip()
    if re.fullmatch(r"[+-]?[0-9]{1,9}", number):
        total = int(number) + (present.total if number[0] in "+-" else 0)
        kinds = list(present)
        if 0 < total <= len(kinds):
            target: DeviceSet | None = DeviceSet(tuple((kind, 1) for kind in kinds[:total]))
        else:
            grown = [kinds[0]] * (total - len(kinds))
            target = DeviceSet(tuple((kind, 1) for kind in [*grown, *kinds])) if total > 0 else None
    else:
        target = DeviceSet.parse(text, field="target")
        total = target.total
    if target is None or total < 1 or total > spec.workers:
        raise UserError(
            field="target",
            value=text,
            problem=f"{total} executors for {spec.workers} logical workers",
            remedy=f"give 1 .. {spec.workers}",
        )
    for kind in target.kinds:
        if kind not in spec.kinds:
            raise UserError(
                field="target",
                value=text,
                problem=f"{kind} was not declared when the job began ({', '.join(spec.kinds)})",
                remedy="start the job with --kinds naming every kind it may meet",
            )
    return target


def saved(
    spec: JobSpec,
    settings: Settings,
    target: DeviceSet,
    plan: list[tuple[int, DeviceSet]],
    certificate: Path | None = None,
    key: Path | None = None,
    aside: tuple[tuple[int, str, float], ...] = (),
) -> SavedJob:
    entries = tuple((step, str(devices)) for step, devices in plan)
    return SavedJob(spec, settings, str(target), entries, _absolute(certificate), _absolute(key), aside)


def _absolute(path: Path | None) -> Path | None:
    return None if path is None else path.resolve()

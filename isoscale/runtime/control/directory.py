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

import base64
import contextlib
import fcntl
import hashlib
import os
import pwd
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import msgspec

from isoscale import limits
from isoscale.backends.host_id import machine_id
from isoscale.backends.system import born
from isoscale.errors import UserError
from isoscale.kinds import DeviceSet
from isoscale.protocol import messages as m
from isoscale.protocol.files import read_small, read_small_json, write_json_atomic, write_text_atomic
from isoscale.runtime.control.absence import stopped
from isoscale.runtime.control.executor_link import ADDRESS_FILE
from isoscale.types import JobSpec, Settings

__all__ = [
    "MAX_TOKEN_BYTES",
    "Control",
    "SavedJob",
    "check_spec",
    "closed_on_error",
    "control_directory",
    "memory_directory",
    "read_address",
    "read_job",
    "read_token",
    "run_id",
    "saved",
]

MAX_TOKEN_BYTES = 4096
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

    def __init__(self, out: Path, *, field: str = "--out", claim: Callable[[int, str], int] | None = None) -> None:
        """`claim` is told the last term that is known here, and the token, and gives the one to have, where a
        directory is not all that counts. Raises UserError if another coordinator has it."""
        self.path = control_directory(out)
        try:
            self.path.mkdir(exist_ok=True)
            self._locks = [_locked(self.path / "lock")]
        except BlockingIOError:
            raise stopped(out, field=field) or UserError(
                field=field, value=out, problem="another coordinator runs this job", remedy="see isoscale status"
            ) from None
        except OSError as error:
            raise _cannot_write(field, out, error) from None
        try:
            self.token = self._read_token()
            known = self._read_term()
            self.term = known + 1 if claim is None else claim(known, self.token)
            write_text_atomic(self.path / "term", f"{self.term}\n")
        except OSError as error:
            self._unlock()
            raise _cannot_write(field, out, error) from None
        except BaseException:
            self._unlock()
            raise

    def meeting_place(self) -> Path:
        """Prefix of the files through which executors of this machine find each other.

        In memory where there is a place for that: those who lost a peer must find each other on a full disk, too.
        """
        directory = memory_directory(self.token, make=True) or self.path.resolve()
        return directory / f"store-{self.term}"

    def settle(self, out: Path, url: str) -> None:
        """The run's directory is another one now: moved, or new. Raises OSError."""
        self.path = control_directory(out)
        self.path.mkdir(exist_ok=True)
        self._locks.append(_locked(self.path / "lock"))
        if not (self.path / "token").exists():
            write_text_atomic(self.path / "token", self.token, mode=0o600)
        write_text_atomic(self.path / "term", f"{self.term}\n")
        self.announce(url)

    def announce(self, url: str) -> None:
        """Where this coordinator is, and by what others know whether it still runs."""
        here = {"pid": os.getpid(), "born": born(os.getpid()), "machine": machine_id()}
        write_json_atomic(self.path / ADDRESS_FILE, {"url": url, "term": self.term, **here})

    def save_job(self, job: SavedJob) -> None:
        write_json_atomic(self.path / "job.json", msgspec.to_builtins(job, enc_hook=str))

    def load_job(self) -> SavedJob:
        """Raises UserError if there is no run here."""
        return read_job(self.path.parent)

    def forget_result(self) -> None:
        """The job goes on beyond its end."""
        with contextlib.suppress(OSError):
            (self.path / "result.json").unlink(missing_ok=True)

    def save_executors(self, executors: dict[int, dict[str, Any]]) -> None:
        write_json_atomic(self.path / "executors.json", {str(e): fields for e, fields in executors.items()})

    def load_executors(self) -> dict[int, dict[str, Any]]:
        with contextlib.suppress(OSError, ValueError):
            return {int(e): fields for e, fields in read_small_json(self.path / "executors.json").items()}
        return {}

    def result(self) -> dict[str, Any]:
        found = self._read_result()
        return {name: found[name] for name in found if name != "unheard"}

    def unheard(self) -> list[m.Fact]:
        """What was told with the result, in case that no coordinator had heard it."""
        with contextlib.suppress(TypeError, ValueError, msgspec.MsgspecError):
            frames = [base64.b64decode(frame) for frame in self._read_result().get("unheard", ())]
            told = [m.decode_from_executor(frame) for frame in frames]
            return [message for message in told if isinstance(message, m.Fact)]
        return []

    def _read_result(self) -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError):
            found = read_small_json(self.path / "result.json")
            return found if isinstance(found, dict) else {}
        return {}

    def close(self) -> None:
        """The job is over or goes on without this coordinator: nobody is at the address any more."""
        with contextlib.suppress(OSError):  # it may be gone, with all that was in it
            (self.path / ADDRESS_FILE).unlink(missing_ok=True)
        if (directory := memory_directory(self.token)) is not None:
            shutil.rmtree(directory, ignore_errors=True)
        self._unlock()

    def _unlock(self) -> None:
        for lock in self._locks:
            lock.close()

    def _read_token(self) -> str:
        path = self.path / "token"
        if not path.exists():
            write_text_atomic(path, secrets.token_urlsafe(32), mode=0o600)
        return read_token(path)

    def _read_term(self) -> int:
        with contextlib.suppress(OSError, ValueError):
            return int(read_small(self.path / "term", 100))
        return 0


def read_job(out: Path) -> SavedJob:
    """Raises UserError if there is no run here."""
    try:
        data = read_small(control_directory(out) / "job.json")
        job = msgspec.json.decode(data, type=SavedJob, dec_hook=lambda _, text: Path(text))
        check_spec(job.spec)
        return job
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            field="DIR",
            value=out,
            problem=f"no job to go on with (control/job.json: {getattr(error, 'strerror', None) or error})",
            remedy="give the directory of a run",
        ) from None


@contextlib.contextmanager
def closed_on_error(control: Control) -> Iterator[None]:
    """Somebody else may have the directory, if nothing comes of this start."""
    try:
        yield
    except BaseException:
        control.close()
        raise


def _locked(path: Path) -> IO[str]:
    """Raises BlockingIOError if somebody else has it, and OSError."""
    lock = path.open("a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        lock.close()
        raise
    return lock


def memory_directory(token: str, *, make: bool = False) -> Path | None:
    """A directory of this run in memory, which only its user can enter; None if there is none, and none is made.

    Named after the run, so that executors and a successor find it.
    """
    path = _MEMORY / f"isoscale-{hashlib.sha256(token.encode()).hexdigest()[:24]}"
    with contextlib.suppress(OSError):
        if make:
            path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077:
            return path
    return None


def run_id(token: str) -> str:
    """A name of the run for trackers: as constant as its token, which nobody learns from it."""
    return hashlib.sha256(f"run id {token}".encode()).hexdigest()[:16]


def _cannot_write(field: str, out: Path, error: OSError) -> UserError:
    problem = f"cannot be written ({error.strerror})"
    if isinstance(error, PermissionError):
        owner = _owner(Path(error.filename or out))
        return UserError(
            field=field, value=out, problem=f"{problem}: it belongs to {owner}", remedy=f"run this as {owner}"
        )
    return UserError(field=field, value=out, problem=problem, remedy="free space, or give another one")


def _not_permitted(out: Path, error: PermissionError) -> UserError:
    """Somebody else's job, most likely: who asks must be who runs it."""
    path = Path(error.filename or out)
    owner = _owner(path)
    return UserError(
        field="DIR",
        value=out,
        problem=f"its {path.name} cannot be read ({error.strerror}): it belongs to {owner}",
        remedy=f"run this as {owner}, who runs the job",
    )


def _owner(path: Path) -> str:
    """Of the path, or, if not even that may be known, of the directory above it that tells."""
    for one in (path, *path.absolute().parents):
        with contextlib.suppress(OSError):
            owner = one.stat().st_uid
            with contextlib.suppress(KeyError):
                return pwd.getpwuid(owner).pw_name
            return f"user {owner}"
    return "somebody else"


def read_token(path: Path) -> str:
    """Raises OSError."""
    return read_small(path, MAX_TOKEN_BYTES).decode(errors="replace").strip()


def check_spec(spec: JobSpec) -> None:
    """What a file says of a job may be damaged or made up: its numbers are held against the same bounds as options."""
    limits.within(spec.workers, "workers", limits.LOGICAL_WORKERS)
    limits.within(spec.threads, "threads", limits.THREADS)
    limits.within(spec.seed, "seed", limits.SEED)
    limits.within(spec.until, "until", limits.STEP)
    limits.within(spec.audit_every, "audit_every", limits.AUDIT_EVERY)


def read_address(out: Path) -> tuple[str, str]:
    """The coordinator's URL and the run's token. Raises UserError if nobody is there."""
    control = control_directory(out)
    try:
        address = read_small_json(control / ADDRESS_FILE)
        return str(address["url"]), read_token(control / "token")
    except PermissionError as error:
        raise _not_permitted(out, error) from None
    except (OSError, ValueError, KeyError, TypeError):
        if not (control / "job.json").exists():
            problem, remedy = "not the directory of a run", "give the --out directory of isoscale run"
        else:
            problem, remedy = "no coordinator runs this job", f"start one: isoscale resume {out}"
        raise UserError(field="DIR", value=out, problem=problem, remedy=remedy) from None


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

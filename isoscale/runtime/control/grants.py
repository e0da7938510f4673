"""The devices that a job may use, where a cluster service decides that: DIR/control/grant.json.

A grant is numbered, and on the disk before anybody is told of it. A coordinator begins by it, looks at it before it
starts a process, and obeys the highest number. A grant of no device tells the job to pause.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from isoscale.backends.seam import Device
from isoscale.errors import UserError
from isoscale.kinds import DeviceSet
from isoscale.protocol.files import read_small, sync_directory, write_text_synced

__all__ = ["DeviceGrant", "device_named", "read_grant", "refuse_if_granted", "under_service", "write_grant"]

_NAME = "grant.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceGrant:
    number: int
    devices: tuple[Device, ...] = ()
    #: per logical worker; None: not asked for
    batch: int | None = None
    #: by which its service knows the job
    job: str = ""

    @property
    def ids(self) -> frozenset[str]:
        return frozenset(device.id for device in self.devices)

    @property
    def target(self) -> DeviceSet | None:
        """The same as kinds and counts; None for a grant of nothing."""
        kinds = Counter(device.kind for device in self.devices)
        return DeviceSet(tuple(kinds.items())) if kinds else None


def device_named(name: str, cores: Sequence[int] = ()) -> Device:
    """The device of an id such as `node0/cpu/1`: node, kind, number. It runs on these cores only, if some are given.

    >>> device_named("node0/cpu/1").kind
    'cpu'
    """
    node, _, rest = name.partition("/")
    kind, _, number = rest.rpartition("/")
    if not node or not kind or not number:
        raise UserError(field="device", value=name, problem="is no device", remedy="give NODE/KIND/NUMBER")
    return Device(id=name, kind=kind, node=node, cores=tuple(cores))


def write_grant(directory: Path, grant: DeviceGrant) -> bool:
    """Durable when this returns. False if the file has a higher number already: then it stays as it is."""
    control = directory / "control"
    control.mkdir(parents=True, exist_ok=True)
    with _locked(control / "grant.lock"):
        there = read_grant(directory)
        if there is not None and there.number > grant.number:
            return False
        if there == grant:
            return True
        fresh = control / f".{_NAME}.{os.getpid()}"
        write_text_synced(fresh, msgspec.json.encode(grant).decode())
        os.replace(fresh, control / _NAME)
        sync_directory(control)
    return True


def read_grant(directory: Path) -> DeviceGrant | None:
    """None: nobody ever granted this job anything, its devices are its own affair. Raises UserError: it is damaged."""
    path = directory / "control" / _NAME
    try:
        return msgspec.json.decode(read_small(path), type=DeviceGrant)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise UserError(
            field="DIR",
            value=directory,
            problem=f"its control/{_NAME} cannot be read ({error})",
            remedy="the service that runs the job writes it again: isoscale jobs resume ID",
        ) from None


def refuse_if_granted(directory: Path, verb: str) -> None:
    """A service runs this job: raises UserError that names its own `verb`."""
    grant = None
    with contextlib.suppress(UserError):
        grant = read_grant(directory)
    if grant is not None:
        raise under_service("DIR", directory, grant.job, verb)


def under_service(field: str, value: object, job: str, verb: str) -> UserError:
    return UserError(
        field=field,
        value=value,
        problem="a cluster service runs this job, and gives it its devices",
        remedy=f"ask the service: isoscale jobs {verb} {job or 'ID'}",
    )


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Two who write at once must not put a lower number over a higher one."""
    with path.open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield

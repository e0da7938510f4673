"""How the service speaks to a job's coordinator: the directory it begins from, grants, reports.

The only module that knows the runtime's files and calls.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from isoscale import env
from isoscale.backends.seam import Device
from isoscale.cluster.bundle import Codes
from isoscale.cluster.values import JobRecord, Submission
from isoscale.errors import UserError
from isoscale.kinds import DeviceSet, common_profile
from isoscale.protocol.files import write_json_atomic
from isoscale.protocol.status import JobStatus
from isoscale.runtime.control.directory import control_directory, saved
from isoscale.runtime.control.grants import DeviceGrant, device_named, read_grant, write_grant
from isoscale.runtime.control.job_handle import JobHandle
from isoscale.scheduling.driving import Grant, GrantReported
from isoscale.types import JobSpec, Settings

__all__ = [
    "SETTINGS",
    "Start",
    "Terms",
    "cancel",
    "granted_devices",
    "pause",
    "prepare",
    "report_of",
    "send_grant",
    "write_down",
]

#: a job that a service runs may be asked to leave at any time, and must have something to go on from if it dies
SETTINGS = Settings(granted=True)
_ENTRY = "isoscale.cli.coordinate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a job's grants say beyond the driver's."""

    #: of the job
    workers: int = 1
    #: on which each device's processes run; a device that is not in it has all
    cores: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    #: where its executors run
    settings: Settings = SETTINGS

    def devices(self, grant: Grant) -> tuple[Device, ...]:
        return tuple(device_named(name, self.cores.get(name, ())) for name in grant.devices)

    def batch(self, grant: Grant) -> int | None:
        """Per logical worker; None: not ours to choose."""
        return grant.batch // self.workers if grant.batch else None

    def granted(self, grant: Grant, job: str) -> DeviceGrant:
        return DeviceGrant(number=grant.number, devices=self.devices(grant), batch=self.batch(grant), job=job)


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A process to be started."""

    command: tuple[str, ...]
    cwd: Path
    environment: dict[str, str]


def prepare(
    directory: Path, record: JobRecord, codes: Codes, grant: Grant, terms: Terms, variables: Mapping[str, str]
) -> Start:
    """Everything that a coordinator finds in its directory. `variables` are for it. Raises UserError, OSError."""
    manifest = codes.manifest(record.submission.code)
    codes.give_to(record.submission.code, directory)
    control = control_directory(directory)
    control.mkdir(mode=0o700, exist_ok=True)
    granted = terms.granted(grant, record.id)
    devices = granted.target or DeviceSet((("cpu", 1),))
    if not (control / "job.json").exists():
        spec = _spec(record.submission, manifest.script, manifest.module, directory, devices)
        job = saved(spec, terms.settings, devices, [])
        write_json_atomic(control / "job.json", msgspec.to_builtins(job, enc_hook=str))
    write_grant(directory, granted)
    cwd = Path(manifest.cwd)
    if not cwd.is_dir():
        raise UserError(
            field="cwd", value=cwd, problem="the directory that it was submitted from is gone", remedy="submit it again"
        )
    command = (sys.executable, "-P", "-m", _ENTRY, str(directory))
    return Start(command=command, cwd=cwd, environment=env.child_environment(variables))


def write_down(directory: Path, job: str, grant: Grant, terms: Terms) -> None:
    """For a coordinator that cannot be told now: it looks at the file before it starts a process. Raises OSError."""
    write_grant(directory, terms.granted(grant, job))


def send_grant(handle: JobHandle, grant: Grant, now: float, terms: Terms) -> None:
    """Written down first, then told."""
    devices, batch = terms.devices(grant), terms.batch(grant)
    handle.grant(grant.number, devices, batch=batch, within_s=_within(grant, now), reason=grant.reason)


def pause(handle: JobHandle, grant: Grant, now: float) -> None:
    """What it costs was told to whoever wanted the devices back before it was decided."""
    handle.pause(grant.number, within_s=_within(grant, now), force=True, reason=grant.reason)


def cancel(handle: JobHandle, grant: Grant) -> None:
    handle.cancel(grant.number, reason=grant.reason)


def report_of(job: str, status: JobStatus, abandoned_before_s: float) -> GrantReported | None:
    """None from a coordinator that knows no grants."""
    found = status.get("grant")
    if found is None:
        return None
    return GrantReported(
        job,
        found["number"],
        tuple(found["held"]),
        is_settled=found["settled"],
        given_up=tuple(found["given_up"]),
        abandoned_s=max(0.0, found["abandoned_s"] - abandoned_before_s),
        reason=found["reason"],
    )


def granted_devices(directory: Path) -> tuple[int, tuple[str, ...]]:
    """Number and devices of the grant that a job's directory has; 0 if none. For a service that has lost its book."""
    try:
        found = read_grant(directory)
    except UserError:
        found = None
    return (found.number, tuple(device.id for device in found.devices)) if found is not None else (0, ())


def _within(grant: Grant, now: float) -> float | None:
    return None if math.isinf(grant.deadline_s) else max(0.1, grant.deadline_s - now)


def _spec(submission: Submission, script: str, module: str, directory: Path, devices: DeviceSet) -> JobSpec:
    kinds = submission.kinds or devices.kinds
    profile = common_profile(kinds).name if submission.determinism == "heterogeneous" else ""
    return JobSpec(
        workers=submission.workers,
        seed=submission.seed,
        threads=submission.threads,
        order=submission.order,
        determinism=submission.determinism,
        kinds=tuple(kinds),
        profile=profile,
        until=submission.until,
        measure_noise=submission.measure_noise,
        script=script,
        module=module,
        script_args=submission.script_args,
        out=str(directory),
    )

"""The public Philly trace: the job log, the machine list, and per-minute monitors of devices, processors and memory.

Definitions are those of the trace's own notebook: a job's devices are those of its first attempt, it runs from its
first start to its last end, it waits from its submission to its first start. Attempts may be missing, times may be
`None`. The machine list contradicts the log in places (jobs on more devices than the machine has): the larger counts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

from isoscale.analysis.study.builder import TraceBuilder
from isoscale.analysis.study.readers.json_array import objects
from isoscale.analysis.study.readers.monitors import read_monitors
from isoscale.analysis.study.readers.tables import rows
from isoscale.analysis.study.readers.times import EPOCH, NOTHING, seconds
from isoscale.analysis.study.reading import Reading
from isoscale.analysis.study.trace import Capacity, Trace
from isoscale.errors import UserError
from isoscale.sim.traces.philly import PhillyJob

__all__ = ["JOB_LOG", "read_philly", "recognises"]

JOB_LOG = "cluster_job_log"
_MACHINES, _DEVICES, _PROCESSORS, _MEMORY = (
    "cluster_machine_list",
    "cluster_gpu_util",
    "cluster_cpu_util",
    "cluster_mem_util",
)
_STATUS = {"Pass": "passed", "Killed": "killed", "Failed": "failed"}
_DEVICE = re.compile(r"gpu([0-9]{1,2})")
_LACKS = {
    "error": "stderr of failed attempts (never published with this trace; --logs DIR)",
    "quota": "devices of each VC (--quotas FILE)",
    "utilisation": _DEVICES,
    "host": f"{_PROCESSORS}, {_MEMORY}",
    "capacity": _MACHINES,
    "kind": "model or type of the job (not in this format)",
}


def recognises(path: Path) -> bool:
    if path.is_dir():
        return _found(path, JOB_LOG) is not None
    with path.open("rb") as file:
        return bool(re.match(rb"\s*\[\s*(\{\s*\"|\])", file.read(4096)))


def read_philly(path: Path, reading: Reading) -> Trace:
    """A directory with the published files, of which only the job log is needed, or the job log alone."""
    log = _found(path, JOB_LOG) if path.is_dir() else path
    assert log is not None
    builder = TraceBuilder()
    decode = msgspec.json.Decoder(PhillyJob).decode
    try:
        for line, text in objects(log, reading):
            reading.read(log)
            _add(builder, log, line, text, decode, reading)
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
        raise UserError(field="TRACE", value=log, problem=problem, remedy="give the path of a trace") from None
    home = path if path.is_dir() else None
    listed = _found(home, _MACHINES) if home else None
    if listed is not None:
        _read_machines(listed, builder, reading)
    trace = builder.build(
        name=path.name or str(path), format="philly", account=reading.account(), zero=EPOCH, lacks=_LACKS
    )
    if listed is not None:
        trace = _with_capacity(trace)
    if home is not None:
        files = {name: _found(home, name) for name in (_DEVICES, _PROCESSORS, _MEMORY)}
        if any(files.values()):
            used = read_monitors(trace, files[_DEVICES], files[_PROCESSORS], files[_MEMORY], reading)
            trace = replace(trace, utilisation=used)
    return replace(trace, account=reading.account())


def _add(
    builder: TraceBuilder,
    path: Path,
    line: int,
    text: bytes,
    decode: Callable[[bytes], PhillyJob],
    reading: Reading,
) -> None:
    try:
        job = decode(text)
    except msgspec.ValidationError as error:
        problem, _, where = str(error).rpartition(" - at ")
        reading.bad(path, line, where.strip("`$.") or "job", "", problem or str(error))
        return
    except (msgspec.DecodeError, RecursionError) as error:
        reading.bad(path, line, "job", "", str(error))
        return
    try:
        submit_s = _time("submitted_time", job.submitted_time)
        times = [(_time("start_time", one.start_time), _time("end_time", one.end_time)) for one in job.attempts]
        held = [[(part.ip, [_device(name) for name in part.gpus]) for part in one.detail] for one in job.attempts]
    except _BadFieldError as bad:
        reading.bad(path, line, bad.field, bad.value, bad.problem)
        return
    if not reading.wants(submit_s):
        return
    start_s, end_s = (times[0][0], times[-1][1]) if times else (math.nan, math.nan)
    if end_s < start_s:
        reading.leave_out("jobs that end before they start: no run time")
        end_s = math.nan
    number = builder.add_job(
        job.jobid,
        submit_s=submit_s,
        start_s=start_s,
        end_s=end_s,
        devices=job.attempts[0].devices if job.attempts else 0,
        machines=len(job.attempts[0].detail) if job.attempts else 0,
        status=_STATUS[job.status],
        user=job.user,
        tenant=job.vc,
    )
    for index, ((begin, end), parts) in enumerate(zip(times, held, strict=True)):
        last = index == len(times) - 1
        attempt = builder.add_attempt(
            number,
            start_s=begin,
            end_s=math.nan if end < begin else end,
            devices=sum(len(names) for _, names in parts),
            machines=len(parts),
            failed=not last or job.status == "Failed",
            number=index,
        )
        for machine, names in parts:
            builder.add_place(attempt, machine, names)


class _BadFieldError(Exception):
    def __init__(self, field: str, value: object, problem: str) -> None:
        super().__init__(problem)
        self.field, self.value, self.problem = field, value, problem


def _time(field: str, text: str | None) -> float:
    if text is None or text in NOTHING:
        return math.nan
    try:
        return seconds(text)
    except ValueError:
        raise _BadFieldError(field, text, "is not a time") from None


def _device(name: str) -> int:
    match = _DEVICE.fullmatch(name)
    if match is None or int(match[1]) > 62:
        raise _BadFieldError("gpus", name, "is not the name of a device, such as gpu0")
    return int(match[1])


def _read_machines(path: Path, builder: TraceBuilder, reading: Reading) -> None:
    for row in rows(path, reading, ("machineId", "number of GPUs")):
        try:
            builder.machine_devices[row.text("machineId")] = row.count("number of GPUs", least=0)
        except UserError as error:
            reading.bad_row(path, error)


def _with_capacity(trace: Trace) -> Trace:
    """Machines have at least the devices that jobs held on them."""
    devices = trace.machines.devices.copy()
    if len(trace.places):
        highest = np.frexp(trace.places.mask.astype(np.float64))[1]
        np.maximum.at(devices, trace.places.machine, highest)
    raised = int((devices - trace.machines.devices).sum())
    source = "the machine list" + (f", and {raised} devices that only the job log knows" if raised else "")
    capacity = Capacity(since_s=np.array([-math.inf]), devices=np.array([float(devices.sum())]), source=source)
    return replace(trace, machines=replace(trace.machines, devices=devices), capacity=capacity)


def _found(home: Path | None, name: str) -> Path | None:
    """The file, with or without an ending."""
    if home is None:
        return None
    return next((path for path in (home / name, home / f"{name}.csv", home / f"{name}.json") if path.is_file()), None)

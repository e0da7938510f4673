"""Alibaba's PAI trace of 2020: CSV files without a header line, whose columns are in `.header` files beside them.

Needs the job and the task table. Only `Terminated` is success. Times are seconds from the trace's own zero (UTC+8);
0 means that there is none. `plan_gpu` is in percent of a device, for every instance: a job's devices are the sum over
its tasks of instances times that. A task starts when it is submitted and its instances when they run, so a job's wait
is from its first task's start to its first instance's; without the instance table it is not known.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from isoscale.analysis.study.builder import TraceBuilder
from isoscale.analysis.study.readers.tables import rows
from isoscale.analysis.study.reading import Reading
from isoscale.analysis.study.sketch import SCALE, Sketches, Utilisation
from isoscale.analysis.study.trace import Capacity, Trace
from isoscale.errors import UserError
from isoscale.sim.traces.record import Row

__all__ = ["HEADERS", "read_pai", "recognises"]

#: columns by table, where there is no `.header`
HEADERS = {
    "pai_job_table": "job_name,inst_id,user,status,start_time,end_time",
    "pai_task_table": "job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type",
    "pai_instance_table": "job_name,task_name,inst_name,worker_name,inst_id,status,start_time,end_time,machine",
    "pai_sensor_table": "job_name,task_name,worker_name,inst_id,machine,gpu_name,cpu_usage,gpu_wrk_util,avg_mem,"
    "max_mem,avg_gpu_wrk_mem,max_gpu_wrk_mem,read,write,read_count,write_count",
    "pai_group_tag_table": "inst_id,user,gpu_type_spec,group,workload",
    "pai_machine_spec": "machine,gpu_type,cap_cpu,cap_mem,cap_gpu",
    "pai_machine_metric": "worker_name,machine,start_time,end_time,machine_cpu_iowait,machine_cpu_kernel,"
    "machine_cpu_usr,machine_gpu,machine_load_1,machine_net_receive,machine_num_worker,machine_cpu",
}
_STATUS = {"Terminated": "passed", "Failed": "failed", "Running": "unfinished", "Waiting": "unfinished"}
_LACKS = {
    "submit": "start_time of a task (pai_task_table)",
    "start": "start_time of an instance (pai_instance_table)",
    "error": "stderr of failed jobs (not in this format; --logs DIR)",
    "attempts": "attempts (not in this format)",
    "machines": "machine of an instance (pai_instance_table)",
    "places": "devices of an instance (not in this format)",
    "tenant": "tenant (not in this format; group_tag has groups of equal jobs)",
    "quota": "tenants and their devices (not in this format)",
    "capacity": "pai_machine_spec",
    "utilisation": "gpu_wrk_util (pai_sensor_table)",
    "host": "machine_cpu (pai_machine_metric)",
    "kind": "workload (pai_group_tag_table)",
}


@dataclass(slots=True)
class _Draft:
    """What the tables tell of one job."""

    number: int
    status: str
    user: str
    inst_id: str
    end_s: float
    first_task_s: float = math.inf
    first_instance_s: float = math.inf
    last_instance_s: float = -math.inf
    devices: float = 0.0
    machines: int = 0
    #: of devices, joined by |
    kinds: str = ""


def recognises(path: Path) -> bool:
    return path.is_dir() and _file(path, "pai_job_table") is not None


def read_pai(path: Path, reading: Reading) -> Trace:
    jobs = dict(_jobs(path, reading))
    _tasks(path, jobs, reading)
    has_instances = _instances(path, jobs, reading)
    kinds = _kinds(path, reading)
    builder = TraceBuilder()
    attempts = {}
    for name, draft in jobs.items():
        submit_s, start_s = _known(draft.first_task_s), _known(draft.first_instance_s)
        end_s = draft.end_s if draft.end_s > 0 else _known(draft.last_instance_s)
        run_s = end_s - (start_s if has_instances else submit_s)
        number = builder.add_job(
            name,
            submit_s=submit_s,
            start_s=start_s,
            end_s=end_s,
            run_s=run_s if run_s >= 0 else math.nan,
            devices=draft.devices,
            machines=draft.machines,
            status=draft.status,
            user=draft.user,
            kind=kinds.get(draft.inst_id, "") or draft.kinds,
        )
        attempts[name] = builder.add_attempt(
            number,
            start_s=start_s if has_instances else submit_s,
            end_s=end_s if run_s >= 0 else math.nan,
            devices=draft.devices,
            machines=draft.machines,
            failed=draft.status == "failed",
        )
    trace = builder.build(
        name=path.name or str(path),
        format="pai",
        account=reading.account(),
        capacity=_capacity(path, reading),
        lacks=_LACKS,
    )
    trace = replace(trace, utilisation=_utilisation(path, trace, attempts, reading))
    return replace(trace, account=reading.account())


def _jobs(home: Path, reading: Reading) -> Iterator[tuple[str, _Draft]]:
    number = 0
    for row in _rows(home, "pai_job_table", reading, ("job_name", "status", "end_time")):
        try:
            status = row.text("status")
            if status not in _STATUS:
                raise row.bad("status", status, "is not a status", f"give one of {', '.join(_STATUS)}")
            draft = _Draft(
                number=number,
                status=_STATUS[status],
                user=row.text("user", ""),
                inst_id=row.text("inst_id", ""),
                end_s=row.number("end_time", 0.0),
            )
            name = row.text("job_name")
        except UserError as error:
            reading.bad_row(row.path, error)
            continue
        number += 1
        yield name, draft


def _tasks(home: Path, jobs: dict[str, _Draft], reading: Reading) -> None:
    for row in _rows(home, "pai_task_table", reading, ("job_name", "inst_num", "start_time", "plan_gpu")):
        try:
            draft = jobs.get(row.text("job_name"))
            start_s, instances = row.number("start_time", 0.0), row.number("inst_num", 1.0)
            percent = row.number("plan_gpu", 0.0)
        except UserError as error:
            reading.bad_row(row.path, error)
            continue
        if draft is None:
            reading.leave_out("tasks of jobs that the job table does not have")
            continue
        if start_s > 0:
            draft.first_task_s = min(draft.first_task_s, start_s)
        draft.devices += instances * percent / 100.0
        if kind := row.text("gpu_type", ""):
            # A million jobs: a text is a tenth of a set.
            draft.kinds = kind if not draft.kinds else _joined(draft.kinds, kind)


def _instances(home: Path, jobs: dict[str, _Draft], reading: Reading) -> bool:
    """First start and number of machines; False without the table."""
    if _file(home, "pai_instance_table") is None:
        return False
    order, machines = list(jobs.values()), {"": 0}
    pairs = array("q")
    for row in _rows(home, "pai_instance_table", reading, ("job_name", "start_time", "end_time", "machine")):
        try:
            draft = jobs.get(row.text("job_name"))
            start_s, end_s = row.number("start_time", 0.0), row.number("end_time", 0.0)
            machine = row.text("machine", "")
        except UserError as error:
            reading.bad_row(row.path, error)
            continue
        if draft is None:
            reading.leave_out("instances of jobs that the job table does not have")
            continue
        if start_s > 0:
            draft.first_instance_s = min(draft.first_instance_s, start_s)
        if end_s > 0:
            draft.last_instance_s = max(draft.last_instance_s, end_s)
        if machine:
            pairs.append(draft.number << 24 | machines.setdefault(machine, len(machines)))
    distinct = np.bincount(np.unique(np.array(pairs, dtype=np.int64)) >> 24, minlength=len(order))
    for draft, count in zip(order, distinct.tolist(), strict=True):
        draft.machines = count
    return True


def _kinds(home: Path, reading: Reading) -> dict[str, str]:
    """inst_id -> workload, where the trace's owners know it."""
    if _file(home, "pai_group_tag_table") is None:
        return {}
    found = {}
    for row in _rows(home, "pai_group_tag_table", reading, ("inst_id",)):
        if word := row.text("workload", ""):
            found[row.text("inst_id", "")] = word
    return found


def _capacity(home: Path, reading: Reading) -> Capacity | None:
    if _file(home, "pai_machine_spec") is None:
        return None
    total = 0.0
    for row in _rows(home, "pai_machine_spec", reading, ("machine", "cap_gpu")):
        try:
            total += row.number("cap_gpu", 0.0)
        except UserError as error:
            reading.bad_row(row.path, error)
    return Capacity(since_s=np.array([-math.inf]), devices=np.array([total]), source="pai_machine_spec")


def _utilisation(home: Path, trace: Trace, attempts: dict[str, int], reading: Reading) -> Utilisation | None:
    """Means of every worker over its life (sensor), of hosts over a worker's life (machine metric)."""
    if _file(home, "pai_sensor_table") is None and _file(home, "pai_machine_metric") is None:
        return None
    count = len(trace.attempts)
    keys = np.stack([trace.jobs.status[trace.attempts.job], np.ceil(trace.attempts.devices).astype(np.int64)])
    _, numbers = np.unique(keys, axis=1, return_inverse=True)
    groups = numbers.reshape(-1).astype(np.int64) + 1
    used = Utilisation(
        devices=Sketches(int(groups.max(initial=0)) + 1),
        group_of_attempt=groups,
        attempt_sums=np.zeros(count),
        attempt_counts=np.zeros(count, dtype=np.int64),
        shared=np.zeros(count, dtype=np.bool_),
        hour_sums=np.zeros(0),
        hour_counts=np.zeros(0, dtype=np.int64),
        first_hour=0,
        every_s=math.nan,
    )
    which, values = array("q"), array("q")
    if _file(home, "pai_sensor_table") is not None:
        for row in _rows(home, "pai_sensor_table", reading, ("job_name", "gpu_wrk_util")):
            text, name = row.text("gpu_wrk_util", ""), row.text("job_name", "")
            if not text or name not in attempts:
                used.offline += 1
                continue
            try:
                # Of all devices of a worker together: above 100 with several.
                value = min(100.0, row.number("gpu_wrk_util"))
            except UserError as error:
                reading.bad_row(row.path, error)
                continue
            which.append(attempts[name])
            values.append(round(value * SCALE))
    if which:
        at, amount = np.array(which, dtype=np.int64), np.array(values, dtype=np.int64)
        used.devices.add(groups[at], amount)
        used.attempt_sums += np.bincount(at, weights=amount, minlength=count)
        used.attempt_counts += np.bincount(at, minlength=count)
    hosts = array("q")
    if _file(home, "pai_machine_metric") is not None:
        for row in _rows(home, "pai_machine_metric", reading, ("machine_cpu",)):
            try:
                if row.text("machine_cpu", ""):
                    hosts.append(round(min(100.0, row.number("machine_cpu")) * SCALE))
            except UserError as error:
                reading.bad_row(row.path, error)
    if hosts:
        used.hosts.add(np.zeros(len(hosts), dtype=np.int64), np.array(hosts, dtype=np.int64))
    return used


def _rows(home: Path, name: str, reading: Reading, required: tuple[str, ...]) -> Iterator[Row]:
    path = _file(home, name)
    if path is None:
        raise UserError(
            field="TRACE", value=home, problem=f"has no {name}.csv", remedy="give a directory with the published files"
        )
    header = home / f"{name}.header"
    names = header.read_text(encoding="utf-8").strip() if header.is_file() else HEADERS[name]
    return rows(path, reading, required, header=names.split(","))


def _file(home: Path, name: str) -> Path | None:
    path = home / f"{name}.csv"
    return path if path.is_file() else None


def _joined(kinds: str, kind: str) -> str:
    return "|".join(sorted({*kinds.split("|"), kind}))


def _known(at_s: float) -> float:
    return at_s if math.isfinite(at_s) else math.nan

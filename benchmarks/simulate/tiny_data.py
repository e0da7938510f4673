"""Public traces in the small, for smoke runs: the same files in the same places, with a toy application and few jobs.

Numbers are made up; what is exercised is the way from files to figures.
"""

from __future__ import annotations

import json
from pathlib import Path

_APPLICATION = "cifar10"
_JOBS, _WORKLOADS = 6, 8


def make(directory: Path) -> Path:
    """What `--data` would name."""
    pollux = directory / "pollux"
    _application(pollux / "traces" / _APPLICATION)
    _workloads(pollux / "workloads")
    for policy in ("pollux", "tiresias", "optimus"):
        averages = {f"workload-{number}": 600.0 for number in range(1, _WORKLOADS + 1)}
        _write(pollux / "results-jobload" / f"{policy}-1.0" / "summary.json", json.dumps({"avgs": averages}))
    rows = [
        f"2017-10-{day:02} 0{hour}:00:00,{600 * hour},{hour},0,c"
        for day in range(1, 40)
        for hour in (1, 2, 4)
        if day < 31
    ]
    _write(pollux / "traces" / "philly.csv", "timestamp,duration,num_gpus,gpu_time,cluster\n" + "\n".join(rows) + "\n")
    hours = [f"{i},{600 * i},{300 + 60 * i},{1 + i % 4}" for i in range(20)]
    itp = directory / "elasticflow-itp" / "raw" / "cluster02.csv"
    _write(itp, "job_id,submission_time,duration,num_gpu\n" + "\n".join(hours) + "\n")
    listed = [f"{i},{60 * i},{100 * i},resnet50,{300 * i},64,{1 + i % 2},{200 * i}" for i in range(1, _JOBS)]
    head = "job_id,submit_time,iteration,model_name,ddl,batch_size,num_gpu,duration\n"
    _write(directory / "elasticflow" / "traces_for_ElasticFlow" / "elasticVpollux_e.csv", head + "\n".join(listed))
    return directory


def _workloads(folder: Path) -> None:
    for number in range(1, _WORKLOADS + 1):
        lines = [f"{_APPLICATION}-{i},{60 * i * number},{_APPLICATION},{1 + i % 2},64" for i in range(_JOBS)]
        text = "name,time,application,num_replicas,batch_size\n" + "\n".join(lines) + "\n"
        _write(folder / f"workload-{number}.csv", text)


def _application(folder: Path) -> None:
    """A step of 0.1 s and 10 ms a sample, 50 ms of exchange within a node and twice that across; two epochs."""
    lines = ["placement,local_bsz,step_time,sync_time"]
    for placement in ("1", "2", "3", "4", "11", "12", "22", "44"):
        sync = 0.0 if placement == "1" else 0.05 if len(placement) == 1 else 0.1
        lines += [f"{placement},{local},{0.1 + 0.01 * local + sync},{sync}" for local in (4, 8, 16)]
    _write(folder / "placements.csv", "\n".join(lines) + "\n")
    lines = ["num_nodes,num_replicas,local_bsz,step_time,sync_time"]
    lines += [f"{n},{4 * n},{b},{0.3 + 0.01 * b},0.1" for n in range(3, 17) for b in (4, 8, 16)]
    _write(folder / "scalability.csv", "\n".join(lines) + "\n")
    for batch in (16, 64):
        lines = ["progress,iteration,metric,grad_sqr,grad_var"]
        lines += [f"{100.0 * e},{1600 * e / batch:.0f},50.0,1.0,{4.0 * e}" for e in (1, 2)]
        _write(folder / f"validation-{batch}.csv", "\n".join(lines))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)

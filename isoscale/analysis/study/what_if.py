"""The trace in the simulator: the same jobs under the present policy and under ours, which may resize them.

A trace tells how long a job ran on what it held, not how fast it would be on more or fewer devices. Those speeds come
from measured curves that the package ships, drawn by seed for each job, so the result is an estimate, and says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from isoscale.analysis.study.trace import Trace
from isoscale.analysis.study.usage import in_use, is_timed
from isoscale.errors import UserError
from isoscale.scheduling.policy import policy_names
from isoscale.sim.cluster_spec import NodeSpec
from isoscale.sim.costs import PRESETS
from isoscale.sim.engine import Options, Simulation
from isoscale.sim.result import summarise
from isoscale.sim.run import parse_policies
from isoscale.sim.traces.record import TraceJob
from isoscale.sim.workload import Workload, make_cluster, make_jobs

__all__ = ["OURS", "PRESENT", "Simulated", "WhatIf", "what_if"]

PRESENT, OURS = "fifo-backfill", "flow"
_LEAST_JOBS = 10
_NODE = 8
#: between decisions: a cluster of thousands of devices is not rearranged at every submission
_INTERVAL_S = 600.0
#: where nobody knows how large the cluster is
_LOAD = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """One policy."""

    policy: str
    mean_jct_s: float
    p50_jct_s: float
    p99_jct_s: float
    mean_queue_s: float
    device_hours: float
    jobs_finished: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """Both, what they ran on, and what was assumed."""

    present: Simulated
    ours: Simulated
    jobs: int
    jobs_in_trace: int
    devices: int
    #: mean of submission to end in the trace itself, of the same jobs; None if it does not tell
    measured_jct_s: float | None
    assumptions: tuple[str, ...]


def what_if(
    trace: Trace,
    *,
    present: str | None = None,
    most_jobs: int = 3000,
    seed: int = 0,
    on_progress: Callable[[str, int, int], None] | None = None,
) -> WhatIf | str:
    """The comparison, or which column is missing for it. Without `present`, a simulated trace has its own policy."""
    jobs = trace.jobs
    usable = np.flatnonzero(np.isfinite(jobs.submit_s) & (jobs.run_s > 0) & (jobs.devices > 0))
    if len(usable) < _LEAST_JOBS:
        return f"at least {_LEAST_JOBS} jobs with submission, run time and devices"
    if trace.own is not None and any(one.before != one.after and one.before and one.after for one in trace.own.resizes):
        return "how long a job takes on what it asked for (its size changed while it ran; simulate its trace instead)"
    usable = usable[np.argsort(jobs.submit_s[usable], kind="stable")]
    chosen = _busiest(trace, usable, most_jobs)
    nodes, size_words = _nodes(trace, chosen)
    records = [
        TraceJob(
            name=f"{number}",
            submit_s=float(jobs.submit_s[job] - jobs.submit_s[chosen[0]]),
            devices=max(1, math.ceil(jobs.devices[job])),
            duration_s=float(jobs.run_s[job]),
            tenant=jobs.tenant.words[jobs.tenant.codes[job]],
        )
        for number, job in enumerate(chosen.tolist())
    ]
    cluster = make_cluster(nodes)
    made = make_jobs(records, cluster, Workload(seed=seed, drop_large=True))
    kept = {int(job.request.name) for job in made}
    measured = jobs.end_s[chosen] - jobs.submit_s[chosen]
    measured = measured[[number in kept for number in range(len(chosen))]]
    measured = measured[np.isfinite(measured)]
    found = []
    simulated = trace.format == "isoscale-simulated" and trace.name in policy_names()
    before = _known(present) if present is not None else trace.name if simulated else PRESENT
    for label in (before, OURS):
        policy = next(parse_policies(label))[1]()
        simulation = Simulation(
            made, cluster, policy, Options(costs=PRESETS["stop-free"], interval_s=_interval_s(label), seed=seed)
        )
        outcome = simulation.run(_watcher(on_progress, label, len(made)))
        summary = summarise(outcome)
        found.append(
            Simulated(
                policy=label,
                mean_jct_s=summary.mean_jct_s,
                p50_jct_s=summary.p50_jct_s,
                p99_jct_s=summary.p99_jct_s,
                mean_queue_s=summary.mean_queue_s,
                device_hours=outcome.ledger.device_seconds() / 3600.0,
                jobs_finished=int(summary.jobs_finished),
            )
        )
    assumptions = [
        f"the present policy is {before}" + ("" if simulated or present else ": the trace does not name it"),
        "a job runs as long as in the trace on what it asked for; on other sizes as a measured curve drawn by seed "
        "says, because the trace names neither model nor speeds",
        "every job may run on 1 device and on up to 4 times what it asked for, as far as its curve rises",
        f"{found[0].policy} decides {_when(found[0].policy)}, {OURS} {_when(OURS)}",
        f"changes cost {PRESETS['stop-free'].in_words()}",
        size_words,
    ]
    if len(chosen) < len(usable):
        assumptions.append(f"only the {len(chosen):,} consecutive jobs that take most device time, of {len(usable):,}")
    if len(made) < len(chosen):
        assumptions.append(f"{len(chosen) - len(made):,} jobs that ask for more than the cluster has are left out")
    if not np.isfinite(measured).any():
        assumptions.append("the trace has no ends, so its own completion times are not compared")
    return WhatIf(
        present=found[0],
        ours=found[1],
        jobs=len(made),
        jobs_in_trace=len(jobs),
        devices=sum(node.devices for node in nodes),
        measured_jct_s=float(measured.mean()) if len(measured) else None,
        assumptions=tuple(assumptions),
    )


def _watcher(
    on_progress: Callable[[str, int, int], None] | None, label: str, total: int
) -> Callable[[int, float], None] | None:
    if on_progress is None:
        return None
    return lambda done, _: on_progress(f"simulating {label}", done, total)


def _busiest(trace: Trace, usable: np.ndarray, most: int) -> np.ndarray:
    """The `most` consecutive submissions that took most device time."""
    if len(usable) <= most:
        return usable
    work = np.concatenate([[0.0], np.cumsum((trace.jobs.run_s * trace.jobs.devices)[usable])])
    first = int(np.argmax(work[most:] - work[:-most]))
    return usable[first : first + most]


def _nodes(trace: Trace, chosen: np.ndarray) -> tuple[list[NodeSpec], str]:
    """The cluster, and in words where its size is from."""
    machines = [(name, int(count)) for name, count in zip(trace.machines.names, trace.machines.devices, strict=True)]
    listed = [(name, count) for name, count in machines if count]
    if listed:
        nodes = [NodeSpec(name=name, kind="gpu", devices=count) for name, count in listed]
        return nodes, f"the cluster has the {len(nodes):,} machines of the trace; all devices are equally fast"
    if trace.capacity is not None:
        total, source = math.ceil(trace.capacity.most), trace.capacity.source
    elif is_timed(trace):
        total, source = math.ceil(in_use(trace).most), "the most devices ever in use at once"
    else:
        jobs = trace.jobs
        work = float((jobs.run_s * jobs.devices)[chosen].sum())
        span = float(jobs.submit_s[chosen[-1]] - jobs.submit_s[chosen[0]]) or 1.0
        total = math.ceil(max(work / span / _LOAD, float(jobs.devices[chosen].max())))
        source = f"chosen so that jobs ask for {_LOAD:.0%} of it; the trace does not tell its size"
    total = min(max(total, 1), 100_000)
    nodes = [
        NodeSpec(name=f"node-{i}", kind="gpu", devices=min(_NODE, total - _NODE * i)) for i in range(-(-total // _NODE))
    ]
    return nodes, f"the cluster has {total:,} equal devices, {_NODE} to a machine ({source})"


def _interval_s(policy: str) -> float:
    """Those that only start jobs decide at every event."""
    return 0.0 if policy.startswith("fifo") else _INTERVAL_S


def _when(policy: str) -> str:
    return f"every {_INTERVAL_S / 60:g} minutes" if _interval_s(policy) else "at every event"


def _known(policy: str) -> str:
    if policy.partition("(")[0] in policy_names():
        return policy
    raise UserError(
        field="--present", value=policy, problem="no such policy", remedy=f"give one of {', '.join(policy_names())}"
    )

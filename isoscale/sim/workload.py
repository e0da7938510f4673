"""From a trace to jobs that can be simulated: every record gets a request, a truth, and what its owner declares.

Where speeds come from, first match first: times of a turn in the trace itself; a table given with `--speeds`
(the Pollux simulator's directory, ElasticFlow's, Gavel's JSON); a curve that the package ships, by application
and batch; a curve drawn by seed. `SpeedSources.used` says which it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from isoscale.errors import UserError
from isoscale.scheduling.state import Cluster, JobRequest, Node, SpeedModel, packed_shape
from isoscale.scheduling.throughput import Communication, LogicalWorkerSpeed, TableSpeed
from isoscale.sim.cluster_spec import NodeSpec
from isoscale.sim.job import Crash, ModelTruth, SimJob
from isoscale.sim.traces.record import TraceJob
from isoscale.sim.worlds.curves import Curve, read_elasticflow_curves, read_gavel_curves, shipped_curves, speed_of
from isoscale.sim.worlds.pollux import pollux_job

__all__ = ["SpeedSources", "Workload", "make_cluster", "make_jobs"]

_MOST_DEVICES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """How a trace is to be understood."""

    seed: int = 0
    #: directory or file with measured speeds; None: those in the trace or the package
    speeds: Path | None = None
    #: speed of a device by kind relative to the one that was measured; kinds not named are 1
    kind_speeds: Mapping[str, float] = field(default_factory=dict)
    #: an elastic scheduler may give a job that does not say up to this many times what it asked for
    stretch: int = 4
    #: the batch may be chosen where its range is known; otherwise the owner's stays
    adaptive: bool = True
    #: the controller knows exact speeds; otherwise it learns them while jobs run (where a world can tell)
    profiled: bool = False
    #: whether owners say how much work there is where only the past tells (durations of a log)
    declares_duration: bool = False
    communication: Communication = field(default_factory=Communication)
    #: leave out jobs that ask for more devices than the cluster has; otherwise they are refused
    drop_large: bool = False
    #: only jobs submitted in this window, which then begins at 0
    begin_s: float = 0.0
    end_s: float = float("inf")


def make_cluster(nodes: Sequence[NodeSpec]) -> Cluster:
    return Cluster(nodes=tuple(Node(name=node.name, kind=node.kind, num_devices=node.devices) for node in nodes))


def make_jobs(trace: Sequence[TraceJob], cluster: Cluster, workload: Workload) -> list[SimJob]:
    """One job for each record, in their order."""
    sources = SpeedSources(cluster, workload)
    chosen = [job for job in trace if workload.begin_s <= job.submit_s < workload.end_s]
    if not chosen:
        raise UserError(
            field="--window",
            value=f"{workload.begin_s}:{workload.end_s}",
            problem="no job was submitted in it",
            remedy="give another one",
        )
    if workload.drop_large:
        chosen = [job for job in chosen if sources.has_room(job)]
    if not chosen:
        raise UserError(
            field="--cluster",
            value=cluster.num_devices,
            problem="every job asks for more devices than there are",
            remedy="give a larger one",
        )
    return [_failing(sources.make(job), job) for job in chosen]


def _failing(made: SimJob, job: TraceJob) -> SimJob:
    """The job with the failures that its record has."""
    if not job.failures:
        return made
    return replace(made, crashes=tuple(Crash(share * made.truth.total_work, error) for share, error in job.failures))


def _moved(job: TraceJob, begin_s: float) -> TraceJob:
    """The record on a clock that begins with the window."""
    deadline_s = None if job.deadline_s is None else job.deadline_s - begin_s
    return replace(job, submit_s=job.submit_s - begin_s, deadline_s=deadline_s)


class SpeedSources:
    """Finds speeds for jobs of one trace. Counts what it used, for the record."""

    def __init__(self, cluster: Cluster, workload: Workload) -> None:
        self._kinds = {kind: workload.kind_speeds.get(kind, 1.0) for kind in cluster.kinds}
        self._sizes = {kind: cluster.node_size(kind) for kind in cluster.kinds}
        self._most = {kind: sum(n.num_devices for n in cluster.nodes if n.kind == kind) for kind in cluster.kinds}
        self._workload = workload
        self._rng = np.random.default_rng([workload.seed, 3])
        self._shipped = {(curve.application, curve.batch): curve for curve in shipped_curves()}
        self._drawn = [curve for curve in shipped_curves() if curve.most_devices > 1]
        self._by_key: dict[tuple[str, int], Curve] = {}
        self._by_type: dict[str, dict[str, Curve]] = {}
        self._pollux: Path | None = None
        #: where speeds came from -> number of jobs
        self.used: dict[str, int] = {}
        self._open(workload.speeds)

    def make(self, job: TraceJob) -> SimJob:
        if job.turn_s:
            return self._logical(job)
        if self._pollux is not None and (self._pollux / job.application).is_dir() and job.application:
            self._count("Pollux's tables")
            moved = _moved(job, self._workload.begin_s)
            return pollux_job(
                moved,
                self._pollux,
                adaptive=self._workload.adaptive,
                profiled=self._workload.profiled,
                kinds=tuple(self._kinds),
            )
        if job.application in self._by_type:
            return self._typed(job, self._by_type[job.application])
        curve = self._by_key.get((job.application, job.batch)) or self._shipped.get((job.application, job.batch))
        # One draw for every job, used or not: another table for some must not change what others get.
        drawn = self._drawn[int(self._rng.integers(len(self._drawn)))]
        self._count("measured curves" if curve else "curves drawn by seed")
        return self._curved(job, curve or drawn, steps=job.steps if curve else None)

    def has_room(self, job: TraceJob) -> bool:
        """Whether the cluster has as many devices of one kind as the job asks for."""
        wanted = job.kinds or ((job.kind,) if job.kind else tuple(self._kinds))
        return any(self._most.get(kind, 0) >= job.devices for kind in wanted)

    def _logical(self, job: TraceJob) -> SimJob:
        self._count("times of a turn in the trace")
        workers = job.num_logical_workers
        kinds = self._allowed(job, set(job.turn_s))
        speed = LogicalWorkerSpeed(
            num_logical_workers=workers,
            turn_s={kind: job.turn_s[kind] for kind in kinds},
            communication=self._workload.communication,
            batch=job.batch,
        )
        steps = job.steps
        if steps is None:
            assert job.duration_s is not None
            steps = job.duration_s * speed.rate(self._requested(job, kinds))
        return self._job(job, kinds, speed, steps, most=job.max_devices or workers, declared=True)

    def _typed(self, job: TraceJob, curves: Mapping[str, Curve]) -> SimJob:
        self._count("Gavel's throughputs")
        by_kind = {kind: curves[kind.lower()] for kind in self._kinds if kind.lower() in curves}
        kinds = self._allowed(job, set(by_kind))
        most = max(curve.sizes[-1] for curve in by_kind.values())
        tables = {kind: speed_of(by_kind[kind], {kind: 1.0}, most=most).tables[kind] for kind in kinds}
        speed = TableSpeed(tables=tables, batch=job.batch)
        return self._job(job, kinds, speed, job.steps or 0.0, most=most, declared=True)

    def _curved(self, job: TraceJob, curve: Curve, steps: float | None) -> SimJob:
        kinds = self._allowed(job, set(self._kinds))
        most = job.max_devices or max(job.devices, min(curve.most_devices, job.devices * self._workload.stretch))
        speed = speed_of(curve, {kind: self._kinds[kind] for kind in kinds}, most=max(most, job.devices))
        if steps is None:
            # As many steps as it would have made in its time on what it asked for.
            seconds = job.duration_s if job.duration_s is not None else job.steps or 0.0
            steps = seconds * speed.tables[kinds[0]][job.devices]
        declared = self._workload.declares_duration or job.steps is not None
        return self._job(job, kinds, speed, steps, most=most, declared=declared)

    def _job(
        self, job: TraceJob, kinds: tuple[str, ...], speed: SpeedModel, work: float, *, most: int, declared: bool
    ) -> SimJob:
        shape = self._requested(job, kinds)
        rate = speed.rate(shape)
        if not rate > 0:
            raise UserError(
                field=f"--trace job {job.name}",
                value=job.devices,
                problem=f"cannot run on {job.devices} devices of {kinds[0]}",
                remedy="change its devices or its kinds",
            )
        request = JobRequest(
            name=job.name,
            submitted_s=job.submit_s - self._workload.begin_s,
            requested_devices=job.devices,
            num_logical_workers=job.num_logical_workers if job.turn_s else 0,
            min_devices=job.min_devices or 1,
            max_devices=most,
            kinds=kinds,
            mixes_kinds=bool(job.turn_s) and len(kinds) > 1,
            requested_batch=0,
            priority=job.priority,
            tenant=job.tenant,
            application=job.application,
            deadline_s=_moved(job, self._workload.begin_s).deadline_s,
        )
        return SimJob(
            request=request,
            declared=speed,
            truth=ModelTruth(speed, work),
            declared_work=work if declared else None,
            isolated_s=work / rate,
        )

    def _allowed(self, job: TraceJob, known: set[str]) -> tuple[str, ...]:
        """Kinds of the cluster that the job may use and whose speed is known, the preferred one first."""
        wanted = job.kinds or ((job.kind,) if job.kind else tuple(self._kinds))
        kinds = [kind for kind in self._kinds if kind in wanted and kind in known]
        if job.kind in kinds:
            kinds.remove(job.kind)
            kinds.insert(0, job.kind)
        room = [kind for kind in kinds if self._most[kind] >= job.devices]
        if not kinds or not room:
            what = f"{job.devices} devices of {' or '.join(wanted)}"
            raise UserError(
                field="--cluster",
                value="+".join(f"{kind}*{count}" for kind, count in self._most.items()),
                problem=f"job {job.name} asks for {what}, which it does not have",
                remedy="give a cluster with them, or --drop-large",
            )
        # The first kind is the one that rigid policies use: it must have room.
        first = kinds[0] if self._most[kinds[0]] >= job.devices else room[0]
        return (first, *(kind for kind in kinds if kind != first))

    def _requested(self, job: TraceJob, kinds: Sequence[str]) -> tuple[tuple[str, int], ...]:
        return packed_shape(kinds[0], job.devices, self._sizes[kinds[0]])

    def _count(self, source: str) -> None:
        self.used[source] = self.used.get(source, 0) + 1

    def _open(self, speeds: Path | None) -> None:
        if speeds is None:
            return
        if speeds.is_file():
            self._by_type = read_gavel_curves(speeds)
        elif any(speeds.glob("*/placements.csv")):
            self._pollux = speeds
        elif any(speeds.glob("*.csv")):
            self._by_key = read_elasticflow_curves(speeds, "")
        else:
            raise UserError(
                field="--speeds",
                value=speeds,
                problem="no tables of speeds there",
                remedy="give the Pollux simulator's traces, ElasticFlow's throughputs or Gavel's JSON",
            )

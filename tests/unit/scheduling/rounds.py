"""A world in rounds for scheduler tests: no costs, no failures, jobs progress at their model's rate between rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st

from isoscale.scheduling.controller import Controller
from isoscale.scheduling.events import JobEnded, JobProgress, JobSubmitted
from isoscale.scheduling.policy import Policy
from isoscale.scheduling.state import Cluster, Decision, JobRequest, Node, SpeedModel, shape_of
from isoscale.scheduling.throughput import Communication, LogicalWorkerSpeed

RIGID = ("fifo", "fifo-per-kind", "fifo-backfill", "tiresias", "srtf")
ELASTIC = ("elastic-tiresias", "optimus", "autoscaler", "pollux", "easyscale-homo", "easyscale", "flow")


@dataclass(frozen=True)
class Work:
    """A job and how much of it there is, in steps."""

    request: JobRequest
    speed: SpeedModel
    steps: float


@dataclass
class Run:
    """What happened: every round's decisions, and when each job ended."""

    controller: Controller
    rounds: list[tuple[float, list[Decision]]] = field(default_factory=list)
    ended: dict[str, float] = field(default_factory=dict)


def cluster_of(*groups: tuple[str, int, int]) -> Cluster:
    """(kind, nodes, devices per node) groups."""
    return Cluster(
        nodes=tuple(
            Node(name=f"{kind}-{i}", kind=kind, num_devices=size) for kind, count, size in groups for i in range(count)
        )
    )


def work(
    name: str,
    *,
    at: float = 0.0,
    workers: int = 4,
    steps: float = 100.0,
    turn_s: dict[str, float] | None = None,
    communication: Communication | None = None,
    **request: object,
) -> Work:
    """A job of logical workers that asks for one device each."""
    turns = turn_s or {"T4": 1.0}
    defaults: dict[str, object] = {
        "requested_devices": workers,
        "max_devices": workers,
        "kinds": tuple(turns),
        "num_logical_workers": workers,
    }
    speed = LogicalWorkerSpeed(
        num_logical_workers=workers, turn_s=turns, communication=communication or Communication()
    )
    return Work(JobRequest(name=name, submitted_s=at, **{**defaults, **request}), speed, steps)  # type: ignore[arg-type]


def run(
    cluster: Cluster,
    policy: Policy,
    jobs: Sequence[Work],
    *,
    interval_s: float = 60.0,
    max_rounds: int = 400,
    check: Callable[[Controller, list[Decision]], None] | None = None,
    **options: object,
) -> Run:
    """Rounds of `interval_s` until every job has ended or `max_rounds` have passed."""
    controller = Controller(cluster, policy, interval_s=interval_s, **options)  # type: ignore[arg-type]
    result = Run(controller)
    waiting = sorted(jobs, key=lambda job: job.request.submitted_s)
    left = {job.request.name: job.steps for job in jobs}
    for number in range(max_rounds):
        now = number * interval_s
        for name, view in list(controller.running.items()):
            left[name] -= view.speed.rate(shape_of(cluster, view.allocation), view.batch) * interval_s
            if left[name] <= 1e-9:
                controller.feed(JobEnded(name), now)
                result.ended[name] = now
            else:
                controller.feed(JobProgress(name, left[name]), now)
        while waiting and waiting[0].request.submitted_s <= now:
            job = waiting.pop(0)
            controller.feed(JobSubmitted(job.request, job.speed, job.steps), now)
        if controller.next_decision_s(now) <= now:
            decisions = controller.decide(now)
            result.rounds.append((now, decisions))
            if check is not None:
                check(controller, decisions)
        if not waiting and not controller.running and not controller.waiting:
            break
    return result


@st.composite
def workloads(draw: st.DrawFn, *, kinds: Sequence[str] = ("V100", "T4"), max_jobs: int = 8) -> list[Work]:
    """A few jobs of logical workers with odd sizes, some of which may mix kinds."""
    jobs = []
    for number in range(draw(st.integers(1, max_jobs))):
        workers = draw(st.integers(1, 6))
        turns = {kind: draw(st.sampled_from([0.25, 0.5, 1.0, 1.7])) for kind in draw(st.permutations(kinds))}
        jobs.append(
            work(
                f"job-{number}",
                at=draw(st.integers(0, 600)),
                workers=workers,
                steps=draw(st.integers(1, 2000)),
                turn_s=turns,
                communication=Communication(local_fixed_s=0.01, cross_fixed_s=draw(st.sampled_from([0.0, 0.05]))),
                mixes_kinds=draw(st.booleans()),
                requested_devices=draw(st.integers(1, min(workers, 4))),  # no kind in the tests has fewer
                tenant=draw(st.sampled_from(["a", "b"])),
            )
        )
    return jobs

"""Small worlds for tests: clusters, jobs that halve their time with twice the devices, scripted policies."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from isoscale.scheduling.state import (
    Cluster,
    ClusterState,
    Decision,
    JobRequest,
    Node,
    Resume,
    Start,
)
from isoscale.scheduling.throughput import TableSpeed
from isoscale.sim.engine import Options, Outcome, Simulation
from isoscale.sim.job import Crash, ModelTruth, SimJob
from isoscale.sim.recorder import ListRecorder


def cluster(*sizes: int, kind: str = "T4") -> Cluster:
    return Cluster(nodes=tuple(Node(name=f"n{i}", kind=kind, num_devices=size) for i, size in enumerate(sizes)))


def job(
    name: str,
    submit_s: float = 0.0,
    work: float = 100.0,
    devices: int = 1,
    *,
    most: int = 8,
    crashes: tuple[Crash, ...] = (),
    declared: bool = True,
) -> SimJob:
    """Does `k` work per second on k devices."""
    speed = TableSpeed(tables={"T4": tuple(float(k) for k in range(most + 1))})
    request = JobRequest(name=name, submitted_s=submit_s, requested_devices=devices, max_devices=most)
    return SimJob(
        request=request,
        declared=speed,
        truth=ModelTruth(speed, work),
        declared_work=work if declared else None,
        isolated_s=work / devices,
        crashes=crashes,
    )


class Scripted:
    """Asks `answer(state)` at every round."""

    def __init__(
        self,
        answer: Callable[[ClusterState], list[Decision]],
        *,
        interval_s: float = 0.0,
        watches_time: bool = False,
        oracle: bool = False,
    ) -> None:
        self._answer = answer
        self.interval_s = interval_s
        self.watches_time = watches_time
        self.oracle = oracle
        self.gang = False

    def decide(self, state: ClusterState) -> list[Decision]:
        return self._answer(state)


def first_fit(state: ClusterState) -> list[Decision]:
    """Whoever waits gets what it asked for on the first node with room."""
    free = list(state.free)
    decisions: list[Decision] = []
    for view in state.waiting.values():
        wanted = view.request.requested_devices
        node = next((n for n, count in enumerate(free) if count >= wanted), None)
        if node is not None:
            free[node] -= wanted
            make = Start if view.status == "pending" else Resume
            decisions.append(make(view.name, ((node, wanted),)))
    return decisions


def run(
    jobs: Sequence[SimJob], where: Cluster, policy: object, options: Options | None = None
) -> tuple[Outcome, ListRecorder]:
    recorder = ListRecorder()
    outcome = Simulation(jobs, where, policy, options or Options(), recorder).run()  # type: ignore[arg-type]
    return outcome, recorder

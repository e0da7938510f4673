"""Runs a policy through random worlds and says what it broke: for policies from outside, and for our own in the tests.

Each seed is a small world: one to four kinds of devices on nodes of odd sizes, jobs with minima, maxima and kinds of
their own, speeds known or learned, some with declared work, some with deadlines, near and far, restarts from nothing to
longer than a round, rounds of several lengths, devices that are lent and reclaimed; where an objective looks at prices,
prices that double and halve. What is checked, on the event log as a reader would:

    decisions   possible, within capacity, within a job's bounds and kinds (the controller refuses others)
    gangs       a policy that calls itself `gang` gives exactly what was asked for
    an end      every job that can run ends, unless the policy rejected it
    idling      no device is free after two rounds in a row beside a job whose minimum it would have met (elastic ones)
    replay      the same world gives the same events again
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from isoscale.scheduling.policy import Policy
from isoscale.scheduling.state import Cluster, ClusterState, Decision, JobRequest, Node, Objective, Pause, Reject
from isoscale.sim.costs import Costs
from isoscale.sim.disturbances import Lending
from isoscale.sim.engine import Options, Simulation
from isoscale.sim.job import SimJob
from isoscale.sim.recorder import ListRecorder
from isoscale.sim.traces.record import TraceJob
from isoscale.sim.worlds.mixed import Mixed

__all__ = ["Situation", "Watched", "check_policy", "idle_beside", "random_situation"]

_KINDS = ("V100", "T4", "A100", "K80")
_INTERVALS_S = (0.0, 30.0, 60.0, 600.0)
#: a job's deadline, in times that it would take alone on what it asks for
_SLACK = (0.3, 1.0, 3.0, 10.0)
#: of a device and an hour, one hour after another
_PRICES = (1.0, 2.0, 0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """One world: who comes, on what devices, under which rules."""

    cluster: Cluster
    jobs: tuple[SimJob, ...]
    options: Options


def random_situation(seed: int, objective: Objective = "jct") -> Situation:
    rng = np.random.default_rng([seed, 99])
    kinds = _KINDS[: int(rng.integers(1, 5))]
    nodes = tuple(
        Node(name=f"{kind}-{number}", kind=kind, num_devices=int(rng.integers(1, 6)))
        for kind in kinds
        for number in range(int(rng.integers(1, 4)))
    )
    cluster = Cluster(nodes=nodes)
    # A gang has to fit on any of its kinds even while devices are lent to others.
    room = min(sum(node.num_devices for node in nodes if node.kind == kind) for kind in kinds)
    trace = [
        TraceJob(
            name=f"job-{number}",
            submit_s=float(rng.integers(0, 4000)),
            devices=int(rng.integers(1, min(room, 4) + 1)),
            duration_s=float(np.round(rng.lognormal(5.5, 1.5), 3)),
            priority=int(rng.choice([0, 0, 0, 1])),
        )
        for number in range(int(rng.integers(1, 13)))
    ]
    restarts = float(rng.choice([0.0, 0.3, 1.0, 5.0]))
    made = Mixed(seed=seed, learned=bool(rng.integers(2)), restarts=restarts).jobs(trace, cluster)
    jobs = tuple(_varied(job, rng) for job in made)
    # Drawn apart, so that worlds are what they were before there were deadlines.
    apart = np.random.default_rng([seed, 98])
    jobs = tuple(_with_deadline(job, float(apart.choice(_SLACK))) if apart.integers(2) else job for job in jobs)
    lendings = []
    if rng.integers(2):
        node = int(rng.integers(len(nodes)))
        lendings = [Lending(1000.0, node, 0), Lending(3000.0, node, nodes[node].num_devices)]
    options = Options(
        costs=Costs(start_s=10.0, resume_s=10.0, rescale_s=float(rng.choice([0.0, 1.0, 40.0])), release_s=1.0),
        interval_s=float(rng.choice(_INTERVALS_S)),
        lendings=lendings,
        objective=objective,
        prices=_prices(kinds) if objective == "cost" else (),
        seed=seed,
        until_s=6 * 86_400.0,
    )
    return Situation(cluster=cluster, jobs=jobs, options=options)


def _prices(kinds: Sequence[str]) -> list[tuple[float, dict[str, float]]]:
    return [(3600.0 * hour, dict.fromkeys(kinds, _PRICES[hour % len(_PRICES)])) for hour in range(24 * 30)]


def _with_deadline(job: SimJob, slack: float) -> SimJob:
    deadline_s = job.request.submitted_s + slack * job.isolated_s
    return replace(job, request=replace(job.request, deadline_s=deadline_s))


def _varied(job: SimJob, rng: np.random.Generator) -> SimJob:
    """The job with bounds of its own, and some that say how much work they are."""
    request = job.request
    least = int(rng.integers(1, request.requested_devices + 1))
    most = int(rng.integers(request.requested_devices, max(request.requested_devices, request.max_devices) + 1))
    kinds = tuple(str(kind) for kind in rng.permutation(request.kinds))
    declared = job.truth.remaining(0.0) if rng.integers(2) else None
    return replace(
        job, request=replace(request, min_devices=least, max_devices=most, kinds=kinds), declared_work=declared
    )


def check_policy(
    make: Callable[[], Policy], seed: int, *, idling: bool = True, objective: Objective = "jct"
) -> list[str]:
    """What the policy broke in the world of this seed; nothing if all is well. `make` gives a fresh policy.

    `idling` False is for policies that leave devices idle by intent: jobs keep to one kind, or wait for lower prices.
    """
    situation = random_situation(seed, objective)
    try:
        policy = Watched(make())
        events = _run(policy, situation)
        problems = [*_log_problems(events, situation, gang=policy.gang), *(policy.problems if idling else ())]
        again = _run(Watched(make()), situation)
    except Exception as error:  # whatever a policy from outside raises is what its author must hear
        return [f"{type(error).__name__}: {error}"]
    if again != events:
        first = next((a for a, b in zip(events, again, strict=False) if a != b), "their number")
        problems.append(f"the same world gave other decisions when run again, beginning with {first}")
    return problems


def _run(policy: Policy, situation: Situation) -> list[dict[str, Any]]:
    recorder = ListRecorder()
    Simulation(situation.jobs, situation.cluster, policy, situation.options, recorder).run()
    return recorder.events


class Watched:
    """The policy, and a note of devices that it leaves idle beside jobs that could use them, two rounds in a row."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.interval_s, self.oracle = policy.interval_s, policy.oracle
        self.watches_time, self.gang = policy.watches_time, policy.gang
        self.problems: list[str] = []
        self._beside: set[str] = set()

    def decide(self, state: ClusterState) -> list[Decision]:
        decisions = self._policy.decide(state)
        beside = set() if self.gang else set(idle_beside(state, decisions))
        for job in sorted(beside & self._beside)[:1]:
            self.problems.append(f"at {state.now:g} s {job} waits beside free devices that it could use")
        self._beside = beside
        return decisions


def idle_beside(state: ClusterState, decisions: list[Decision]) -> Iterator[str]:
    """Jobs that wait after these decisions although enough devices of one of their kinds are free."""
    free, waiting = list(state.free), dict(state.waiting)
    for decision in decisions:
        job = state.running.get(decision.job) or state.waiting[decision.job]
        for node, count in job.allocation:
            free[node] += count
        waiting.pop(decision.job, None)
        if isinstance(decision, Pause):
            waiting[decision.job] = job
        elif not isinstance(decision, Reject):
            for node, count in decision.allocation:
                free[node] -= count
    idle = state.cluster.by_kind(free)
    for name, job in waiting.items():
        kinds = job.request.kinds or state.cluster.kinds
        if any(idle.get(kind, 0) >= max(1, job.request.min_devices) for kind in kinds):
            yield name


def _log_problems(events: list[dict[str, Any]], situation: Situation, *, gang: bool) -> Iterator[str]:
    requests = {job.request.name: job.request for job in situation.jobs}
    cluster = situation.cluster
    capacity = [node.num_devices for node in cluster.nodes]
    held: dict[str, Mapping[int, int]] = {}
    over: set[str] = set()
    moment = -1.0
    for event in [*events, {"t": float("inf"), "event": ""}]:
        if event["t"] > moment:
            # Within a moment shrinking comes before growth; at its end everything must fit.
            for node, most in enumerate(capacity):
                if sum(one.get(node, 0) for one in held.values()) > most:
                    yield f"at {moment:g} s node {cluster.nodes[node].name} holds more jobs than it has devices"
            moment = event["t"]
        name = event.get("job", "")
        match event["event"]:
            case "job_started" | "job_resized":
                held[name] = dict(event["nodes"])
                if held[name]:
                    yield from _job_problems(requests[name], held[name], cluster, event, gang=gang)
            case "job_finished" | "job_rejected":
                over.add(name)
                held.pop(name, None)
            case "device_reclaimed":
                capacity[event["node"]] -= event["devices"]
            case "device_lent":
                capacity[event["node"]] += event["devices"]
    for name in sorted(requests.keys() - over):
        yield f"{name} never ended"


def _job_problems(
    request: JobRequest, held: Mapping[int, int], cluster: Cluster, event: Mapping[str, Any], *, gang: bool
) -> Iterator[str]:
    size, kinds = sum(held.values()), {cluster.nodes[node].kind for node in held}
    at = f"at {event['t']:g} s {request.name}"
    if gang and size != request.requested_devices and event["reason"] == "policy":
        yield f"{at} asked for {request.requested_devices} devices and got {size}"
    if size > request.max_devices:
        yield f"{at} got {size} devices, more than its {request.max_devices}"
    if size < request.min_devices:
        yield f"{at} got {size} devices, fewer than its {request.min_devices}"
    if request.kinds and not kinds <= set(request.kinds):
        yield f"{at} got devices of {', '.join(sorted(kinds - set(request.kinds)))}, which it cannot use"
    if len(kinds) > 1 and not request.mixes_kinds:
        yield f"{at} got devices of several kinds, which it cannot mix"

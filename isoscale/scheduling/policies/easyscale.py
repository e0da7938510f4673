"""EasyScale's inter-job scheduler: everybody starts small, then free devices go to the best proposals.

Waiting jobs come first: each starts on one device, of the slowest kind that has one free. Then every running job
proposes ways to grow, and proposals are granted by speed-up per device, at most one per job and round. Nobody is paused
for others, but what is more than there is (a quota became short) is given back, by the latest job first. A job that a
change made slower goes back to what it had.

The paper shrinks nobody for others either. Here (ours) a job that lost its devices to a failure or a reclaim, and finds
none free when it may go on, gets what it needs from jobs that hold more than their minimum: whoever grew onto its
devices may have no end. With `room` a job that waits for its first devices does, too.

EasyScale holds a job that may not mix kinds to its preferred one. Here (ours) it starts on the fastest of its kinds
that has a device free, and proposes moves to others beside growth, where the gain pays for the change (`changes`).
"""

from __future__ import annotations

from collections.abc import Mapping

from isoscale.scheduling.allocation import Pool, Target, begin
from isoscale.scheduling.changes import is_changing, pays
from isoscale.scheduling.growth import Proposal, counts_shape, growth_proposals, slowed
from isoscale.scheduling.policies.counting import Kinds, active_jobs
from isoscale.scheduling.policy import register
from isoscale.scheduling.state import (
    Allocation,
    ClusterState,
    Decision,
    JobRequest,
    JobView,
    Pause,
    Resize,
    SpeedModel,
    held_by_kind,
    num_devices,
    shape_of,
)
from isoscale.scheduling.surplus import Surplus

__all__ = ["EasyScale"]


@register("easyscale", summary="EasyScale: greedy by speed-up per device, kinds mixed where the job allows it")
class EasyScale:
    """`mix` False holds every job to its preferred kind (EasyScale_homo); `kinds` "preferred" holds those to it that
    may not mix kinds, as in the paper.

    `top` proposals per job are considered, each bounded by what is free. `blind` is the artifact's behaviour instead:
    one proposal per kind, chosen without looking at what is free, and a job starts on the slowest kind or not at all.
    With `room` jobs that have grown make room for every job that waits; without, only for those that had devices.
    """

    interval_s = 60.0
    oracle = False
    watches_time = True
    gang = False

    def __init__(
        self, mix: bool = True, top: int = 3, blind: bool = False, kinds: Kinds = "choose", room: bool = False
    ) -> None:
        self._mix = mix
        self._room = room
        self._chooses = kinds == "choose" and mix and not blind
        self._top = top
        self._blind = blind
        #: what each job held before its last growth
        self._before: dict[str, Allocation] = {}
        #: jobs that would not grow if they could: what they hold, ask for, and are known to make of it
        self._content: dict[str, tuple[Allocation, JobRequest, SpeedModel]] = {}

    def decide(self, state: ClusterState) -> list[Decision]:
        pool = Pool(state.cluster, state.free, state.free_of)
        self._before = {name: held for name, held in self._before.items() if name in state.running}
        decisions = self._give_back(state, pool)
        decisions += self._fall_back(state, pool, {decision.job for decision in decisions})
        busy = {decision.job for decision in decisions}
        without: list[JobView] = []
        for job in sorted(state.waiting.values(), key=lambda job: (-job.request.priority, job.order)):
            taken = self._start(state, job, pool)
            if taken is not None:
                decisions.append(begin(job, Target(taken)))
            elif not self._blind and (self._room or job.first_started_s is not None):
                without.append(job)
        if without:
            room = self._make_room(state, pool, without, busy)
            decisions += room
            busy |= {decision.job for decision in room}
        return decisions + self._grow(state, pool, busy)

    def _start(self, state: ClusterState, job: JobView, pool: Pool) -> Allocation | None:
        least = max(1, job.request.min_devices)
        kinds = self._kinds(state, job)
        if not self._blind:  # a long line costs little while nothing is free
            kinds = [kind for kind in kinds if pool.free_of.get(kind, 0) >= least]
        # Who may mix kinds can give a slow device back when it gets a fast one.
        sign = 1 if job.request.mixes_kinds and self._mix else -1
        kinds.sort(key=lambda kind: sign * job.speed.rate(counts_shape(state.cluster, {kind: least})))
        for kind in kinds[:1] if self._blind else kinds:
            if job.speed.rate(counts_shape(state.cluster, {kind: least})) > 0:
                taken = pool.take(least, kind)
                if taken is not None:
                    return taken
        return None

    def _make_room(self, state: ClusterState, pool: Pool, jobs: list[JobView], busy: set[str]) -> list[Decision]:
        """Jobs that hold more than their minimum give devices back, the one with the most to spare first."""
        surplus = Surplus(state, busy)
        begun: list[Decision] = []
        for job in jobs:
            least = max(1, job.request.min_devices)
            for kind in self._kinds(state, job):
                short = least - pool.free_of.get(kind, 0)
                if short > surplus.most or job.speed.rate(counts_shape(state.cluster, {kind: least})) <= 0:
                    continue
                given = surplus.give(kind, short, job.request.priority)
                if given is None:
                    continue
                pool.give(given)
                taken = pool.take(least, kind)
                assert taken is not None, "as many are free as it needs"
                begun.append(begin(job, Target(taken)))
                break
        for name in surplus.shrunk:
            self._before.pop(name, None)
        return [*surplus.decisions(), *begun]

    def _grow(self, state: ClusterState, pool: Pool, busy: set[str]) -> list[Decision]:
        jobs = [
            job
            for job in active_jobs(state)
            if job.allocation and job.name not in busy and job.request.preemptible and not is_changing(state, job)
        ]
        bids: list[tuple[Proposal, int]] = []
        self._content = {job.name: self._content[job.name] for job in jobs if job.name in self._content}
        for number, job in enumerate(jobs):
            allocation, request, speed = self._content.get(job.name, ((), None, None))
            if speed is job.speed and request is job.request and allocation == job.allocation:
                continue
            held = held_by_kind(state.cluster, job.allocation)
            free = self._bound(state, pool, job)
            kinds = self._kinds(state, job)
            # The artifact takes the best of each kind; otherwise the best few of all.
            groups = [[kind] for kind in kinds] if self._blind else [kinds]
            found = len(bids)
            for group in groups:
                bids += [
                    (bid, number)
                    for bid in growth_proposals(
                        state.cluster,
                        job.request,
                        job.speed,
                        held,
                        {kind: free[kind] for kind in group},
                        top=1 if self._blind else self._top,
                        moves=self._chooses,
                    )
                    if self._is_worth(state, job, bid, held)
                ]
            if len(bids) == found and all(free[kind] >= job.request.max_devices for kind in kinds):
                self._content[job.name] = (job.allocation, job.request, job.speed)
        bids.sort(key=lambda entry: (-round(entry[0].score, 9), -entry[0].added, entry[1]))
        granted: dict[int, Decision] = {}
        for bid, number in bids:
            job = jobs[number]
            if number in granted or pool.free_of.get(bid.kind, 0) < bid.added:
                continue
            grown = pool.grow(job.allocation, bid.added, bid.kind)
            assert grown is not None, "the kind has enough free devices"
            for kind, count in bid.dropped:
                grown = pool.shrink(grown, count, kind)
            granted[number] = Resize(job.name, grown, job.batch)
            self._before[job.name] = job.allocation
        return [granted[number] for number in sorted(granted)]

    def _is_worth(self, state: ClusterState, job: JobView, bid: Proposal, held: Mapping[str, int]) -> bool:
        """Growth is taken at its word, as in the paper; a move to another kind has to pay for the change."""
        moves = bid.kind not in held and not job.request.mixes_kinds
        return not moves or pays(state, job, 1.0, bid.speedup)

    def _give_back(self, state: ClusterState, pool: Pool) -> list[Decision]:
        decisions: list[Decision] = []
        if min(pool.free, default=0) >= 0:
            return decisions
        for job in sorted(active_jobs(state), key=lambda job: (job.request.priority, -job.order)):
            given = tuple((node, min(count, -pool.free[node])) for node, count in job.allocation if pool.free[node] < 0)
            if not given or not job.request.preemptible:
                continue
            less = dict(given)
            rest = tuple((node, n - less.get(node, 0)) for node, n in job.allocation if n > less.get(node, 0))
            if num_devices(rest) < max(1, job.request.min_devices):
                given, rest = job.allocation, ()
            pool.give(given)
            decisions.append(Resize(job.name, rest, job.batch) if rest else Pause(job.name))
        return decisions

    def _fall_back(self, state: ClusterState, pool: Pool, busy: set[str]) -> list[Decision]:
        """A job that is slower than before its last growth gives the new devices back."""
        decisions: list[Decision] = []
        for name, before in list(self._before.items()):
            job = state.running[name]
            if name in busy or is_changing(state, job):
                continue
            now = shape_of(state.cluster, job.allocation)
            holds = dict(job.allocation)
            still_there = all(holds.get(node, 0) >= count for node, count in before)
            if still_there and slowed(job.speed, now, shape_of(state.cluster, before)):
                decisions.append(Resize(name, before, job.batch))
                given = ((node, count - dict(before).get(node, 0)) for node, count in job.allocation)
                pool.give(tuple((node, count) for node, count in given if count))
                del self._before[name]
        return decisions

    def _kinds(self, state: ClusterState, job: JobView) -> list[str]:
        kinds = job.request.kinds or state.cluster.kinds
        present = [kind for kind in kinds if kind in state.cluster.kinds]
        return present if self._chooses or (self._mix and job.request.mixes_kinds) else present[:1]

    def _bound(self, state: ClusterState, pool: Pool, job: JobView) -> Mapping[str, int]:
        if not self._blind:
            return pool.free_of
        held = held_by_kind(state.cluster, job.allocation)
        return {kind: count - held.get(kind, 0) for kind, count in state.capacity_of.items()}


@register("easyscale-homo", summary="EasyScale with every job on its preferred kind")
def _homogeneous(top: int = 3, blind: bool = False) -> EasyScale:
    return EasyScale(mix=False, top=top, blind=blind)

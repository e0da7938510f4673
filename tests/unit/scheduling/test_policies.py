"""Policies one by one: the rule that each is known for, on cases small enough to work out by hand."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from isoscale.errors import UserError
from isoscale.scheduling.allocation import Pool
from isoscale.scheduling.controller import Controller
from isoscale.scheduling.events import (
    AllocationChanged,
    JobEnded,
    JobOffered,
    JobSubmitted,
    JobWithheld,
    SpeedLearned,
)
from isoscale.scheduling.growth import growth_proposals, slowed, waste_share
from isoscale.scheduling.packing import Packer
from isoscale.scheduling.policy import make_policy, policy_names, register
from isoscale.scheduling.state import ClusterState, Decision, JobRequest, Pause, Reject, Resize, Resume, Start
from isoscale.scheduling.throughput import Communication, LogicalWorkerSpeed, TableSpeed
from tests.unit.scheduling.rounds import Work, cluster_of, run, work


def decide(
    policy: str, jobs: list[Work], *groups: tuple[str, int, int], now: float = 0.0, **options: object
) -> dict[str, int]:
    """Devices by job after one round."""
    quotas = options.pop("quotas", None)
    objective = options.pop("objective", "jct")
    controller = Controller(cluster_of(*groups), make_policy(policy, **options), quotas=quotas, objective=objective)  # type: ignore[arg-type]
    for job in jobs:
        controller.feed(JobSubmitted(job.request, job.speed, job.steps), job.request.submitted_s)
    controller.decide(now)
    return {name: view.num_devices for name, view in controller.running.items()}


def test_unknown_policies_are_named_with_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"easyscale.*flow.*tiresias") as caught:
        make_policy("best")
    assert caught.value.field == "--policy"
    assert all(policy_names().values())
    with pytest.raises(ValueError, match="twice"):
        register("flow", summary="again")(lambda: make_policy("flow"))


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("fif", {}, "did you mean fifo?"),
        ("fifo", {"x": 1}, "fifo(x=1): fifo has no option x; it has blocking, locality_s, run_s"),
        ("optimus", {"x": 1}, "optimus has no option x; it has kinds"),
        ("optimus", {"kinds": "any"}, "optimus(kinds=any): unknown word; give one of choose, preferred"),
        ("autoscaler", {"mode": "wait"}, "autoscaler(mode=wait): unknown word; give one of queue, drop"),
        ("tiresias", {"threshold_s": "long"}, "tiresias(threshold_s=long): not a number; give one, such as 57600"),
        ("flow", {"horizon_s": math.nan}, "not a number"),
        ("flow", {"declared": 1}, "neither true nor false"),
        ("easyscale", {"top": 2.5}, "not a whole number"),
        ("easyscale", {"top": True}, "not a whole number"),
    ],
)
def test_options_that_a_policy_does_not_have_or_cannot_use(name: str, options: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=re.escape(words)):
        make_policy(name, **options)
    if name != "fif":
        make_policy(name)


def test_fifo_and_its_lines() -> None:
    jobs = [work("a", workers=3), work("b", workers=2), work("c", workers=1), work("v", workers=1, turn_s={"V100": 1})]
    groups = (("T4", 1, 4), ("V100", 1, 1))
    assert decide("fifo", jobs, *groups) == {"a": 3}
    assert decide("fifo-per-kind", jobs, *groups) == {"a": 3, "v": 1}
    assert decide("fifo-backfill", jobs, *groups) == {"a": 3, "c": 1, "v": 1}


def test_locality_is_asked_for_and_given_up_with_time() -> None:
    jobs = [work("a", workers=3), work("b", workers=3), work("c", workers=2)]
    assert decide("fifo", jobs, ("T4", 2, 4)) == {"a": 3, "b": 3, "c": 2}
    assert decide("fifo", jobs, ("T4", 2, 4), locality_s=600.0) == {"a": 3, "b": 3}
    assert decide("fifo", jobs, ("T4", 2, 4), locality_s=600.0, now=600.0) == {"a": 3, "b": 3, "c": 2}


def test_locality_has_a_price() -> None:
    """Scattered, a job exchanges over the network: 0.5 s on top of a step of 1 s. An hour's run loses half an hour."""
    exchange = Communication(cross_fixed_s=0.5)
    jobs = [work("a", workers=3), work("b", workers=3), work("c", workers=2, communication=exchange)]
    whole = {"a": 3, "b": 3, "c": 2}
    assert decide("fifo", jobs, ("T4", 2, 4), run_s=3600.0) == {"a": 3, "b": 3}
    assert decide("fifo", jobs, ("T4", 2, 4), run_s=3600.0, now=1799.0) == {"a": 3, "b": 3}
    assert decide("fifo", jobs, ("T4", 2, 4), run_s=3600.0, now=1801.0) == whole
    # One that loses nothing does not wait.
    easy = [*jobs[:2], work("c", workers=2)]
    assert decide("fifo", easy, ("T4", 2, 4), run_s=3600.0) == whole


def test_a_trial_runs_on_as_few_devices_as_it_can() -> None:
    jobs = [work("a", workers=4, steps=1e6), work("b", workers=4, steps=1e6, min_devices=2)]
    sizes: list[dict[str, int]] = []

    def look(controller: Controller, decisions: list[Decision]) -> None:
        sizes.append({name: view.num_devices for name, view in controller.running.items()})

    run(cluster_of(("T4", 1, 8)), make_policy("flow", trial_s=120.0), jobs, max_rounds=5, check=look)
    assert sizes == [{"a": 1, "b": 2}] * 2 + [{"a": 4, "b": 4}] * 3


def test_priorities_and_quotas() -> None:
    jobs = [
        work("a", workers=2, tenant="x"),
        work("b", workers=2, tenant="x"),
        work("c", workers=2, tenant="y", priority=0),
    ]
    urgent = [*jobs, work("d", workers=4, tenant="y", priority=2)]
    for policy in ("fifo", "fifo-backfill", "tiresias", "srtf", "flow"):
        assert decide(policy, jobs, ("T4", 1, 4), quotas={"x": 2}) == {"a": 2, "c": 2}, policy
        assert "d" in decide(policy, urgent, ("T4", 1, 4)), policy


def test_tiresias_demotes_by_attained_service() -> None:
    jobs = [work("old", workers=4, steps=1e6), work("new", at=600, workers=4, steps=500)]
    result = run(cluster_of(("T4", 1, 4)), make_policy("tiresias", threshold_s=4 * 1200.0), jobs, max_rounds=60)
    story = [(now, decision) for now, decisions in result.rounds for decision in decisions]
    assert story[0] == (0.0, Start("old", ((0, 4),)))
    assert story[1:3] == [(1200.0, Pause("old")), (1200.0, Start("new", ((0, 4),)))]


def test_a_demoted_job_that_starves_is_promoted() -> None:
    stream = [work(f"s{i}", at=60.0 * i, workers=4, steps=55) for i in range(1, 90)]
    jobs = [work("old", workers=4, steps=1e6), *stream]

    def rounds_of_old(starvation: float) -> int:
        policy = make_policy("tiresias", threshold_s=4 * 600.0, starvation=starvation)
        result = run(cluster_of(("T4", 1, 4)), policy, jobs, max_rounds=90)
        return sum(decision.job == "old" for _, decisions in result.rounds for decision in decisions)

    assert rounds_of_old(0.0) == 2  # started, paused, never again
    assert rounds_of_old(2.0) > 2


def test_elastic_tiresias_expands_by_gain_and_compacts_a_crowd() -> None:
    rooted = TableSpeed(tables={"T4": (0.0, 1.0, 1.4, 1.7, 2.0)})
    flat = TableSpeed(tables={"T4": (0.0, 1.0, 1.1, 1.1, 1.1)})
    request = {"submitted_s": 0.0, "requested_devices": 1, "max_devices": 4, "kinds": ("T4",)}
    jobs = [Work(JobRequest(name="root", **request), rooted, 1.0), Work(JobRequest(name="flat", **request), flat, 1.0)]  # type: ignore[arg-type]
    assert decide("elastic-tiresias", jobs, ("T4", 1, 4)) == {"root": 3, "flat": 1}
    assert decide("elastic-tiresias", jobs, ("T4", 1, 6)) == {"root": 4, "flat": 2}

    crowd = [work("big", workers=4, steps=1e6, min_devices=1)]
    crowd += [work(f"w{i}", at=300, workers=4, steps=1e6, min_devices=2) for i in range(3)]
    policy = make_policy("elastic-tiresias", threshold_s=4 * 300.0, crowd=1)
    result = run(cluster_of(("T4", 1, 5)), policy, crowd, max_rounds=6)
    assert {name: view.num_devices for name, view in result.controller.running.items()}["big"] == 1


def test_optimus_gives_devices_where_they_save_most_time() -> None:
    jobs = [work("long", workers=12, steps=1000), work("short", workers=12, steps=10)]
    assert decide("optimus", jobs, ("T4", 1, 5)) == {"long": 4, "short": 1}


def test_srtf_runs_the_shortest_first() -> None:
    jobs = [work("long", workers=4, steps=1000), work("short", workers=2, steps=10), work("tiny", workers=2, steps=1)]
    assert decide("srtf", jobs, ("T4", 1, 4)) == {"short": 2, "tiny": 2}


def test_autoscaler_queues_or_drops_what_does_not_fit() -> None:
    jobs = [work(f"j{i}", workers=2) for i in range(4)]
    assert decide("autoscaler", jobs, ("T4", 1, 3)) == {"j0": 1, "j1": 1, "j2": 1}
    controller = Controller(cluster_of(("T4", 1, 3)), make_policy("autoscaler", mode="drop"))
    for job in jobs:
        controller.feed(JobSubmitted(job.request, job.speed, None), 0.0)
    assert [d for d in controller.decide(0.0) if isinstance(d, Reject)] == [
        Reject("j3", "no device left for it at its first decision")
    ]


def test_easyscale_starts_small_and_doubles() -> None:
    result = run(cluster_of(("T4", 1, 8)), make_policy("easyscale"), [work("a", workers=8, steps=1e6)], max_rounds=5)
    assert [decisions for _, decisions in result.rounds] == [
        [Start("a", ((0, 1),))],
        [Resize("a", ((0, 2),))],
        [Resize("a", ((0, 4),))],
        [Resize("a", ((0, 8),))],
        [],
    ]


def test_easyscale_falls_back_when_growth_did_harm() -> None:
    controller = Controller(cluster_of(("T4", 1, 4)), make_policy("easyscale"))
    job = work("a", workers=4, steps=1e6)
    controller.feed(JobSubmitted(job.request, job.speed, None), 0.0)
    controller.decide(0.0)
    controller.decide(60.0)
    assert controller.job("a").num_devices == 2
    harmed = LogicalWorkerSpeed(
        num_logical_workers=4, turn_s={"T4": 1.0}, communication=Communication(local_fixed_s=5.0)
    )
    controller.feed(SpeedLearned("a", harmed), 90.0)
    assert controller.decide(120.0) == [Resize("a", ((0, 1),), 0)]
    assert controller.decide(180.0) == []


@pytest.mark.parametrize("room", [False, True])
def test_easyscale_makes_room_for_a_job_that_lost_its_devices(room: bool) -> None:
    controller = Controller(cluster_of(("T4", 1, 2)), make_policy("easyscale", room=room))
    for name in ("a", "b"):
        job = work(name, workers=4, steps=1e6)
        controller.feed(JobSubmitted(job.request, job.speed, None), 0.0)
    assert controller.decide(0.0) == [Start("a", ((0, 1),)), Start("b", ((0, 1),))]
    # It died, and is not to be tried again at once: the other one, which has no end, takes its device.
    controller.feed(AllocationChanged("a", ()), 60.0)
    controller.feed(JobWithheld("a"), 60.0)
    assert controller.decide(60.0) == [Resize("b", ((0, 2),))]
    controller.feed(JobOffered("a"), 90.0)
    assert controller.decide(120.0) == [Resize("b", ((0, 1),)), Resume("a", ((0, 1),))]
    # Nobody has anything to spare now; and whoever never had a device waits its turn, unless there is to be room.
    for name, priority in (("c", 1), ("d", 0)):
        job = work(name, workers=4, steps=1e6, priority=priority)
        controller.feed(JobSubmitted(job.request, job.speed, None), 130.0)
    assert controller.decide(180.0) == []
    controller.feed(JobEnded("a"), 190.0)
    assert controller.decide(240.0) == [Start("c", ((0, 1),))]
    controller.feed(JobEnded("b"), 250.0)
    controller.feed(JobWithheld("d"), 250.0)
    assert controller.decide(300.0) == [Resize("c", ((0, 2),))]
    controller.feed(JobOffered("d"), 310.0)
    assert controller.decide(360.0) == []  # not from one of a higher priority
    job = work("e", workers=4, steps=1e6, priority=1)
    controller.feed(JobSubmitted(job.request, job.speed, None), 370.0)
    assert controller.decide(420.0) == ([Resize("c", ((0, 1),)), Start("e", ((0, 1),))] if room else [])


def test_growth_proposals_by_speedup_per_device() -> None:
    cluster = cluster_of(("V100", 1, 4), ("T4", 1, 4))
    job = work("a", workers=4, turn_s={"V100": 0.5, "T4": 1.0}, mixes_kinds=True)
    found = growth_proposals(cluster, job.request, job.speed, {"T4": 1}, {"V100": 4, "T4": 3})
    assert (found[0].kind, found[0].added, found[0].speedup) == ("V100", 1, pytest.approx(4 / 1.5))
    assert [p.score for p in found] == sorted((p.score for p in found), reverse=True)
    full = growth_proposals(cluster, job.request, job.speed, {"T4": 4}, {"V100": 4})
    assert (full[0].added, full[0].dropped) == (4, (("T4", 4),))
    assert waste_share(job.speed, (("T4", 3),)) == pytest.approx(1 / 3)
    assert slowed(job.speed, (("T4", 1),), (("T4", 2),))
    assert not slowed(job.speed, (("T4", 2),), ())


def test_pollux_shares_evenly_among_equals() -> None:
    jobs = [work(f"j{i}", workers=8, steps=1e6) for i in range(4)]
    assert decide("pollux", jobs, ("T4", 4, 4), now=60.0) == {f"j{i}": 4 for i in range(4)}


def test_flow_prefers_short_jobs_and_lets_nobody_idle() -> None:
    concave = TableSpeed(tables={"T4": (0.0, *np.sqrt(np.arange(1, 9)).tolist())})
    request = {"submitted_s": 0.0, "requested_devices": 8, "max_devices": 8, "kinds": ("T4",)}
    jobs = [Work(JobRequest(name=name, **request), concave, steps) for name, steps in (("long", 1e6), ("short", 1e4))]  # type: ignore[arg-type]
    assert decide("flow", jobs, ("T4", 1, 8)) == {"long": 2, "short": 6}  # heSRPT: a quarter and three quarters


def test_flow_keeps_devices_that_are_not_worth_moving() -> None:
    cluster = cluster_of(("T4", 1, 4))

    def growths(rescale_s: float) -> int:
        jobs = [work("a", workers=4, steps=400), work("b", at=30, workers=4, steps=6)]
        result = run(cluster, make_policy("flow"), jobs, rescale_s=rescale_s, max_rounds=12)
        return sum(isinstance(d, Resize) for _, decisions in result.rounds for d in decisions)

    assert growths(0.0) > growths(300.0)


def test_a_job_that_must_not_be_moved_stays() -> None:
    jobs = [work("pinned", workers=2, steps=1e6, preemptible=False), work("short", at=60, workers=4, steps=50)]
    result = run(cluster_of(("T4", 1, 4)), make_policy("flow"), jobs, max_rounds=10)
    assert [d for _, decisions in result.rounds for d in decisions if d.job == "pinned"] == [Start("pinned", ((0, 2),))]


def test_pool_packs_grows_and_shrinks() -> None:
    pool = Pool(cluster_of(("T4", 3, 4)), [4, 1, 3])
    assert pool.take(5, "T4", max_nodes=1) is None
    assert pool.take(3, "T4") == ((2, 3),)
    assert pool.take(6, "T4") is None
    assert pool.grow(((2, 3),), 2, "T4") == ((0, 2), (2, 3))
    assert pool.shrink(((0, 2), (2, 3)), 2, "T4") == ((2, 3),)
    assert pool.take(2, "T4", most_free_first=True) == ((0, 2),)
    assert not pool.grab(((0, 3),))
    assert pool.free == [2, 1, 0]


def test_a_scattered_job_swaps_with_a_large_one_if_it_pays() -> None:
    cluster = cluster_of(("T4", 2, 4))
    far = Communication(local_fixed_s=0.1, cross_fixed_s=2.0)
    small = work("small", workers=4, steps=1e6, communication=far)
    large = work("large", workers=6, steps=1e6, communication=far, max_devices=6)
    seen: list[ClusterState] = []

    class Fixed:
        interval_s, oracle, watches_time = 60.0, False, False

        def decide(self, state: ClusterState) -> list[Decision]:
            seen.append(state)
            return [Start("large", ((0, 2), (1, 2)))] if len(seen) == 1 else []

    for horizon_s, expected in [(3600.0, ((0, 4),)), (1.0, ((0, 2), (1, 2)))]:
        seen.clear()
        controller = Controller(cluster, Fixed(), rescale_s=30.0)
        controller.feed(JobSubmitted(large.request, large.speed, None), 0.0)
        controller.decide(0.0)
        controller.feed(JobSubmitted(small.request, small.speed, None), 1.0)
        state = controller.state(60.0)
        packer = Packer(state=state, worth={"small": 1.0, "large": 1.0}, horizon_s=horizon_s)
        jobs = [*state.running.values(), *state.waiting.values()]
        placed = packer.pack(jobs, {"small": (("T4", 4),), "large": (("T4", 4),)})
        assert sorted(n for where in placed.values() for n, _ in where) in ([0, 1], [0, 0, 1, 1])
        if horizon_s > 1:
            assert len(placed["small"]) == 1
            assert len(placed["large"]) == 1
        else:
            assert placed == {"large": ((0, 2), (1, 2)), "small": expected}

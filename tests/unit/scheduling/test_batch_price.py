"""A batch size is left for another one only if that is worth the change: no flipping to and fro."""

from __future__ import annotations

import random

import pytest

from isoscale.scheduling.batched import BatchedSpeed
from isoscale.scheduling.changes import batch_for
from isoscale.scheduling.controller import Controller
from isoscale.scheduling.events import JobSubmitted, SpeedLearned
from isoscale.scheduling.policy import make_policy
from isoscale.scheduling.state import Cluster, JobRequest, JobView, Node

CLUSTER = Cluster(nodes=(Node(name="local", kind="cpu", num_devices=2),))
WORKERS, SIZES = 2, (8, 16)
SHAPE = (("cpu", 2),)


def request(restart_s: float = 0.1) -> JobRequest:
    return JobRequest(
        name="a",
        submitted_s=0.0,
        requested_devices=2,
        num_logical_workers=WORKERS,
        min_devices=2,
        max_devices=2,
        requested_batch=8 * WORKERS,
        min_batch=8 * WORKERS,
        max_batch=16 * WORKERS,
        batch_sizes=tuple(size * WORKERS for size in SIZES),
        restart_s=restart_s,
    )


def speed(size: int, gain: float) -> BatchedSpeed:
    """A step of 16 has so much more rate than one of 8: (16 / 8) * turn(8) / turn(16) = 1 + gain."""
    per_sample = (2 / (1 + gain) - 1) * 0.1 / 8
    fixed = 0.1 - 8 * per_sample
    return BatchedSpeed(num_logical_workers=WORKERS, turns={"cpu": (fixed, per_sample)}, sizes=SIZES, size=size)


def changes(policy: str, gains: list[float], late: int = 2) -> list[tuple[int, int]]:
    """(round, size) of every change of size that is decided, a round a second; the job follows `late` rounds after."""
    controller = Controller(CLUSTER, make_policy(policy), interval_s=1.0)
    controller.feed(JobSubmitted(request(), speed(8, gains[0]), None), 0.0)
    found: list[tuple[int, int]] = []
    decided = [8]
    for now, gain in enumerate(gains):
        for decision in controller.decide(float(now)):
            size = decision.batch // WORKERS  # type: ignore[union-attr]
            if size != decided[-1]:
                found.append((now, size))
        decided.append(controller.job("a").batch // WORKERS)
        controller.feed(SpeedLearned("a", speed(decided[max(0, len(decided) - 1 - late)], gain)), float(now))
    return found


@pytest.mark.parametrize("policy", ["autoscaler", "pollux"])
def test_steady_inputs_are_answered_once(policy: str) -> None:
    assert [size for _, size in changes(policy, [0.18] * 300)] in ([16], [])
    assert changes(policy, [0.03] * 300) == []
    assert changes(policy, [-0.2] * 300) == []


@pytest.mark.parametrize("policy", ["autoscaler", "pollux"])
def test_measurements_that_differ_do_not_move_a_job_to_and_fro(policy: str) -> None:
    rng = random.Random(7)
    for middle in (0.0, 0.05):
        gains = [middle + rng.uniform(-0.08, 0.08) for _ in range(600)]
        found = changes(policy, gains)
        # Whatever chance has it do at first, it soon stays.
        assert len(found) <= 3, found
        assert all(at < 200 for at, _ in found), found


@pytest.mark.parametrize("policy", ["autoscaler", "pollux"])
def test_a_gain_that_is_real_and_lasts_is_taken_however_often_the_size_was_changed(policy: str) -> None:
    gains = [0.4] * 60 + [-0.4] * 60 + [0.4] * 60 + [-0.4] * 60 + [0.4] * 60 + [-0.4] * 60
    sizes = [size for _, size in changes(policy, gains)]
    assert sizes[-4:] == [16, 8, 16, 8]


def test_a_job_that_has_just_come_or_has_changed_a_lot_pays_more() -> None:
    def chosen(held_s: float, gain: float, restarts: int = 0, rebatches: int = 0, moves: bool = False) -> int:
        state = Controller(CLUSTER, make_policy("autoscaler")).state(held_s)
        job = JobView(
            request=request(restart_s=1.0),
            speed=speed(8, gain),
            allocation=((0, 2),),
            status="running",
            batch=16 * WORKERS,
            first_started_s=0.0,
            num_restarts=restarts,
            num_rebatches=rebatches,
        )
        return batch_for(state, job, SHAPE, moves=moves) // WORKERS

    assert chosen(100.0, -0.1) == 8  # 11 % faster
    assert chosen(5.0, -0.1) == 16
    assert chosen(100.0, -0.1, restarts=20) == 16
    assert chosen(100.0, -0.1, rebatches=3) == 16
    assert chosen(5.0, -0.1, moves=True) == 8
    assert chosen(5.0, -0.3, rebatches=100, moves=True) == 8

"""Jobs of one application learn from each other, and one odd job spoils it for nobody."""

from __future__ import annotations

import pytest

from isoscale.scheduling.controller import Controller
from isoscale.scheduling.events import JobSubmitted, SpeedLearned
from isoscale.scheduling.experience import Experience
from isoscale.scheduling.measured import MeasuredSpeed
from isoscale.scheduling.policy import make_policy
from isoscale.scheduling.state import JobRequest
from isoscale.scheduling.throughput import TableSpeed
from tests.unit.scheduling.rounds import cluster_of

PRIOR = MeasuredSpeed(points={}, relative={"V100": 2.5, "T4": 1.0})


def measured(**points: float) -> MeasuredSpeed:
    """`T4x2=3.0`: a rate of 3 on two T4."""
    return MeasuredSpeed(
        points={(name.split("x")[0], int(name.split("x")[1])): rate for name, rate in points.items()},
        relative=PRIOR.relative,
    )


def points_of(model: object) -> dict[tuple[str, int], float]:
    assert isinstance(model, MeasuredSpeed)
    return {key: round(rate, 6) for key, rate in model.points.items()}


def test_the_next_job_knows_what_others_measured() -> None:
    book = Experience()
    assert book.informed("bert", PRIOR) is PRIOR
    assert book.note("bert", "a", measured(T4x1=1.0, T4x4=3.0))
    assert not book.note("bert", "b", measured(T4x1=1.2)), "nothing new"
    assert points_of(book.informed("bert", PRIOR)) == {("T4", 1): 1.0, ("T4", 4): 3.0}
    assert book.informed("resnet", PRIOR) is PRIOR, "another application"
    assert not book.note("", "c", measured(T4x8=9.0)), "who has no name gives nothing"


def test_what_is_shared_is_the_curve_at_the_jobs_own_level() -> None:
    book = Experience()
    book.note("bert", "a", measured(T4x1=1.0, T4x4=3.0, V100x1=2.0))
    own = measured(T4x1=10.0)
    assert points_of(book.informed("bert", own)) == {("T4", 1): 10.0, ("T4", 4): 30.0, ("V100", 1): 20.0}
    # One at ten times the rate is brought to the others' level before it counts.
    book.note("bert", "b", measured(T4x1=10.0, T4x8=50.0))
    assert points_of(book.informed("bert", PRIOR))[("T4", 8)] == 5.0


def test_one_odd_job_moves_little_and_is_left_to_itself() -> None:
    book = Experience()
    for name in "abc":
        book.note("bert", name, measured(T4x1=1.0, T4x4=3.6))
    odd = measured(T4x1=1.0, T4x4=1.1)
    book.note("bert", "odd", odd)
    assert points_of(book.informed("bert", PRIOR))[("T4", 4)] > 3.0
    assert book.informed("bert", odd) is odd


def test_only_the_last_jobs_count() -> None:
    book = Experience()
    for number in range(40):
        book.note("bert", str(number), measured(T4x1=1.0, T4x2=2.0 if number < 8 else 1.5))
    assert points_of(book.informed("bert", PRIOR))[("T4", 2)] == 1.5


def request(name: str, application: str = "bert") -> JobRequest:
    return JobRequest(
        name=name, submitted_s=0.0, requested_devices=1, max_devices=8, kinds=("T4", "V100"), application=application
    )


@pytest.mark.parametrize("shares", [True, False])
def test_the_controller_tells_jobs_that_wait_and_jobs_that_come(shares: bool) -> None:
    controller = Controller(cluster_of(("T4", 1, 8)), make_policy("flow"), shares=shares)
    for name in ("first", "waits"):
        controller.feed(JobSubmitted(request(name), PRIOR), 0.0)
    controller.feed(JobSubmitted(request("other", "resnet"), PRIOR), 0.0)
    controller.feed(SpeedLearned("first", measured(T4x4=3.0)), 60.0)
    controller.feed(JobSubmitted(request("comes"), PRIOR), 61.0)
    told = {("T4", 4): 3.0} if shares else {}
    assert points_of(controller.job("waits").speed) == points_of(controller.job("comes").speed) == told
    assert points_of(controller.job("other").speed) == {}
    # What a job measured itself goes before what it was told, and is not passed on as somebody else's.
    controller.feed(SpeedLearned("comes", measured(T4x4=6.0)), 120.0)
    assert points_of(controller.job("comes").speed) == {("T4", 4): 6.0}
    assert points_of(controller.job("first").speed) == {("T4", 4): 3.0}


def test_models_that_are_not_made_of_points_stay_as_they_are() -> None:
    controller = Controller(cluster_of(("T4", 1, 8)), make_policy("flow"))
    table = TableSpeed(tables={"T4": (0.0, 1.0)})
    controller.feed(JobSubmitted(request("a"), PRIOR), 0.0)
    controller.feed(SpeedLearned("a", measured(T4x1=2.0)), 1.0)
    controller.feed(JobSubmitted(request("b"), table), 2.0)
    assert controller.job("b").speed is table

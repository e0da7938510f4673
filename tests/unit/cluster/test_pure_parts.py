"""What is decided without a process: why, adoption, learning, forecasts, logs, the guards' parsing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from isoscale.cluster.adoption import Found, adopt
from isoscale.cluster.forecast import KnownJob, error_shares, forecast, with_ranges
from isoscale.cluster.growth import wanted
from isoscale.cluster.learning import Learner, first_guess
from isoscale.cluster.logs import log_files, log_page
from isoscale.cluster.outcome import Outcome, forget_summary, outcome_of
from isoscale.cluster.picture import Estimate, JobPicture, NodePicture, Picture
from isoscale.cluster.requests import request_of
from isoscale.cluster.values import ENDED, NEXT, JobRecord, Submission, check_transition
from isoscale.cluster.why import REASONS, explain
from isoscale.scheduling.driving import (
    CancelAsked,
    JobAdopted,
    PauseAsked,
    ResumeAsked,
    RunEnded,
    Standing,
)
from isoscale.scheduling.events import JobSubmitted
from isoscale.scheduling.policy import make_policy
from isoscale.scheduling.state import Cluster, ClusterState, Decision, Node
from isoscale.sim.costs import Costs

CLUSTER = Cluster(nodes=(Node(name="local", kind="cpu", num_devices=2),))
DEVICES = ("local/cpu/0", "local/cpu/1")


def a_job(number: int = 1, **fields: object) -> JobRecord:
    submission = Submission(code="c", workers=4, **fields.pop("submission", {}))  # type: ignore[arg-type]
    base = JobRecord(id=f"j{number}", number=number, submission=submission, name="n", tenant="t", owner="o")
    return replace(base, **fields)  # type: ignore[arg-type]


def a_picture(jobs: dict[str, JobPicture], queue: tuple[str, ...] = (), **fields: object) -> Picture:
    nodes = (NodePicture(name="local", kind="cpu", devices=DEVICES),)
    tenants = dict.fromkeys(jobs, "t")
    return Picture(t=100.0, policy="fifo", nodes=nodes, jobs=jobs, queue=queue, tenants=tenants, **fields)  # type: ignore[arg-type]


WAITS, HOLDS = (
    JobPicture(standing=Standing()),
    JobPicture(standing=Standing(state="running", granted=DEVICES, holds=DEVICES)),
)


@pytest.mark.parametrize(
    ("reason", "job", "mine", "fields"),
    [
        ("ended", {"state": "finished", "step": 7}, WAITS, {}),
        ("cancelling", {"wanted": "cancel"}, WAITS, {}),
        ("paused_by_owner", {"wanted": "pause"}, WAITS, {}),
        ("dependency", {}, replace(WAITS, waits_for=("j9",)), {}),
        ("unknown_kind", {"submission": {"kinds": ("cpu-sse",)}}, WAITS, {}),
        ("too_large", {"submission": {"min_devices": 3}}, WAITS, {}),
        ("retry_later", {}, JobPicture(standing=Standing(failures=2, not_before_s=104.0)), {}),
        ("silent", {}, replace(HOLDS, standing=replace(HOLDS.standing, is_silent=True)), {}),
        ("starting", {}, replace(HOLDS, standing=replace(HOLDS.standing, state="starting")), {}),
        ("releasing", {}, JobPicture(standing=Standing(wanted=((0, 1),))), {}),
        ("running", {}, HOLDS, {}),
        ("quota", {}, WAITS, {"quotas": {"t": 2}}),
        ("preempted", {"started_s": 1.0}, WAITS, {}),
        ("no_free_device", {}, WAITS, {}),
    ],
)
def test_why(reason: str, job: dict[str, object], mine: JobPicture, fields: dict[str, object]) -> None:
    jobs = {"j1": mine, "j2": HOLDS} if mine is not HOLDS else {"j1": mine}
    why = explain(a_job(**job), a_picture(jobs, ("j1",) if not mine.standing.granted else (), **fields))
    assert why.reason == reason
    assert reason in REASONS
    assert why.text


def test_why_gives_numbers_places_and_holders() -> None:
    jobs = {"j1": WAITS, "j2": HOLDS, "j3": WAITS}
    estimates = {"j3": Estimate(start_s=110.0, end_s=120.0, start_range_s=(105.0, 130.0))}
    why = explain(a_job(3), a_picture(jobs, ("j1", "j3"), estimates=estimates))
    assert (why.position, why.ahead, why.holders) == (2, ("j1",), {"j2": 2})
    assert why.text == "needs 1 device, 0 of 2 are free; 1 job holds the rest; place 2 of 2"
    assert why.numbers == {"free": 0, "needed": 1, "total": 2}
    assert (why.estimated_start_s, why.estimated_end_s, why.start_range_s) == (110.0, 120.0, (105.0, 130.0))


def test_free_devices_wait_for_the_policy() -> None:
    assert explain(a_job(), a_picture({"j1": WAITS}, ("j1",), decides_in_s=0.4)).reason == "decision_due"
    assert explain(a_job(), a_picture({"j1": WAITS}, ("j1",))).reason == "policy"


def test_a_cluster_that_grows_is_asked_for_what_waiting_jobs_need() -> None:
    jobs = {"j1": WAITS, "j2": HOLDS, "j3": WAITS, "j4": WAITS}
    waiting = [a_job(1, submission={"min_devices": 3}), a_job(3, submission={"kinds": ("cpu-sse",)})]
    picture = a_picture(jobs, ("j1", "j3", "j4"))
    assert wanted([*waiting, a_job(2)], picture) == {"cpu": 5, "cpu-sse": 1}
    paused = a_job(4, wanted="pause")
    assert wanted([a_job(2), paused], picture) == {}, "what is held is no reason to ask, and neither is a pause"
    assert wanted([a_job(1)], a_picture(jobs, ("j1",), quotas={"t": 2})) == {}, "another device would not help"


def adopted(
    record: JobRecord, saved: Standing | None, *, outcome: str = "died", up: bool = False, alive: tuple[str, ...] = ()
):
    submitted = JobSubmitted(request_of(record, CLUSTER), first_guess(4, ("cpu",)))
    found = Found(outcome=Outcome(kind=outcome), is_up=up, alive=alive)  # type: ignore[arg-type]
    return adopt(record, saved, found, submitted, frozenset(DEVICES), 110.0)


RAN = Standing(state="running", attempt=3, number=5, granted=DEVICES[:1], holds=DEVICES[:1], is_up=True)


def test_a_result_counts_more_than_anything() -> None:
    assert adopted(a_job(), RAN, outcome="finished", alive=DEVICES[:1]).over == "finished"


def test_a_coordinator_that_lives_is_watched() -> None:
    found = adopted(a_job(), RAN, up=True)
    assert found.watch
    [event] = found.events
    assert isinstance(event, JobAdopted)
    assert event.standing.holds == DEVICES[:1]


def test_a_dead_coordinator_whose_executors_live_keeps_their_devices() -> None:
    first, then = adopted(a_job(), RAN, alive=DEVICES).events
    assert isinstance(first, JobAdopted)
    assert set(first.standing.holds) == set(DEVICES)
    assert then == RunEnded(
        "j1", 3, "died", reason="it was not there when the service came back", alive=DEVICES, progressed=True
    )


def test_wishes_that_nobody_had_heard_of() -> None:
    assert [type(e) for e in adopted(a_job(wanted="pause"), RAN, up=True).events] == [JobAdopted, PauseAsked]
    assert [type(e) for e in adopted(a_job(wanted="cancel"), None).events] == [JobSubmitted, CancelAsked]
    paused = replace(RAN, state="paused", is_up=False, is_paused_by_owner=True)
    assert [type(e) for e in adopted(a_job(), paused).events] == [JobAdopted, ResumeAsked]


def test_devices_that_are_no_more_are_left_out() -> None:
    saved = replace(RAN, granted=("gone/cpu/7", DEVICES[0]), holds=("gone/cpu/7",), avoids=("gone/cpu/7",))
    [event] = adopted(a_job(), saved, up=True).events
    assert isinstance(event, JobAdopted)
    assert (event.standing.granted, event.standing.holds, event.standing.avoids) == (DEVICES[:1], DEVICES[:1], ())
    assert event.standing.number == saved.number + 1


def test_speeds_are_learned_and_told_once() -> None:
    learner = Learner(workers=4, kinds=("cpu",))
    executors = [{"executor": e, "kind": "cpu", "logical_workers": [0, 1], "turn_s": 0.2} for e in range(2)]
    status = {"state": "training", "step": 100, "steps_per_s": 2.0, "executors": executors}
    assert learner.model() is None
    for step in (10, 20, 35):
        learner.look({**status, "step": step})  # type: ignore[arg-type,typeddict-item]
    model = learner.model()
    assert model is not None
    assert model.turn_s == {"cpu": 0.2}
    assert model.step_s((("cpu", 2),)) == pytest.approx(0.5)
    assert model.step_s((("cpu", 1),)) == pytest.approx(0.8)
    learner.look(status)  # type: ignore[arg-type]
    assert learner.model() is None
    learner.look({**status, "state": "recovering", "steps_per_s": 99.0})  # type: ignore[arg-type]
    assert learner.model() is None


def test_the_pace_of_the_devices_before_is_not_taken_for_that_of_the_new_ones() -> None:
    learner = Learner(workers=4, kinds=("cpu",))

    def look(step: int, executors: int, steps_per_s: float) -> None:
        each = [{"executor": e, "kind": "cpu", "logical_workers": [e], "turn_s": 0.1} for e in range(executors)]
        learner.look({"state": "training", "step": step, "steps_per_s": steps_per_s, "executors": each})  # type: ignore[typeddict-item]

    look(0, 1, 0.5)  # the first step of a process is a slow one
    look(40, 1, 2.5)
    look(41, 2, 2.5)  # still the mean of one device
    look(50, 2, 3.5)
    assert list(learner.points) == [(("cpu", 1),)]
    look(70, 2, 4.8)
    assert {devices: round(1 / point.step_s, 1) for devices, point in learner.points.items()} == {
        (("cpu", 1),): 2.5,
        (("cpu", 2),): 4.8,
    }


def known(number: int, remaining: float | None, *, running: bool = False) -> KnownJob:
    record = a_job(number, submission={"max_devices": 1})
    return KnownJob(
        request=request_of(record, CLUSTER), speed=first_guess(4, ("cpu",)), remaining=remaining, running=running
    )


def test_a_forecast_is_what_the_simulator_says() -> None:
    jobs = [known(1, 10.0, running=True), known(2, 100.0, running=True), known(3, 10.0), known(4, None), known(5, 1.0)]
    found = forecast(jobs, CLUSTER, make_policy("fifo"), 1000.0, costs=Costs(), interval_s=0.0, quotas={})
    # 0.1 s a turn, four turns a step.
    assert found["j1"].start_s is None
    assert found["j1"].end_s == pytest.approx(1004.0, abs=0.01)
    assert found["j3"].start_s == pytest.approx(1004.0, abs=0.01)
    assert found["j3"].end_s == pytest.approx(1008.0, abs=0.01)
    assert found["j4"].start_s == pytest.approx(1008.0, abs=0.01)
    assert found["j4"].end_s is None
    # Behind one that may never end only the other device is left.
    assert found["j5"].start_s == pytest.approx(1040.0, abs=0.01)


@pytest.mark.parametrize("works", [[None, None, None], [None, 10.0, 100_000.0, None]])
def test_a_forecast_asks_a_policy_that_watches_time_a_bounded_number_of_times(works: list[float | None]) -> None:
    policy, asked = make_policy("easyscale"), 0
    decide = policy.decide

    def counted(state: ClusterState) -> list[Decision]:
        nonlocal asked
        asked += 1
        return decide(state)

    policy.decide = counted  # type: ignore[method-assign]
    jobs = [known(number, work, running=number < 2) for number, work in enumerate(works)]
    found = forecast(jobs, CLUSTER, policy, 1000.0, costs=Costs(), interval_s=0.5, quotas={})
    assert 0 < asked < 1100
    assert [one.end_s is None for one in found.values()] == [work is None for work in works]


def test_ranges_come_from_earlier_errors() -> None:
    assert error_shares([]) == (0.5, 2.0)
    past = [(0.0, 10.0, 10.0 + late) for late in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10)]
    low, high = error_shares(past)
    assert (low, high) == pytest.approx((1.1, 1.9))
    [one] = with_ranges({"j1": Estimate(start_s=110.0, end_s=None)}, 100.0, (low, high), (1.0, 1.0)).values()
    assert one.start_range_s == pytest.approx((111.0, 119.0))
    assert one.end_range_s is None


def test_states_only_go_where_they_may() -> None:
    for state in ENDED:
        assert not NEXT[state]
    with pytest.raises(ValueError, match="finished cannot become running"):
        check_transition("j1", "finished", "running")


def test_pages_of_a_log(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    lines = [f"line {number}\n" for number in range(200_000)]
    (tmp_path / "logs" / "executor-3.log").write_text("".join(lines))
    (tmp_path / "logs" / "strange.log").write_text("no")
    assert [one.source for one in log_files(tmp_path)] == ["coordinator", "3"]
    text, offset = "", 0
    while (page := log_page(tmp_path, "3", offset)).text:
        assert page.offset == offset
        assert page.text.endswith("\n")
        text, offset = text + page.text, page.next_offset
    assert text == "".join(lines)
    last = log_page(tmp_path, "3", -30)
    assert last.text == "line 199998\nline 199999\n"
    assert log_page(tmp_path, "77", 0).text == ""


def test_how_a_run_ended(tmp_path: Path) -> None:
    assert outcome_of(tmp_path).kind == "died"
    (tmp_path / "summary.json").write_text('{"exit_code": 1, "step": 3, "error": "ValueError: no", "digest": ""}')
    failed = outcome_of(tmp_path)
    assert (failed.kind, failed.error, failed.error_class) == ("failed", "ValueError: no", "script")
    assert forget_summary(tmp_path)
    assert outcome_of(tmp_path).kind == "died"
    (tmp_path / "summary.json").write_text('{"exit_code": 0, "step": 3, "digest": "d"}')
    assert not forget_summary(tmp_path)
    assert outcome_of(tmp_path).kind == "finished"
    (tmp_path / "summary.json").write_text('{"exit_code": 0, "st')
    assert outcome_of(tmp_path).kind == "died"


def test_what_was_measured_long_ago_on_other_devices_fades() -> None:
    learner = Learner(workers=2, kinds=("cpu",))
    learner.learn_point((("cpu", 2),), 9.0, 3)
    member = {"kind": "cpu", "logical_workers": [0, 1], "turn_s": 0.1}
    status = {"state": "training", "executors": [member], "steps_per_s": 5.0}
    for step in range(300):
        learner.look({**status, "step": step})  # type: ignore[arg-type,typeddict-item]
    assert list(learner.points) == [(("cpu", 1),)]
    model = learner.model()
    assert model is not None
    assert model.rate((("cpu", 2),)) > 1.5 * model.rate((("cpu", 1),))

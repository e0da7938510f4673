"""The driver's rules one by one: what is told, what is to be done about it."""

from __future__ import annotations

from isoscale.scheduling.controller import Controller
from isoscale.scheduling.driver import Driver, device_names
from isoscale.scheduling.driving import (
    CancelAsked,
    DeviceFailed,
    DevicesReleased,
    GrantReported,
    Instruction,
    JobAdopted,
    KillRun,
    Launch,
    PauseAsked,
    PauseRun,
    ReclaimAsked,
    ResumeAsked,
    ReturnDevices,
    RunEnded,
    RunSilent,
    SendGrant,
    Standing,
)
from isoscale.scheduling.events import JobSubmitted, RequestChanged
from isoscale.scheduling.state import Allocation, ClusterState, Decision, Pause, Resize, Resume, Start
from tests.unit.scheduling.rounds import cluster_of, work


class Scripted:
    """Says what the test tells it to."""

    interval_s, oracle, watches_time, gang = 0.0, False, True, False

    def __init__(self) -> None:
        self.wanted: dict[str, Allocation] = {}

    def decide(self, state: ClusterState) -> list[Decision]:
        decisions: list[Decision] = []
        for name, allocation in self.wanted.items():
            job = state.running.get(name) or state.waiting.get(name)
            if job is None or job.allocation == allocation:
                continue
            if not allocation:
                decisions.append(Pause(name))
            elif job.allocation:
                decisions.append(Resize(name, allocation))
            else:
                decisions.append((Start if job.status == "pending" else Resume)(name, allocation))
        return decisions


class Bench:
    """Two nodes of two devices each, and jobs a, b, c of up to four."""

    def __init__(self, *jobs: str, retries: int = 1) -> None:
        cluster = cluster_of(("T4", 2, 2))
        self.policy = Scripted()
        self.driver = Driver(
            Controller(cluster, self.policy, interval_s=0.0),
            device_names(cluster),
            retry=lambda job, error, failures: error != "user" and failures <= retries,
            backoff_s=lambda failures: 10.0 * failures,
        )
        for name in jobs:
            self.tell(self.submission(name))

    @staticmethod
    def submission(name: str) -> JobSubmitted:
        one = work(name, workers=4)
        return JobSubmitted(one.request, one.speed, one.steps)

    def tell(self, *events: object, now: float = 0.0) -> list[Instruction]:
        out = self.driver.handle(*events, now=now)  # type: ignore[arg-type]
        self.driver.validate()
        return out

    def want(self, now: float = 0.0, **wanted: Allocation) -> list[Instruction]:
        self.policy.wanted.update(wanted)
        out = self.driver.decide(now)
        self.driver.validate()
        return out

    def settle(self, job: str, now: float = 0.0) -> list[Instruction]:
        standing = self.driver.standing(job)
        return self.tell(GrantReported(job, standing.number, standing.granted), now=now)


def kinds_of(instructions: list[Instruction]) -> list[str]:
    return [type(one).__name__ for one in instructions if type(one).__name__ != "StateChanged"]


def test_growth_waits_until_the_release_is_confirmed_by_the_grant_that_took_the_device() -> None:
    bench = Bench("a", "b")
    bench.want(a=((0, 2), (1, 2)))
    bench.settle("a")
    shrunk = bench.want(a=((0, 2),), b=((1, 2),))
    assert kinds_of(shrunk) == ["SendGrant"]
    assert bench.driver.standing("b").state == "queued"
    # A report by the older grant says nothing; one that still holds a device frees only the other.
    assert not kinds_of(bench.tell(GrantReported("a", 1, ())))
    held = ("T4-0/T4/0", "T4-0/T4/1", "T4-1/T4/0")
    assert not kinds_of(bench.tell(GrantReported("a", 2, held, is_settled=False)))
    launched = bench.tell(GrantReported("a", 2, held[:2]))
    assert [one.grant.devices for one in launched if isinstance(one, Launch)] == [("T4-1/T4/0", "T4-1/T4/1")]
    assert bench.driver.standing("a").state == "running"


def test_a_pause_overtakes_a_change_and_a_resume_waits_for_the_end_of_the_pause() -> None:
    bench = Bench("a")
    bench.want(a=((0, 1),))
    bench.settle("a")
    grown = bench.want(a=((0, 2),))
    paused = bench.tell(PauseAsked("a"))
    assert isinstance(grown[0], SendGrant)
    assert isinstance(paused[0], PauseRun)
    assert paused[0].grant.number > grown[0].grant.number
    assert not paused[0].grant.devices
    # The policy has no say about it, not even while it goes.
    assert not kinds_of(bench.want(a=((1, 2),)))
    assert not kinds_of(bench.tell(ResumeAsked("a")))
    assert not kinds_of(bench.want(a=((1, 2),)))
    launched = bench.tell(RunEnded("a", 1, "paused"))
    assert isinstance(launched[1], Launch)
    assert launched[1].goes_on
    assert launched[1].attempt == 2


def test_a_silent_run_keeps_its_devices_and_blocks_nobody() -> None:
    bench = Bench("a", "b")
    bench.want(a=((0, 2),))
    bench.settle("a")
    bench.tell(RunSilent("a"))
    state = bench.driver.controller.state(0.0)
    assert list(state.capacity) == [0, 2]
    assert not state.running
    launched = bench.want(b=((1, 2),))
    assert kinds_of(launched) == ["Launch"]
    # Wanted back by their owner they are taken, written down at once, and killed when the time is over.
    taken = bench.tell(ReclaimAsked("r", 0, 1, 5.0), now=1.0)
    assert [one.grant.devices for one in taken if isinstance(one, SendGrant)] == [("T4-0/T4/0",)]
    late = bench.driver.decide(5.0)
    assert KillRun("a", ("T4-0/T4/1",), False, "its time is over") in late


def test_failures_are_tried_again_by_class_within_a_budget_and_after_a_while() -> None:
    bench = Bench("a")
    bench.want(a=((0, 1),))
    bench.tell(RunEnded("a", 1, "failed", "lost"))
    assert bench.driver.standing("a").state == "queued"
    assert not kinds_of(bench.want(now=9.0))
    assert bench.driver.next_due_s(9.0) == 10.0
    assert kinds_of(bench.want(now=10.0)) == ["Launch"]
    # Steps that nobody had made before give the budget back; a pause never takes from it.
    bench.tell(RunEnded("a", 2, "failed", "lost", progressed=True), now=11.0)
    assert bench.driver.standing("a").failures == 1
    assert kinds_of(bench.want(now=30.0)) == ["Launch"]
    over = bench.tell(RunEnded("a", 3, "failed", "user"), now=31.0)
    assert over[-1].new == "failed"
    assert "a" not in bench.driver


def test_a_dead_coordinator_is_followed_by_another_with_the_same_grant() -> None:
    bench = Bench("a")
    bench.want(a=((0, 2),))
    bench.settle("a")
    again = bench.tell(RunEnded("a", 1, "died", alive=("T4-0/T4/1",)))
    assert isinstance(again[0], Launch)
    assert again[0].goes_on
    assert again[0].grant.number == 1
    assert again[0].grant.devices == ("T4-0/T4/0", "T4-0/T4/1")
    # If it died while it was told to pause, the next one is told so by a grant of nothing.
    bench.tell(PauseAsked("a"))
    again = bench.tell(RunEnded("a", 2, "died", alive=("T4-0/T4/1",), progressed=True))
    assert isinstance(again[0], Launch)
    assert not again[0].grant.devices
    assert bench.driver.standing("a").state == "pausing"


def test_where_no_coordinator_can_be_started_what_is_left_of_the_run_is_ended_and_it_waits() -> None:
    """Neither at once again, without end, nor with the devices in somebody else's hands."""
    bench = Bench("a")
    bench.driver._retries.counts = lambda error: error != "machine"
    bench.want(a=((0, 2),))
    bench.settle("a")
    alive = ("T4-0/T4/1",)
    assert kinds_of(bench.tell(RunEnded("a", 1, "died", alive=alive))) == ["Launch"]
    out = bench.tell(RunEnded("a", 2, "died", "machine", alive=alive), now=1.0)
    assert [one.devices for one in out if isinstance(one, KillRun)] == [alive]
    assert kinds_of(out) == ["KillRun"]
    assert bench.driver.free_devices(0) == ("T4-0/T4/0",)
    bench.tell(DevicesReleased("a", alive), now=2.0)
    assert bench.driver.free_devices(0) == ("T4-0/T4/0", "T4-0/T4/1")
    assert bench.driver.standing("a").state == "queued"
    assert bench.driver.standing("a").not_before_s == 11.0


def test_a_device_that_its_job_gives_up_is_taken_back_and_avoided() -> None:
    bench = Bench("a")
    bench.want(a=((0, 2),))
    bench.settle("a")
    out = bench.tell(GrantReported("a", 1, ("T4-0/T4/1",), given_up=("T4-0/T4/0",), reason="slow"))
    assert isinstance(out[0], SendGrant)
    assert out[0].grant.devices == ("T4-0/T4/1",)
    assert bench.driver.controller.job("a").num_devices == 1
    assert bench.driver.standing("a").avoids == ("T4-0/T4/0",)


def test_a_reclaim_takes_free_devices_first_and_answers_when_all_are_free() -> None:
    bench = Bench("a")
    bench.want(a=((0, 1),))
    bench.settle("a")
    asked = bench.tell(ReclaimAsked("r", 0, 2, 2.0))
    assert kinds_of(asked) == ["PauseRun"]
    assert asked[0].grant.deadline_s == 2.0
    back = bench.tell(RunEnded("a", 1, "paused", abandoned_s=0.7), now=1.0)
    assert ReturnDevices("r", ("T4-0/T4/1", "T4-0/T4/0"), 0.7, False) in back


def test_two_jobs_do_not_change_places_between_nodes_of_one_kind() -> None:
    bench = Bench("a", "b")
    bench.want(a=((0, 2),), b=((1, 2),))
    bench.settle("a")
    bench.settle("b")
    assert not bench.want(a=((1, 2),), b=((0, 2),))
    assert bench.driver.controller.job("a").allocation == ((0, 2),)


def test_jobs_that_wait_for_each_other_in_a_circle_are_set_free() -> None:
    bench = Bench("a", "b")
    bench.want(a=((0, 2), (1, 1)), b=((1, 1),))
    bench.settle("a")
    bench.settle("b")
    first = bench.want(a=((1, 2),), b=((0, 2), (1, 0))[:1])
    # Job a can shrink to what it keeps: nobody has to stop.
    assert kinds_of(first) == ["SendGrant"]
    assert first[0].grant.allocation == ((1, 1),)
    second = bench.settle("a")
    assert {one.job: one.grant.allocation for one in second if isinstance(one, SendGrant)} == {"b": ((0, 2),)}
    third = bench.settle("b")
    assert {one.job: one.grant.allocation for one in third if isinstance(one, SendGrant)} == {"a": ((1, 2),)}


def test_cancelling_ends_a_run_or_kills_it_at_its_deadline() -> None:
    bench = Bench("a", "b")
    bench.want(a=((0, 1),))
    assert kinds_of(bench.tell(CancelAsked("a", 3.0))) == ["CancelRun"]
    assert KillRun("a", ("T4-0/T4/0",), True, "its time is over") in bench.driver.decide(3.0)
    over = bench.tell(RunEnded("a", 1, "died"), now=3.5)
    assert over[-1].new == "cancelled"  # type: ignore[union-attr]
    assert bench.tell(CancelAsked("b"))[-1].new == "cancelled"  # type: ignore[union-attr]


def test_a_failed_device_is_not_met_again_by_one_who_has_not_heard() -> None:
    bench = Bench("a")
    bench.want(a=((0, 2),))
    bench.settle("a")
    out = bench.tell(DeviceFailed("T4-0/T4/1"))
    assert isinstance(out[0], SendGrant)
    assert out[0].grant.devices == ("T4-0/T4/0",)
    assert "T4-0/T4/1" in bench.driver.standing("a").holds
    bench.settle("a")
    assert "T4-0/T4/1" not in bench.driver.standing("a").holds


def test_another_driver_goes_on_where_the_first_one_ended() -> None:
    old = Bench("a", "b", "c")
    old.want(a=((0, 2),), b=((1, 1),))
    old.settle("a")
    old.tell(PauseAsked("a"), PauseAsked("c"))
    new = Bench()
    for name in old.driver.jobs:
        out = new.tell(JobAdopted(Bench.submission(name), old.driver.standing(name)))
        assert kinds_of(out) == {"a": ["PauseRun"], "b": ["SendGrant"], "c": []}[name]
        assert new.driver.standing(name).state == old.driver.standing(name).state
    assert new.driver.holders() == old.driver.holders()
    assert list(new.driver.controller.state(0.0).free) == [0, 1]


def test_an_owner_who_is_heard_after_the_jobs_end_changes_nothing() -> None:
    bench = Bench("a", "b")
    bench.want(a=((0, 1),))
    bench.settle("a")
    request = Bench.submission("a").request
    late = (CancelAsked("a"), PauseAsked("a"), ResumeAsked("a"), RequestChanged(request))
    # Told at once, as a service does with all that came since it last looked.
    assert not kinds_of(bench.tell(RunEnded("a", 1, "finished"), *late))
    assert "a" not in bench.driver
    assert not kinds_of(bench.tell(CancelAsked("b"), RequestChanged(Bench.submission("b").request)))
    assert not bench.driver.jobs


def test_a_clock_that_was_set_back_does_not_make_a_job_wait_for_its_next_try() -> None:
    saved = Standing(state="queued", attempt=1, failures=2, not_before_s=90_000.0)
    bench = Bench()
    bench.tell(JobAdopted(Bench.submission("a"), saved), now=100.0)
    assert bench.driver.standing("a").not_before_s == 120.0

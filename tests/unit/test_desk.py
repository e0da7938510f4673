"""Requests of clients, signals and the job itself: what is done about them, and what is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from isoscale.errors import UserError
from isoscale.kinds import DeviceSet
from isoscale.protocol import messages as m
from isoscale.runtime.membership.desk import Desk
from isoscale.runtime.membership.instructions import Ask, Emit, Instruction, Stop, Tell
from isoscale.runtime.membership.progress import Progress
from isoscale.runtime.membership.state_machine import Membership
from isoscale.types import Settings
from tests.unit.rescale_model import World
from tests.unit.test_rescale import quiet


class Office:
    """A desk with a job that trains on two executors, at step 30, with a checkpoint of step 20."""

    def __init__(self, **settings: Any) -> None:
        self.world = World(DeviceSet.parse("cpu*2"), settings=Settings(**settings))
        self.world.begin()
        quiet(self.world)
        self.world.seal(1)
        quiet(self.world)
        self.progress = Progress(step=30, saved=20, step_s=0.1)
        self.desk = Desk(self.membership, lambda: self.progress, "isoscale resume runs/mine")
        self.now = 100.0

    @property
    def membership(self) -> Membership:
        return self.world.membership

    def ask(self, request: m.FromClient) -> tuple[int | None, list[Instruction]]:
        return self.desk.on_request(request, self.now)

    def tick(self, seconds: float = 0.2) -> list[Instruction]:
        self.now += seconds
        return self.desk.tick(self.now)

    def written(self, step: int, *, final: bool) -> list[Instruction]:
        self.progress = replace(self.progress, step=step, saved=step)
        message = m.CheckpointWritten(generation=1, step=step, written={}, blocked_s=0, seconds=0, final=final)
        return self.desk.on_checkpoint(0, message, f"checkpoints/step-{step:08d}.pt")


def answers(instructions: list[Instruction]) -> dict[int, tuple[str, str]]:
    found = [one.fields for one in instructions if isinstance(one, Emit) and one.event == "answered"]
    return {fields["id"]: (fields["outcome"], fields["detail"]) for fields in found}


def told(instructions: list[Instruction]) -> list[Tell]:
    return [one for one in instructions if isinstance(one, Tell)]


def stop_of(instructions: list[Instruction]) -> Stop:
    (stop,) = [one for one in instructions if isinstance(one, Stop)]
    return stop


def test_a_stop_waits_for_a_final_checkpoint() -> None:
    office = Office()
    request, instructions = office.ask(m.Stop())
    assert request == 1
    assert told(instructions) == [Tell(0, m.TakeCheckpoint(id=1, final=True))]
    assert office.membership.is_stopping
    assert not [one for one in office.written(30, final=False) if isinstance(one, Stop)], "nobody waits at that one"
    instructions = office.written(31, final=True)
    assert answers(instructions) == {1: ("done", "step 31, checkpoint checkpoints/step-00000031.pt")}
    stop = stop_of(instructions)
    assert (stop.exit_code, stop.saved) == (130, 31)
    assert stop.told == "stopped on request at step 31, after a checkpoint; isoscale resume runs/mine goes on"
    assert office.tick() == []


def test_the_wish_is_repeated_and_goes_to_whoever_is_first_then() -> None:
    office = Office()
    office.ask(m.Stop())
    assert told(office.tick(0.5)) == []
    assert told(office.tick(0.6)) == [Tell(0, m.TakeCheckpoint(id=1, final=True))]
    office.membership._generations.members = (1, 0)
    assert told(office.tick()) == [Tell(1, m.TakeCheckpoint(id=1, final=True))]


def test_a_checkpoint_that_cannot_be_written_ends_the_wish_not_the_job() -> None:
    office = Office()
    office.ask(m.TakeCheckpoint())
    office.ask(m.Stop())
    instructions = office.desk.on_no_checkpoint(0, "no space left on device")
    assert answers(instructions) == dict.fromkeys((1, 2), ("failed", "no space left on device"))
    assert Tell(0, m.GoOn()) in instructions
    assert not office.membership.is_stopping
    assert told(office.tick(5.0)) == []


def test_at_once_says_what_is_lost() -> None:
    office = Office()
    _, instructions = office.ask(m.Stop(now=True))
    lost = "steps 21 to 30 (since the checkpoint of step 20) will be trained again"
    assert answers(instructions) == {1: ("done", f"without a checkpoint: {lost}")}
    assert lost in stop_of(instructions).told


@pytest.mark.parametrize(
    ("progress", "lost"),
    [
        (Progress(step=30, saved=0), "steps 1 to 30 (nothing was saved) will be trained again"),
        (Progress(step=21, saved=20), "step 21 (since the checkpoint of step 20) will be trained again"),
        (Progress(step=20, saved=20), "no committed step is lost"),
    ],
)
def test_what_is_lost(progress: Progress, lost: str) -> None:
    assert progress.lost == lost


def test_nothing_to_write_is_nothing_to_wait_for() -> None:
    office = Office()
    office.progress = Progress(step=20, saved=20, step_s=24.0)
    _, instructions = office.ask(m.Stop())
    assert answers(instructions) == {1: ("done", "step 20, the checkpoint of step 20 holds all of it")}
    assert stop_of(instructions).saved == 20


def test_where_steps_are_short_one_may_just_have_been_committed() -> None:
    office = Office()
    office.progress = Progress(step=20, saved=20, step_s=0.1)
    _, instructions = office.ask(m.Stop())
    assert answers(instructions) == {}
    assert told(instructions) == [Tell(0, m.TakeCheckpoint(id=1, final=True))]


def test_before_training_begins_a_stop_is_immediate_and_a_checkpoint_refused() -> None:
    office = Office()
    office.progress = Progress(step=0, saved=0, is_training=False)
    with pytest.raises(UserError, match="training has not begun"):
        office.ask(m.TakeCheckpoint())
    _, instructions = office.ask(m.Stop())
    assert answers(instructions) == {1: ("done", "no step was trained")}
    assert "before the first step" in stop_of(instructions).told


def test_a_checkpoint_of_the_present_step_is_there_already() -> None:
    office = Office()
    office.progress = Progress(step=20, saved=20)
    request, instructions = office.ask(m.TakeCheckpoint())
    assert answers(instructions) == {request: ("done", "step 20, already there")}
    assert told(instructions) == []


def test_the_first_signal_stops_and_the_second_ends() -> None:
    office = Office()
    instructions = office.desk.on_signal("Ctrl-C", 130, office.now)
    (news,) = [one for one in instructions if isinstance(one, Emit) and one.event == "stopping"]
    assert "Ctrl-C again ends it at once: steps 21 to 30" in news.fields["message"]
    assert told(office.tick(3600.0)) == [Tell(0, m.TakeCheckpoint(id=1, final=True))], "it has all the time it needs"
    instructions = office.desk.on_signal("Ctrl-C", 130, office.now)
    assert answers(instructions)[1][0] == "failed"
    assert stop_of(instructions).exit_code == 130
    assert stop_of(instructions).told.startswith("ended by Ctrl-C at step 30 without a checkpoint: steps 21 to 30")


def test_a_term_signal_is_not_waited_for_longer_than_a_notice_lasts() -> None:
    office = Office()
    office.desk.on_signal("SIGTERM", 143, office.now, 30.0)
    assert not [one for one in office.tick(29.0) if isinstance(one, Stop)]
    assert stop_of(office.tick(1.0)).exit_code == 143


def test_a_term_signal_ends_with_its_code_after_a_checkpoint() -> None:
    office = Office()
    office.desk.on_signal("SIGTERM", 143, office.now, 30.0)
    stop = stop_of(office.written(31, final=True))
    assert stop.exit_code == 143
    assert stop.told.startswith("stopped by SIGTERM at step 31, after a checkpoint")


def test_a_job_whose_executors_were_all_told_to_go_asks_once() -> None:
    office = Office()
    ask = Ask("stop", "all executors were told to go")
    assert told(office.desk.on_ask(ask, office.now))
    assert office.desk.on_ask(ask, office.now) == []
    words = "stopped: all executors were told to go (at step 31, after a checkpoint); isoscale resume runs/mine goes on"
    assert stop_of(office.written(31, final=True)).told == words


def test_a_final_checkpoint_that_nobody_wants_any_more_lets_the_executor_go_on() -> None:
    assert told(Office().written(31, final=True)) == [Tell(0, m.GoOn())]


def test_a_job_that_has_come_to_its_end_is_not_stopped() -> None:
    office = Office()
    office.ask(m.Stop())
    office.membership.phase = "done"
    office.progress = Progress(step=80, saved=20, is_training=False)
    assert office.tick() == []
    assert answers(office.ask(m.Stop())[1]) == {}
    assert office.desk.on_signal("Ctrl-C", 130, office.now) == []
    assert {outcome for outcome, _ in answers(office.desk.close("it finished")).values()} == {"ended"}


def test_all_are_gone_while_a_stop_waits() -> None:
    office = Office()
    office.ask(m.Stop())
    office.progress = Progress(step=20, saved=20, is_training=False)
    assert stop_of(office.tick()).saved == 20


def test_scaling_is_answered_when_it_is_done() -> None:
    office = Office()
    request, instructions = office.ask(m.Scale(target="cpu*2"))
    assert answers(instructions) == {request: ("done", "training on cpu*2")}
    request, instructions = office.ask(m.Scale(target="", away=(0, 1), reason="migrate"))
    assert answers(instructions) == {}
    office.world.perform([one for one in instructions if not isinstance(one, Emit)])
    office.world.settle()
    assert answers(office.tick()) == {request: ("done", "training on cpu*2")}


def test_executors_that_are_not_there_cannot_be_sent_away() -> None:
    with pytest.raises(UserError, match=r"executor=7: is not there; give some of those that are: 0, 1"):
        Office().ask(m.Scale(target="", away=(1, 7)))


def test_what_an_earlier_coordinator_left_open() -> None:
    office = Office()
    events = [
        {"id": 3, "request": "migrate", "target": "", "away": [0], "reason": "migrate"},
        {"id": 4, "request": "scale", "target": "cpu*4", "away": [], "reason": "asked"},
        {"id": 5, "request": "stop", "target": "", "away": [], "reason": "asked"},
    ]
    assert {n: outcome for n, (outcome, _) in answers(office.desk.adopt(events, 5, 0.0)).items()} == {5: "overtaken"}
    instructions = office.tick()
    assert {n: outcome for n, (outcome, _) in answers(instructions).items()} == {4: "overtaken"}
    assert office.membership.roster[0].unwanted
    assert office.ask(m.TakeCheckpoint())[0] == 6


def test_what_is_asked_while_a_coordinator_takes_over_is_done_then() -> None:
    office = Office()
    office.desk.is_ready = False
    request, instructions = office.ask(m.Scale(target="cpu*3"))
    stop, more = office.ask(m.Stop())
    assert (request, stop) == (1, 2)
    assert told([*instructions, *more, *office.tick()]) == []
    office.desk.is_ready = True
    assert told(office.tick()) == [Tell(0, m.TakeCheckpoint(id=2, final=True))]
    assert str(office.membership.goal.target) == "cpu*3"


def test_at_the_end_everything_is_answered() -> None:
    office = Office()
    office.ask(m.Scale(target="cpu*4"))
    office.ask(m.Stop())
    how = "the job finished at step 80"
    assert answers(office.desk.close(how)) == dict.fromkeys((1, 2), ("ended", how))


# ---- a service that grants devices ----


def test_a_pause_ends_the_job_after_a_checkpoint_with_a_word_of_its_own() -> None:
    office = Office()
    request, instructions = office.desk.on_pause("preempted", office.now)
    assert told(instructions) == [Tell(0, m.TakeCheckpoint(id=request, final=True))]
    stop = stop_of(office.written(31, final=True))
    assert (stop.paused, stop.exit_code, stop.saved) == (True, 75, 31)
    assert stop.told == "paused by its service at step 31, after a checkpoint"


def test_a_pause_overtakes_a_grant_and_the_attempt_that_is_being_made_for_it() -> None:
    office = Office()
    office.desk.on_grant(DeviceSet.parse("cpu*1"), (1,), "reclaimed", office.now)
    assert office.membership.attempt is not None
    _, instructions = office.desk.on_pause("preempted", office.now)
    assert answers(instructions) == {1: ("overtaken", "by request 2: pause")}
    assert office.membership.attempt is None


def test_a_grant_is_answered_when_nothing_runs_on_what_was_taken_away() -> None:
    office = Office()
    free = False
    office.desk.lets_go = lambda: free
    _, instructions = office.desk.on_grant(DeviceSet.parse("cpu*2"), (), "granted", office.now)
    assert answers(instructions) == answers(office.tick()) == {}
    free = True
    assert answers(office.tick()) == {1: ("done", "training on cpu*2")}


def test_with_a_deadline_the_open_step_is_given_up_if_it_does_not_end_in_time() -> None:
    office = Office()
    office.progress = replace(office.progress, step_s=10.0, since_step_s=3.0)
    request, instructions = office.desk.on_pause("reclaimed", office.now, 2.0)
    assert told(instructions)[-1] == Tell(0, m.Abandon(id=request))
    assert not [one for one in told(office.tick()) if isinstance(one.message, m.Abandon)], "once is enough"
    instructions = office.written(30, final=True)
    outcome, detail = answers(instructions)[request]
    assert outcome == "done"
    assert detail.endswith("; 3.0 s of the open step are given up")
    assert stop_of(instructions).saved == 30


def test_a_step_that_ends_in_time_is_not_given_up() -> None:
    office = Office()
    _, instructions = office.desk.on_pause("reclaimed", office.now, 2.0)
    assert not [one for one in told(instructions) if isinstance(one.message, m.Abandon)]
    assert office.desk.abandoned_s == 0.0


def test_at_the_deadline_the_newest_checkpoint_counts_whether_or_not_one_could_be_written() -> None:
    office = Office()
    office.progress = replace(office.progress, step_s=10.0, since_step_s=3.0)
    office.desk.on_pause("reclaimed", office.now, 2.0)
    assert office.desk.on_no_checkpoint(0, "no space left on device") == []
    assert not [one for one in office.tick(1.0) if isinstance(one, Stop)]
    stop = stop_of(office.tick(0.7))
    assert stop.paused
    assert stop.saved == 20
    assert "steps 21 to 30 (since the checkpoint of step 20) will be trained again" in stop.told


def test_nothing_is_written_where_nothing_is_lost() -> None:
    office = Office()
    office.progress = Progress(step=30, saved=30, step_s=10.0, since_step_s=1.0)
    _, instructions = office.desk.on_pause("reclaimed", office.now, 2.0)
    assert stop_of(instructions).saved == 30


# ---- batch sizes ----


def live_office() -> Office:
    office = Office()
    office.membership.declared = m.Declared(sizes=(16, 32, 64), size=32, rule="linear")
    office.membership.has_stepped = True
    return office


def rebatched(request: int, new: int, *, step: int = 31, error: str = "") -> m.Rebatched:
    return m.Rebatched(step=step, old=32, new=new, reason="asked", request=request, error=error)


def test_a_batch_size_is_told_to_all_who_train_until_it_is_there() -> None:
    office = live_office()
    request, instructions = office.ask(m.Scale(target="", batch=64))
    wish = m.Rebatch(id=1, size=64)
    assert request == 1
    assert told(instructions) == [Tell(0, wish), Tell(1, wish)]
    assert told(office.tick(0.5)) == []
    assert told(office.tick(0.6)) == [Tell(0, wish), Tell(1, wish)]
    office.membership._generations.members = (0, 2)
    assert told(office.tick()) == [Tell(0, wish), Tell(2, wish)], "whoever comes must know it too"
    assert answers(office.desk.on_rebatched(rebatched(1, 64))) == {1: ("done", "batch size 64 from step 32 on")}
    assert told(office.tick(5)) == []
    assert office.membership.rebatch is None


def test_the_second_request_for_a_batch_size_counts() -> None:
    office = live_office()
    office.ask(m.Scale(target="", batch=64))
    _, instructions = office.ask(m.Scale(target="", batch=16))
    assert answers(instructions) == {1: ("overtaken", "by request 2: batch size 16")}
    assert told(instructions) == [Tell(0, m.Rebatch(id=2, size=16)), Tell(1, m.Rebatch(id=2, size=16))]


@pytest.mark.parametrize(
    ("size", "changed", "said"),
    [
        (48, {}, "the script declares 16, 32, 64"),
        (0, {}, "too small"),
        (64, {"rule": ""}, "learning rate"),
        (64, None, "declares no batch_sizes"),
    ],
)
def test_a_batch_size_that_cannot_be_is_refused(size: int, changed: dict[str, str] | None, said: str) -> None:
    office = live_office()
    declared = m.Declared(sizes=(16, 32, 64), size=32, rule="linear")
    office.membership.declared = (
        None if changed is None else m.Declared(sizes=(16, 32, 64), size=32, **{"rule": declared.rule} | changed)
    )
    with pytest.raises(UserError, match="batch") as error:
        office.ask(m.Scale(target="", batch=size))
    assert said in str(error.value)
    with pytest.raises(UserError, match="batch"):
        office.ask(m.Scale(target="1", batch=size))
    assert office.membership.goal.target.total == 2, "nothing of it is kept"


def test_what_nobody_has_declared_yet_is_refused_when_that_is_clear() -> None:
    office = live_office()
    office.membership.declared, office.membership.has_stepped = None, False
    office.ask(m.Scale(target="", batch=64))
    office.membership.has_stepped = True
    ((outcome, detail),) = answers(office.tick()).values()
    assert outcome == "refused"
    assert "declares no batch_sizes" in detail


def test_a_batch_size_that_was_granted_before_the_coordinator_came() -> None:
    office = live_office()
    instructions = office.desk.on_granted_batch(64, "granted", office.now)
    wish = m.Rebatch(id=1, size=64, reason="granted")
    assert told(instructions) == [Tell(0, wish), Tell(1, wish)]
    assert office.desk.on_granted_batch(64, "granted", office.now) == [], "it is under way"
    (warning,) = office.desk.on_granted_batch(48, "granted", office.now)
    assert isinstance(warning, Emit)
    assert "16, 32, 64" in warning.fields["message"]


def test_devices_and_batch_size_change_in_one_switch() -> None:
    """The order to switch carries the size; the request is done when both are there."""
    office = live_office()
    request, _ = office.ask(m.Scale(target="1", batch=64))
    assert request == 1
    attempt = office.membership.attempt
    assert attempt is not None
    assert told(office.tick(2)) == [], "it waits for the devices"
    orders = office.membership.on_prepared(attempt.members[0], attempt.generation)
    assert told(orders) == [
        Tell(one, m.Switch(generation=attempt.generation, batch=m.Rebatch(id=1, size=64))) for one in (0, 1)
    ]
    assert answers(office.desk.on_rebatched(rebatched(1, 64))) == {}
    office.membership.on_sealed(attempt.generation, 31)
    assert answers(office.tick()) == {1: ("done", "training on cpu*1")}


def test_a_size_that_did_not_come_with_the_switch_comes_after_it() -> None:
    office = live_office()
    office.ask(m.Scale(target="1", batch=64))
    attempt = office.membership.attempt
    assert attempt is not None
    office.membership.on_prepared(attempt.members[0], attempt.generation)
    office.membership.on_sealed(attempt.generation, 31)
    assert told(office.tick(2)) == [Tell(attempt.members[0], m.Rebatch(id=1, size=64))]
    assert answers(office.desk.on_rebatched(rebatched(1, 64))) == {1: ("done", "training on cpu*1")}


def test_a_rule_that_raised_fails_the_request_and_a_plan_overtakes_it() -> None:
    office = live_office()
    office.ask(m.Scale(target="", batch=64))
    found = answers(office.desk.on_rebatched(rebatched(1, 64, error="ValueError: no")))
    assert found == {1: ("failed", "the batch size stays what it is: ValueError: no")}
    office.ask(m.Scale(target="", batch=16))
    found = answers(office.desk.on_rebatched(rebatched(2, 16, error="overtaken by the plan")))
    assert found == {2: ("overtaken", "by the batch plan")}


def test_a_successor_goes_on_with_an_open_request_for_a_batch_size() -> None:
    office = live_office()
    event = {"id": 7, "request": "batch", "target": "", "away": [], "reason": "asked", "batch": 16}
    office.desk.adopt([event], 7, office.now)
    assert told(office.tick()) == [Tell(0, m.Rebatch(id=7, size=16)), Tell(1, m.Rebatch(id=7, size=16))]


def test_a_run_that_repeats_another_keeps_its_sizes() -> None:
    office = live_office()
    office.membership.spec = replace(office.membership.spec, is_repeat=True)
    with pytest.raises(UserError, match="repeats another run"):
        office.ask(m.Scale(target="", batch=64))


def test_a_grant_brings_a_batch_size_and_one_that_cannot_be_costs_a_warning() -> None:
    office = live_office()
    office.desk.on_grant(DeviceSet.parse("cpu*1"), (), "granted", office.now, 64)
    assert office.membership.rebatch == m.Rebatch(id=1, size=64, reason="granted")
    office = live_office()
    _, instructions = office.desk.on_grant(DeviceSet.parse("cpu*1"), (), "granted", office.now, 48)
    (warning,) = [one for one in instructions if isinstance(one, Emit) and one.event == "warning"]
    assert "the script declares 16, 32, 64" in warning.fields["message"]
    assert office.membership.rebatch is None
    assert office.membership.goal.target.total == 1

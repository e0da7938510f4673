"""Each promise: a history that keeps it, and histories that break it, each in its own way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isoscale.analysis.promises import PROMISES, Asked, Deed, Record, Verdict, check
from isoscale.analysis.promises.history import History
from isoscale.analysis.promises.progress import MAX_BEGINNINGS
from isoscale.analysis.promises.target import judge as judge_target
from isoscale.analysis.promises.target import size_of
from tests.unit.promises.histories import Log


def broken(log: Log, record: Record | None = None, summary: Mapping[str, Any] | None = None) -> dict[str, str]:
    """What was found first, by promise."""
    verdict = check(log.events, record=record, summary=summary)
    return {finding.promise: f"{finding.what}: {finding.why}" for finding in reversed(verdict.findings)}


def said(verdict: Verdict) -> dict[str, str]:
    return {judgement.promise: judgement.said for judgement in verdict.judgements}


def kill(log: Log, *executors: int) -> list[Deed]:
    return [Deed(t=log.t, what="kill", executor=executor, pid=2000 + executor) for executor in executors]


def test_a_calm_run_keeps_every_promise() -> None:
    log = Log()
    log.train(25)
    log.finish()
    assert set(said(check(log.events, record=Record())).values()) == {"kept"}


def test_a_run_in_which_much_happens_keeps_every_promise() -> None:
    log, deeds = Log(executors=3), []
    log.train(7)
    log.checkpoint()
    deeds += kill(log, 1)
    log.lose(1)
    log.place(0, 2, reason="executor 1 lost: killed by SIGKILL")
    log.train(5)
    log.ask(1, target="3")
    log.start(3)
    log.place(0, 2, 3)
    log.train(3)
    deeds += kill(log, 0, 2, 3)
    log.lose(0, 2, 3)
    log.write("restart", step=7, reached=15, reason="all are gone", attempt=1)
    log.start(4, 5, 6)
    log.begin(4, 5, 6, step=7)
    log.train(12)
    deeds.append(Deed(t=log.t, what="kill_coordinator"))
    log.coordinator(3, after_s=2.0)
    log.write("executor_joined", executor=4, generation=log.generation)
    fields = {"members": [4, 5, 6], "shares": [2, 1, 1], "reason": "a new coordinator"}
    log.write("generation", generation=log.generation, step=log.step, **fields)
    log.train(4)
    log.finish()
    assert set(said(check(log.events, record=Record(deeds=deeds))).values()) == {"kept"}
    assert set(said(check(log.events)).values()) == {"kept"}


def test_an_empty_log_has_broken_nothing() -> None:
    assert check([]).findings == []


def test_a_log_of_an_older_version_is_unknown_and_not_kept() -> None:
    log = Log()
    log.train(5)
    log.finish()
    for event in log.events:
        for new in ("settings", "target", "plan", "loader", "batch", "of"):
            event.pop(new, None)
    found = said(check(log.events))
    assert {name for name, one in found.items() if one == "unknown"} == {"answered", "pauses", "samples", "target"}
    assert "broken" not in found.values()


NAMES = (
    *("step", "generation", "executor_lost", "executor_left", "executor_started", "executor_joined", "restart"),
    *("executor_killed", "coordinator_started", "coordinator_paused", "request", "answered", "checkpoint", "rescale"),
    *("finished", "stopped", "failed", "warning", "pass_ended", "notice", "suspect", "code_changed"),
)
FIELDS = (
    *(
        "step",
        "epoch",
        "loss",
        "seconds",
        "generation",
        "loader",
        "batch",
        "of",
        "members",
        "reason",
        "executor",
        "pid",
    ),
    *("settings", "target", "plan", "term", "id", "request", "outcome", "silent_s", "limit_s", "attempt", "message"),
    *("path", "digest", "error", "pause_s", "wait_s", "samples", "stream", "rest", "determinism"),
)
ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 5)
    | st.floats()
    | st.sampled_from(["", "resumed", "checkpoints/x", "2"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.builds(
            lambda name, t, fields: {"t": t, "event": name, **fields},
            st.sampled_from(NAMES) | ANYTHING,
            st.floats(0, 100) | ANYTHING,
            st.dictionaries(st.sampled_from(FIELDS), ANYTHING, max_size=8),
        ),
        max_size=12,
    )
)
def test_events_that_make_no_sense_do_no_harm(events: list[dict[str, Any]]) -> None:
    for record in (None, Record(deeds=[Deed(t=1.0, what="stop_coordinator")])):
        assert len(check(events, record=record).judgements) == len(PROMISES)


# ---- sealed steps ----


def test_a_holder_that_was_not_lost() -> None:
    log = Log()
    log.train(6)
    log.lose(0)
    log.start(2, 3)
    log.begin(2, 3)
    log.train(8)
    assert broken(log)["sealed"] == "steps 1-6 were done again: executor 1 had sealed them and was not lost"


def test_one_that_was_let_go_holds_nothing_any_more() -> None:
    """The only one that was left is lost before the end of the other is written."""
    for sealed_without_it in (True, False):
        log = Log()
        log.train(6)
        log.place(0)
        if sealed_without_it:
            log.train(7)
        log.lose(0)
        log.start(2)
        log.begin(2)
        log.train(8)
        assert ("sealed" in broken(log)) is not sealed_without_it


def test_a_newcomer_holds_what_it_was_given() -> None:
    log = Log()
    log.train(4)
    log.start(2)
    log.place(0, 1, 2)
    log.lose(0, 1)
    log.start(3)
    log.begin(3)
    log.train(5)
    assert broken(log)["sealed"] == "steps 1-4 were done again: executor 2 had sealed them and was not lost"


def test_a_stop_on_request_does_not_lose_steps() -> None:
    log = Log()
    log.train(3)
    log.checkpoint()
    log.train(3)
    log.write("stopped", step=6, error="stopped on request")
    log.coordinator(2)
    log.start(2)
    log.begin(2, step=3)
    log.train(4)
    found = broken(log)
    assert found["sealed"] == "steps 4-6 were done again: they were sealed when the job was stopped on request"
    assert found["answered"] == "stopped at step 6 with a checkpoint of step 3: 3 sealed steps are lost"


def test_an_impatient_stop_may_lose_steps() -> None:
    log = Log()
    log.train(6)
    log.ask(1, "stop")
    log.write("stopped", step=6, saved=0, error="ended on request at step 6 without a checkpoint: steps 1 to 6 ...")
    log.coordinator(2)
    log.start(2)
    log.begin(2)
    log.train(4)
    assert broken(log) == {}


def test_an_older_checkpoint_than_there_is_needs_a_warning() -> None:
    for warned in (False, True):
        log = Log()
        log.train(4)
        log.checkpoint()
        log.train(4)
        log.checkpoint()
        log.lose(0, 1)
        if warned:
            log.write("warning", message="checkpoint step-00000008.pt is damaged and skipped: sha256 differs")
        log.start(2)
        log.begin(2, step=4)
        log.train(6)
        assert ("sealed" in broken(log)) is not warned


def test_who_was_alive_while_there_was_no_coordinator_is_found_out_by_the_record() -> None:
    log = Log()
    log.train(6)
    record = Record(deeds=[Deed(t=log.t, what="kill_coordinator"), *kill(log, 0)])
    log.coordinator(2, after_s=1.0)
    log.start(2)
    log.begin(2)
    log.train(8)
    found = broken(log, record)
    why = "executor 1 had sealed them, and nobody had done anything to it"
    assert found["sealed"] == f"steps 1-6 were done again: {why}"
    assert said(check(log.events))["sealed"] == "unknown"
    record.deeds += kill(log, 1)
    record.deeds[-1] = Deed(t=record.deeds[0].t, what="kill", executor=1)
    assert "sealed" not in broken(log, record)


# ---- kills ----


def killed(log: Log, *, silent_s: float | None, limit_s: float | None = 5.0, reason: str = "no heartbeat") -> None:
    fields = {"reason": reason, "silent_s": silent_s, "limit_s": limit_s}
    log.write("executor_killed", executor=1, pid=2001, **fields)
    log.lose(1, reason="no heartbeat")
    log.place(0, reason="executor 1 lost: no heartbeat")
    log.train(3)


@pytest.mark.parametrize(
    ("silent_s", "limit_s", "reason", "flagged"),
    [
        (5.3, 5.0, "no heartbeat", False),
        (4.9, 5.0, "no heartbeat", True),
        (None, None, "suspect", False),
        (2.1, 2.0, "stopped by a signal", False),
    ],
)
def test_a_kill_needs_a_silence(silent_s: float, limit_s: float, reason: str, flagged: bool) -> None:
    log = Log()
    log.train(5)
    log.t += 6
    killed(log, silent_s=silent_s, limit_s=limit_s, reason=reason)
    assert ("killed" in broken(log, Record())) is flagged


@pytest.mark.parametrize(
    ("later_s", "silent_s", "flagged"),
    [
        (0.1, 14.1, True),
        (4.0, 18.0, True),
        # Everybody had time again.
        (5.5, 19.5, False),
        # By the coordinator's own time, of which the pause is no part: 4.1 s before it, and 1.1 s after.
        (1.1, 5.2, False),
    ],
)
def test_a_pause_of_the_coordinator_is_nobodys_silence(later_s: float, silent_s: float, flagged: bool) -> None:
    log = Log()
    log.train(5)
    log.t += 4.1
    log.write("coordinator_paused", seconds=14.0, after_s=14.0)
    log.t += later_s
    killed(log, silent_s=silent_s)
    assert ("killed" in broken(log)) is flagged


def test_by_the_record_a_coordinator_that_did_not_notice_its_pause_is_caught() -> None:
    log = Log()
    log.train(5)
    start = log.t
    log.t += 14.0
    record = Record(deeds=[Deed(t=start, what="stop_coordinator"), Deed(t=log.t, what="continue_coordinator")])
    killed(log, silent_s=14.0)
    assert broken(log, record)["killed"].startswith(
        "executor 1 was killed: the coordinator itself had not run for 14.0 s until 0.0 s before"
    )


def test_a_step_that_was_sealed_shows_that_all_its_members_were_alive() -> None:
    log = Log()
    log.train(60)
    killed(log, silent_s=5.2)
    assert broken(log)["killed"] == "executor 1 was killed: silent for 5.2 s, but 0.0 s before it had sealed step 60"


def test_a_loss_needs_a_cause() -> None:
    log = Log()
    log.train(5)
    log.lose(1)
    log.place(0, reason="executor 1 lost")
    log.train(3)
    found = broken(log, Record())
    assert found["killed"] == "executor 1 was lost: killed by SIGKILL: nobody had done anything to it"
    assert broken(log) == {}, "without a record nobody knows"
    assert broken(log, Record(faulty={1})) == {}
    assert broken(log, Record(deeds=[Deed(t=0.0, what="kill", executor=1)])) == {}
    assert "killed" in broken(log, Record(deeds=[Deed(t=log.t + 9, what="kill", executor=1)])), "that was later"


def test_a_script_may_end_itself_unless_it_is_known_to_be_sound() -> None:
    log = Log()
    log.train(5)
    log.lose(1, reason="exit code 1")
    log.place(0, reason="executor 1 lost")
    log.train(3)
    assert broken(log, Record()) == {}
    assert "killed" in broken(log, Record(is_sound=True))


# ---- requests ----


def test_a_request_is_answered_once() -> None:
    for times, flagged in ((0, True), (1, False), (2, True)):
        log = Log()
        log.train(3)
        log.ask(1, target="2", outcome=None)
        for _ in range(times):
            log.write("answered", id=1, outcome="done", detail="")
        log.train(3)
        assert broken(log) == ({} if times < 2 else broken(log)), "while the job runs it may be under way"
        log.finish()
        assert ("answered" in broken(log)) is flagged, times


def test_nobody_answers_what_nobody_asked() -> None:
    log = Log()
    log.write("answered", id=7, outcome="done", detail="")
    assert broken(log)["answered"] == "request 7 was answered: nobody had asked"


def test_what_a_killed_coordinator_left_open_is_answered_by_its_successor() -> None:
    for answers in (False, True):
        log = Log()
        log.train(3)
        log.ask(1, target="2", outcome=None)
        log.coordinator(2)
        log.train(3)
        assert "answered" not in broken(log)
        log.finish()
        if answers:
            log.write("answered", id=1, outcome="ended", detail="the job finished at step 6")
        assert ("answered" in broken(log)) is not answers


def test_a_stop_while_everybody_is_gone_has_nothing_to_save() -> None:
    log = Log()
    log.train(4)
    log.checkpoint()
    log.train(3)
    log.lose(0, 1)
    log.write("restart", step=4, reached=7, reason="all are gone", attempt=1)
    log.ask(1, "stop")
    log.write("stopped", step=4, saved=4, error="stopped on request at step 4, after a checkpoint")
    log.coordinator(2)
    log.start(2)
    log.begin(2, step=4)
    log.train(6)
    assert broken(log) == {}


def test_a_checkpoint_that_was_asked_for_is_there() -> None:
    for written in (False, True):
        log = Log()
        log.train(3)
        log.ask(1, "checkpoint", outcome=None)
        log.train(1)
        if written:
            log.checkpoint()
        log.write("answered", id=1, outcome="done", detail="")
        assert ("answered" in broken(log)) is not written


def test_the_checkpoint_that_a_job_has_gone_back_to_is_there() -> None:
    log = Log(executors=1)
    log.train(7)
    log.checkpoint()
    log.train(4)
    log.lose(0)
    log.write("restart", step=7, reached=11, reason="all are gone", attempt=1)
    log.start(1)
    log.begin(1, step=7)
    log.ask(1, "checkpoint")
    assert "answered" not in broken(log)
    log.train(1)
    log.ask(2, "checkpoint")
    assert "answered" in broken(log)


@pytest.mark.parametrize(("ok", "flagged"), [(True, True), (False, False), (None, True)])
def test_what_no_job_can_do_is_refused(ok: bool | None, flagged: bool) -> None:
    log = Log()
    log.train(300)
    asked = Asked(t=log.t - 15, request="scale", target="999999999", absurd=True, ok=ok, seconds=10.0)
    log.train(300)
    assert ("answered" in broken(log, Record(asked=[asked]))) is flagged


def test_what_was_accepted_is_written_down() -> None:
    log = Log()
    log.train(3)
    log.ask(1, target="2")
    log.train(3)
    asked = [Asked(t=log.t, request="scale", target="2", ok=True)] * 2
    assert broken(log, Record(asked=asked))["answered"] == "2 requests were accepted: the log has 1"


# ---- pauses ----


def test_a_pause_is_bounded_by_what_explains_it() -> None:
    for pause_s, flagged in ((1.0, False), (18.0, False), (120.0, True)):
        log = Log()
        log.train(5)
        log.start(2)
        log.place(0, 1, 2)
        log.train(1, after_s=pause_s)
        log.write("rescale", step=5, pause_s=0.01, wait_s=0.0, reason="asked")
        log.train(5)
        found = broken(log)
        assert ("pauses" in found) is flagged, pause_s
        if flagged:
            assert found["pauses"] == "no step for 120.0 s before step 6: switch explains at most 25.0 s"


def test_a_silent_executor_may_take_longer_than_one_that_died() -> None:
    bounds = {}
    for reason in ("killed by SIGKILL", "no heartbeat for 5.3 s"):
        log = Log()
        log.train(5)
        log.lose(1, reason=reason)
        log.place(0, reason=f"executor 1 lost: {reason}")
        log.train(1, after_s=1000.0)
        bounds[reason] = float(broken(log)["pauses"].rpartition(" at most ")[2].removesuffix(" s"))
    assert bounds["killed by SIGKILL"] == pytest.approx(2 * (5 + 3 + 5) + 5)
    assert bounds["no heartbeat for 5.3 s"] == pytest.approx(2 * (10 + 5) + 5)


def test_time_without_a_coordinator_counts() -> None:
    log = Log()
    log.train(5)
    log.coordinator(2, after_s=300.0)
    fields = {"members": [0, 1], "shares": [2, 2], "reason": "a new coordinator"}
    log.write("generation", generation=1, step=5, **fields)
    log.train(1, seconds=301.0)
    assert "pauses" not in broken(log)


def test_slow_steps_are_not_pauses() -> None:
    log = Log()
    log.train(5, after_s=60.0)
    log.start(2)
    log.place(0, 1, 2)
    log.train(3, after_s=70.0)
    assert "pauses" not in broken(log)


def test_what_a_script_does_between_epochs_is_its_own_affair() -> None:
    """A rescale falls into the first evaluation, of which nobody knows how long it takes."""
    for seen_before, pause_s, flagged in ((False, 600.0, False), (True, 600.0, False), (True, 6000.0, True)):
        log = Log()
        log.train(10)
        if seen_before:
            log.write("log", accuracy=0.5)
            log.train(1, after_s=500.0)
            log.train(9)
        log.start(2)
        log.place(0, 1, 2)
        log.train(1, after_s=pause_s)
        assert ("pauses" in broken(log)) is flagged


def test_a_first_step_that_compiles_is_seen_again_on_newcomers() -> None:
    log = Log()
    log.train(1, after_s=90.0)
    log.train(5)
    log.start(2)
    log.place(0, 1, 2)
    log.train(1, after_s=95.0)
    assert "pauses" not in broken(log)


# ---- samples ----


def test_steps_follow_one_another() -> None:
    log = Log()
    log.train(6)
    whole = list(log.events)
    log.events = [*whole[:-2], whole[-1]]
    assert broken(log)["samples"] == "step 6 was written down where step 5 was due: steps are lost"
    log.events = [*whole, whole[-1]]
    assert broken(log)["samples"] == "step 6 was written down where step 7 was due: it is doubled or out of order"
    log.events = [*whole[:-2], whole[-1], whole[-2]]
    assert broken(log)["samples"] == "step 6 was written down where step 5 was due: steps are lost"


def test_a_batch_is_neither_left_out_nor_read_twice() -> None:
    for batch in (4, 6):
        log = Log()
        log.train(5)
        log.train(1, batch=batch)
        assert broken(log)["samples"] == f"step 6 read batch {batch} of loader 1: batch 4 came before it"
    log = Log()
    log.train(10)
    log.train(1, batch=10)
    assert broken(log)["samples"] == "step 11 read batch 10 of loader 1: a pass has 10"
    log = Log()
    log.train(6)
    log.train(1, batch=0)
    assert broken(log) == {}, "a script may break off a pass"


def test_an_epoch_does_not_come_again() -> None:
    log = Log()
    log.train(11)
    log.train(1, epoch=0)
    assert broken(log)["samples"] == "step 12 is of epoch 0: epoch 1 had begun"


@pytest.mark.parametrize(("loss", "flagged"), [(1 / 5, False), (0.2000000001, True), ("nan", True), (None, True)])
def test_a_step_that_is_done_again_is_the_same(loss: object, flagged: bool) -> None:
    log = Log()
    log.train(4)
    log.checkpoint()
    log.train(3)
    log.lose(0, 1)
    log.start(2)
    log.begin(2, step=4)
    log.train(1, loss=loss)
    log.train(5)
    assert ("samples" in broken(log)) is flagged


@pytest.mark.parametrize(
    "change",
    [
        {"event": "code_changed", "files": ["train.py"]},
        {"event": "warning", "message": "the script has changed since the checkpoint was written"},
        None,
    ],
)
def test_another_script_gives_other_losses(change: dict[str, Any] | None) -> None:
    log = Log()
    log.train(6)
    log.lose(0, 1)
    log.coordinator(2)
    if change is not None:
        log.events.append({"t": log.t, **change})
    log.start(2)
    log.begin(2)
    log.train(8, loss=0.5)
    assert ("samples" in broken(log)) is (change is None)


def test_at_level_off_no_bits_are_promised() -> None:
    log = Log()
    log.events[0]["determinism"] = "off"
    log.train(6)
    log.lose(0, 1)
    log.start(2)
    log.begin(2)
    log.train(8, loss=0.5)
    assert "samples" not in broken(log)


def test_a_pass_over_a_stream_uses_as_many_samples_as_the_one_before() -> None:
    for samples, content, flagged in ((640, "ab", False), (639, "ab", True), (640, "ac", True)):
        log = Log()
        for used, sums in ((640, "ab"), (samples, content)):
            log.train(10)
            log.write("pass_ended", stream="stream 1", samples=used, content=sums, rest=0, carried_in=0)
        assert ("samples" in broken(log)) is flagged


def test_the_last_step_is_the_one_that_the_job_finished_at() -> None:
    log = Log()
    log.train(8)
    log.step = 9
    log.finish()
    assert broken(log)["samples"] == "finished at step 9: the last step was 8"


# ---- order ----


def test_generations_and_terms_grow() -> None:
    log = Log()
    log.train(2)
    log.generation -= 1
    log.place(0)
    assert broken(log)["order"] == "generation 1 began: there had been 1"
    log = Log()
    log.train(2)
    log.term -= 1
    log.coordinator(2)
    assert broken(log)["order"] == "a coordinator of term 1: there had been term 1"


def test_a_step_is_of_a_generation_that_was_announced_or_overtaken() -> None:
    """A loss may overtake a change that executors have made already: its step comes after the recovery began."""
    log = Log()
    log.train(2)
    log.generation = 2
    log.place(0)
    log.generation = 2
    log.train(2)
    log.generation = 3
    log.train(2)
    assert broken(log) == {}
    log.generation = 2
    log.train(1)
    assert broken(log) == {}, "they train until they are told to leave"
    log.generation = 3
    log.place(0)
    log.train(1)
    log.generation = 2
    log.train(1)
    assert broken(log)["order"] == "step 9 is of generation 2: nobody announced it"


def test_only_those_who_are_there_take_part() -> None:
    log = Log()
    log.members = [0, 1, 2]
    log.place(0, 1, 2)
    assert broken(log)["order"] == "generation 2 has executor 2: nobody had started it"
    log = Log()
    log.lose(1)
    log.place(0, 1)
    assert broken(log)["order"] == "generation 2 has executor 1: lost before"
    log = Log()
    log.lose(1)
    log.start(1)
    assert broken(log)["order"] == "executor 1 is there again (executor_started): it was gone: killed by SIGKILL"


def test_a_job_ends_once_and_nothing_comes_after_it() -> None:
    log = Log()
    log.train(3)
    log.finish()
    log.write("failed", step=3, error="no")
    assert broken(log)["order"] == "the job failed: it had finished before"
    log = Log()
    log.train(3)
    log.finish()
    log.start(2)
    assert (
        broken(log)["order"] == "executor_started after the job had finished: that is the last event of a coordinator"
    )


def test_the_digest_is_the_one_of_the_summary() -> None:
    log = Log()
    log.train(3)
    log.finish(digest="a" * 64)
    assert broken(log, summary={"digest": "a" * 64}) == {}
    assert "order" in broken(log, summary={"digest": "b" * 64})


@pytest.mark.parametrize("more", [0, 2])
def test_a_job_that_goes_on_beyond_its_end_ends_with_another_digest(more: int) -> None:
    log = Log(executors=1)
    log.train(3)
    log.finish(digest="a" * 64)
    log.coordinator(1)
    log.start(1)
    log.begin(1, step=3)
    log.train(more)
    log.finish(digest="b" * 64)
    digests = [one.why for one in check(log.events).findings if one.what == "finished with several digests"]
    assert bool(digests) is (more == 0)


# ---- the target ----


def burst(log: Log, *, attempts: int, message: str = "3 newcomers ended before they could join: killed") -> None:
    for attempt in range(attempts):
        newcomers = range(10 + 3 * attempt, 13 + 3 * attempt)
        log.start(*newcomers)
        log.lose(*newcomers)
    log.write("warning", message=f"scaling is given up: {message}")


@pytest.mark.parametrize(("attempts", "flagged"), [(1, True), (2, True), (3, False)])
def test_one_burst_does_not_sink_the_target(attempts: int, flagged: bool) -> None:
    log = Log()
    log.train(3)
    burst(log, attempts=attempts)
    log.train(3)
    assert ("target" in broken(log)) is flagged


def test_newcomers_that_fail_by_themselves_are_failures_too() -> None:
    log = Log()
    log.train(3)
    for newcomer in (2, 3, 4):
        log.start(newcomer)
        log.write("warning", message=f"newcomer {newcomer}: logical worker 1: ValueError: no")
    log.write("warning", message="scaling is given up: newcomers ended before they could join, 3 times in a row: no")
    assert broken(log) == {}


def test_what_was_asked_for_comes_or_is_given_up() -> None:
    for train_s, came, given_up, expected in (
        (2.0, False, False, "unknown"),
        (200.0, False, False, "broken"),
        (200.0, True, False, "kept"),
        (200.0, False, True, "kept"),
    ):
        log = Log()
        log.train(3)
        log.ask(1, target="+1")
        if came:
            log.start(2)
            log.place(0, 1, 2)
        if given_up:
            log.write("warning", message="scaling is given up: cpu computes other bits")
        log.train(int(train_s * 10))
        log.finish()
        assert said(check(log.events))["target"] == expected


def test_a_plan_is_a_target_and_executors_by_hand_are_none() -> None:
    for plan, spawn, expected in (([[50, "cpu*2"]], True, "kept"), ([], True, "broken"), ([], False, "unknown")):
        log = Log()
        first = log.events[0]
        first |= {"target": "cpu*3", "plan": plan, "settings": {**first["settings"], "spawn": spawn}}
        log.train(2000)
        log.finish()
        assert said(check(log.events))["target"] == expected


@pytest.mark.parametrize(
    ("target", "size"),
    [("4", 4), ("+1", 3), ("-1", 1), ("cpu*2+cpu-sse", 3), ("cpu", 1), ("", None), ("a b c", None)],
)
def test_how_many_executors_a_target_means(target: str, size: int | None) -> None:
    assert size_of(target, 2) == size


# ---- progress ----


@pytest.mark.parametrize(("times", "flagged"), [(3, False), (MAX_BEGINNINGS + 1, True)])
def test_a_job_that_gets_nowhere_is_given_up(times: int, flagged: bool) -> None:
    log = Log(executors=1)
    log.train(4)
    for time in range(times):
        log.lose(time)
        log.start(time + 1)
        log.begin(time + 1)
        log.train(4)
    assert ("progress" in broken(log)) is flagged


def test_a_job_that_gets_somewhere_may_begin_again_as_often_as_it_must() -> None:
    log = Log(executors=1)
    for time in range(2 * MAX_BEGINNINGS):
        log.train(4)
        log.checkpoint()
        log.lose(time)
        log.start(time + 1)
        log.begin(time + 1, step=log.step)
    assert broken(log) == {}


def test_who_is_set_aside_is_not_missing_until_it_is_asked_for_again() -> None:
    def asked(*events: dict[str, object]) -> str:
        started = {"t": 1.0, "event": "coordinator_started", "term": 1, "target": "cpu*3", "plan": [[50, "cpu*4"]]}
        generation = {"t": 2.0, "event": "generation", "generation": 1, "step": 0, "members": [0, 1], "shares": [2, 2]}
        history = History([started | {"settings": {}}, *events, generation])
        return judge_target(history, None).seen.split(",")[0]

    aside: dict[str, object] = {"t": 1.5, "event": "straggler", "executor": 2, "ratio": 9.0, "set_aside": [2]}
    scale: dict[str, object] = {"t": 1.6, "event": "request", "id": 1, "request": "scale", "target": "cpu*3"}
    assert asked() == "asked for 3"
    assert asked(aside) == "asked for 2"
    assert asked(aside, scale) == "asked for 3"
    assert asked(aside, {"t": 1.7, "event": "step", "step": 50}) == "asked for 4"

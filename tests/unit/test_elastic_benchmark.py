"""The pure parts of the elastic benchmarks: what gaps, losses and targets are read from lines of workers."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from benchmarks.elastic.claims import elastic
from benchmarks.elastic.commits import (
    Commit,
    Line,
    commits_of,
    disturbance,
    excess,
    next_seconds,
    read_lines,
    summary,
    table,
    targets,
)


def lines(writer: str, first: int, last: int, begin: float, every: float = 0.1) -> list[Line]:
    return [Line(step, begin + (step - first) * every, writer) for step in range(first, last + 1)]


def test_lines_are_read_from_every_workers_file_in_order_of_time(tmp_path: Path) -> None:
    (tmp_path / "commits-7.txt").write_text("1 10.0 2\n2 11.0 2\n")
    (tmp_path / "commits-8.txt").write_text("1 10.5 2\n")
    assert read_lines(tmp_path) == [Line(1, 10.0, "7", 2), Line(1, 10.5, "8", 2), Line(2, 11.0, "7", 2)]


def test_a_step_of_two_workers_is_one_commit_at_the_time_of_the_first() -> None:
    found = commits_of([Line(1, 1.0, "a"), Line(1, 1.01, "b"), Line(2, 2.0, "b"), Line(2, 2.01, "a")])
    assert [(c.step, c.t, c.size) for c in found] == [(1, 1.0, 2), (2, 2.0, 2)]


def test_the_size_a_worker_reports_counts_before_the_number_of_writers() -> None:
    assert Commit(1, 0.0, frozenset("a"), 2).size == 2
    assert Commit(1, 0.0, frozenset("ab"), 0).size == 2


def test_a_late_line_of_a_worker_is_no_way_back() -> None:
    found = commits_of([Line(1, 1.0, "a"), Line(1, 1.0, "b"), Line(2, 2.0, "a"), Line(3, 3.0, "a"), Line(2, 3.1, "b")])
    assert [c.step for c in found] == [1, 2, 3]
    assert found[1].writers == {"a", "b"}


def test_new_processes_that_begin_at_a_checkpoint_lose_steps() -> None:
    old = lines("a", 1, 28, 0.0) + lines("b", 1, 28, 0.001)
    new = lines("c", 21, 40, 10.0) + lines("d", 21, 40, 10.001)
    found = disturbance(commits_of(old + new), event_t=2.65)
    assert found.lost_steps == 8
    assert found.gap_s == pytest.approx(10.0 - 2.7)
    assert found.gap_after_step == 28
    assert found.regain_s == pytest.approx(10.8 - 2.7)
    assert (found.size_before, found.size_after, found.reaction_s) == (2, 2, None)


def test_a_newcomer_at_the_step_of_the_others_loses_nothing() -> None:
    found = disturbance(commits_of(lines("a", 1, 40, 0.0, 0.2) + lines("b", 31, 40, 6.001, 0.2)), event_t=3.05)
    assert found.lost_steps == 0
    assert found.gap_s == pytest.approx(0.2)
    assert found.reaction_s == pytest.approx(6.0 - 3.05)
    assert (found.size_before, found.size_after) == (1, 2)


def test_a_gap_counts_in_steps_of_the_slower_size() -> None:
    one = lines("a", 1, 20, 0.0, 0.4)
    two = lines("a", 21, 60, one[-1].t + 0.6, 0.2) + lines("b", 21, 60, one[-1].t + 0.601, 0.2)
    found = disturbance(commits_of(one + two), event_t=4.0)
    assert found.gap_s == pytest.approx(0.6)
    assert found.gap_steps == pytest.approx(1.5)
    assert found.gap_fast_steps == pytest.approx(3.0)
    assert found.beyond_step_s == pytest.approx(0.2)


def test_gaps_before_the_event_do_not_count() -> None:
    found = disturbance(commits_of(lines("a", 1, 5, 0.0) + lines("a", 6, 30, 9.0)), event_t=10.0)
    assert found.gap_s == pytest.approx(0.1)


def test_an_event_without_commits_on_both_sides_is_refused() -> None:
    with pytest.raises(ValueError, match="0 after it"):
        disturbance(commits_of(lines("a", 1, 5, 0.0)), event_t=99.0)


def row(system: str, scenario: str, gap: float, **more: object) -> dict[str, object]:
    return {
        "model": "m",
        "system": system,
        "scenario": scenario,
        "gap_s": gap,
        "gap_steps": gap / 0.2,
        "lost_steps": 0,
        "step_before_s": 0.2,
        "step_after_s": 0.2,
        "same_digest": True,
        **more,
    }


def test_failed_runs_are_counted_and_do_not_enter_medians() -> None:
    (entry,) = summary([row("s", "kill", 1.0), row("s", "kill", 3.0), row("s", "kill", math.nan, failed="no recovery")])
    assert (entry["runs"], entry["failed"], entry["same_digest"]) == (3, 1, 2)
    assert entry["gap_s"] == {"median": 2.0, "min": 1.0, "max": 3.0}


def test_targets_compare_with_the_shortest_variant_of_a_peers_default_set_up() -> None:
    rows = [
        row("isoscale", "scale out", 0.3),
        row("torchft", "scale out", 0.25),
        row("torchrun", "scale out", 7.0),
        row("isoscale", "kill", 0.5),
        row("torchft", "kill", 5.0),
        row("torchft, heartbeat 1 s", "kill", 1.5),
        row("torchft as shipped", "kill", math.nan, failed="the survivor died"),
        row("torchrun", "kill node", 20.0),
        row("torchrun", "kill", 9.0),
    ]
    found = {entry["what"]: entry for entry in targets(summary(rows))}
    assert found["scale out: gap in median steps"]["meets"]
    assert not found["scale out: times shorter than torchft's"]["meets"]
    assert found["scale out: times shorter than torchrun's"]["meets"]
    assert found["kill: times shorter than torchft's"]["value"] == pytest.approx(10.0)
    assert found["kill: times shorter than torchrun's"]["value"] == pytest.approx(18.0)
    assert not found["kill: times shorter than torchrun's"]["for_information"]
    tuned = found["kill: times shorter than torchft, heartbeat 1 s's"]
    assert (tuned["value"], tuned["meets"], tuned["for_information"]) == (pytest.approx(3.0), False, True)
    assert found["kill: committed steps lost"]["meets"]
    assert found["kill: gap less one step, s"]["value"] == pytest.approx(0.3)
    assert not [what for what in found if "as shipped" in what]


def test_the_longest_of_our_gaps_decides_what_is_called_worst() -> None:
    rows = [row("isoscale", "migrate", gap) for gap in (0.2, 0.3, 0.9)]
    (entry,) = [e for e in targets(summary(rows)) if e["what"] == "migrate: gap in median steps"]
    assert (entry["meets"], entry["worst_meets"]) == (True, False)


def test_the_executor_that_waits_longest_decides_what_next_took(tmp_path: Path) -> None:
    (tmp_path / "commits-7.txt").write_text("1 10.0 0 0.001\n2 11.0 0 0.030\n")
    (tmp_path / "commits-8.txt").write_text("1 10.0 0 0.002\n2 11.0 0 0.001\n")
    assert next_seconds(tmp_path) == {1: 0.002, 2: 0.030}


def test_excess_is_what_steps_after_a_checkpoint_take_beyond_the_usual_step() -> None:
    t, found = 0.0, []
    for step in range(1, 42):
        t += 0.1 + {11: 0.05, 12: 0.02, 31: 0.05, 32: 0.02}.get(step, 0.0)
        found.append(Line(step, t, "a"))
    assert excess(commits_of(found), [11, 31], every=10, after=5) == pytest.approx(0.07)


def test_claims_show_targets_and_every_system_with_what_failed() -> None:
    rows = [
        row("isoscale", "kill", 0.5),
        row("torchft", "kill", 5.0, same_digest=False),
        row("torchft, heartbeat 1 s", "kill", 1.5),
        row("torchft as shipped", "kill", math.nan, failed="the survivor died"),
    ]
    summed = summary(rows)
    found = list(elastic({"targets": targets(summed), "summary": summed, "repetitions": 1}))
    by_what = {what: (target, measured, verdict) for what, target, measured, verdict in found}
    assert by_what["kill: times shorter than torchft's, m"] == ("at least 5", "10 (worst of 1: 10)", "met")
    assert "kill: times shorter than torchft, heartbeat 1 s's, m" not in by_what
    assert "digest of the undisturbed run in 0 of 1" in by_what["torchft, kill, m"][1]
    assert "gap 0.500 s (0.500-0.500), a step 0.200 s, gap less one step 0.300 s" in by_what["isoscale, kill, m"][1]
    assert by_what["torchft as shipped, kill, m"][2] == "1 of 1 did not recover"


def test_the_table_shows_gap_step_their_difference_and_what_was_lost() -> None:
    rows = [row("isoscale", "kill", 0.5, beyond_step_s=0.3), row("torchrun", "kill", math.nan, failed="it hung")]
    header, ours, theirs = table(summary(rows)).splitlines()
    assert header.split() == ["model", "event", "system", "longest", "gap", "a", "step", "gap-step", "lost", "bits"]
    assert " ".join(ours.split()) == "m kill isoscale 0.500 s (0.50- 0.50) 0.200 s 0.300 s 0 1 of 1 equal"
    assert theirs.endswith("1 of 1 did not recover")

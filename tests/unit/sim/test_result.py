"""Figures of a simulation against arithmetic done by hand, and the pictures and pages made of them."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math

import numpy as np
import pytest

from isoscale.analysis.figures import render
from isoscale.analysis.simulation_figures import draw_overview
from isoscale.analysis.simulation_page import simulation_page
from isoscale.analysis.simulation_rows import COLUMNS, cells
from isoscale.analysis.simulation_values import MAX_ROWS, PolicyRun, policy_run
from isoscale.errors import UserError
from isoscale.sim.costs import PRESETS, Costs, parse_costs
from isoscale.sim.engine import Options
from isoscale.sim.ledger import level_over_time
from isoscale.sim.result import Summary, average, details, summarise, summary_json, unfairness
from isoscale.timelines.timeline import jobs_of, timeline
from tests.unit.sim.worlds_of_one import Scripted, cluster, first_fit, job, run

KEYS = {
    "mean_jct_s",
    "p50_jct_s",
    "p99_jct_s",
    "makespan_s",
    "mean_queue_s",
    "allocated_utilisation",
    "busy_utilisation",
    "rescales",
    "decision_ms_p50",
    "jobs_finished",
}


def test_summary_by_hand() -> None:
    costs = Costs(start_s=10.0)
    outcome, _ = run([job("a", 10.0), job("b", 20.0)], cluster(2), Scripted(first_fit), Options(costs=costs))
    summary = summarise(outcome)
    assert (summary.mean_jct_s, summary.makespan_s, summary.mean_queue_s) == (110.0, 120.0, 0.0)
    assert summary.allocated_utilisation == pytest.approx(220 / 240)
    assert summary.busy_utilisation == pytest.approx(200 / 240)
    assert (summary.jobs_finished, summary.rescales) == (2, 0)
    assert set(summary_json(summary)) == KEYS
    assert type(summary_json(summary)["jobs_finished"]) is int


def test_a_summary_of_nothing_is_json() -> None:
    outcome, _ = run([job("a", devices=9)], cluster(1), Scripted(first_fit))
    found = json.loads(json.dumps(summary_json(summarise(outcome)), allow_nan=False))
    assert found["mean_jct_s"] is None
    assert found["jobs_finished"] == 0
    assert details(outcome).jobs_unfinished == 1


def test_seeds_are_averaged() -> None:
    summaries = [summarise(run([job("a", work=w)], cluster(1), Scripted(first_fit))[0]) for w in (100.0, 300.0)]
    assert average(summaries).mean_jct_s == 200.0


def test_unfairness_compares_with_a_fair_share() -> None:
    # Two jobs of 100 s on one device: a fair share gives both 200 s.
    outcome, _ = run([job("a"), job("b")], cluster(1), Scripted(first_fit))
    # During a's life demand was 2, so 100 s against 200; during b's it was 2 and then 1, 1.5 on average.
    assert unfairness(outcome) == pytest.approx([0.5, 200 / 150])


def test_levels_over_time_keep_the_area() -> None:
    rng = np.random.default_rng(1)
    begins = rng.uniform(0, 50, 40)
    ends = begins + rng.uniform(0, 50, 40)
    levels = rng.uniform(0, 8, 40)
    edges = np.linspace(0, 100, 18)
    found = level_over_time(begins.tolist(), ends.tolist(), levels.tolist(), edges)
    assert (found * np.diff(edges)).sum() == pytest.approx(((ends - begins) * levels).sum())
    by_hand = [
        sum(level * max(0.0, min(e, high) - max(b, low)) for b, e, level in zip(begins, ends, levels, strict=True))
        / (high - low)
        for low, high in itertools.pairwise(edges)
    ]
    assert found == pytest.approx(by_hand)


def some_run(name: str = "first-fit", jobs: int = 12) -> PolicyRun:
    many = [job(f"j{i}", 20.0 * i, 60.0 + 7 * i, devices=1 + i % 3) for i in range(jobs)]
    return policy_run(name, [run(many, cluster(4), Scripted(first_fit), Options(costs=Costs(start_s=5.0)))[0]])


def test_many_jobs_are_shown_by_a_few() -> None:
    shown = some_run(jobs=500)
    assert len(shown.rows) == MAX_ROWS
    # Later jobs are larger here.
    assert shown.rows[-1].name == "j499"
    submitted = [row.submitted for row in shown.rows]
    assert submitted == sorted(submitted)
    assert submitted[0] > 0
    assert shown.num_jobs == 500


def test_pictures_are_the_same_bytes_twice() -> None:
    runs = [some_run("a"), some_run("b")]
    first, second = (render(draw_overview(runs, "t", "s"), dpi=40) for _ in range(2))
    assert first == second
    assert first.startswith(b"\x89PNG")


def test_the_page_needs_nothing_else_and_escapes_names() -> None:
    text = simulation_page([some_run("<b>"), some_run("other")], "a & b", {"trace": "<x>"})
    assert "<b>" not in text
    assert "a &amp; b" in text
    assert "http://" not in text
    assert "https://" not in text
    assert "<script" not in text
    assert text.count("data:image/png;base64,") == 4
    assert all(f">{name}</th>" in text for name in COLUMNS)


def test_the_best_number_of_a_column_is_marked() -> None:
    slow = some_run("slow")
    fast = dataclasses.replace(
        some_run("fast"), summary=dataclasses.replace(slow.summary, mean_jct_s=slow.summary.mean_jct_s / 2)
    )
    text = simulation_page([slow, fast], "t", {})
    assert f'<td class="best">{cells(fast)[1]}</td>' in text
    assert f'<td class="best">{cells(slow)[1]}</td>' not in text


def test_reports_read_simulated_logs() -> None:
    jobs = [job("a", 100.0), job("b", 130.0, devices=2)]
    _, recorder = run(jobs, cluster(2), Scripted(first_fit), Options(costs=PRESETS["stop-free"]))
    assert list(jobs_of(recorder.events)) == ["a", "b"]
    shown = timeline([event for event in recorder.events if event.get("job") == "a"])
    assert shown.state == "finished"
    assert shown.sizes == (1,) or 1 in [size for _, size in shown.sizes]


@pytest.mark.parametrize(
    ("text", "costs"),
    [
        ("free", Costs()),
        ("stop-free", PRESETS["stop-free"]),
        ("free:rescale_s=2.5,start_s=20", Costs(rescale_s=2.5, start_s=20.0)),
    ],
)
def test_costs_are_parsed(text: str, costs: Costs) -> None:
    assert parse_costs(text) == costs


@pytest.mark.parametrize("text", ["cheap", "free:start_s=x", "free:start_s=-1", "free:nothing=1", "free:start_s=nan"])
def test_bad_costs_name_the_option(text: str) -> None:
    with pytest.raises(UserError, match=r"^--costs="):
        parse_costs(text)


def test_a_summary_has_no_hidden_nan() -> None:
    fields = [field.name for field in dataclasses.fields(Summary)]
    nothing = Summary(**dict.fromkeys(fields, math.nan))
    assert set(summary_json(nothing).values()) == {None}

"""The models of docs/scale.md: simulated failures against closed forms, counts against formulas, costs that grow."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import mean

import pytest

from benchmarks.scale import costs, failures, network, options, traffic
from benchmarks.scale.failures import HOUR, Elastic, Restarted
from benchmarks.scale.fleet import Fleet
from isoscale.protocol import messages as m

YEAR = 365 * 24 * HOUR
SEEDS = range(40)


@pytest.mark.parametrize(
    ("mean_h", "restart_s", "write_s", "minutes"), [(24, 600, 300, 117), (6, 600, 300, 57), (0.25, 600, 300, 9.1)]
)
def test_dalys_examples_and_his_formula_against_the_simulation(
    mean_h: float, restart_s: float, write_s: float, minutes: float
) -> None:
    every_s = failures.best_interval(write_s, mean_h * HOUR)
    assert every_s / 60 == pytest.approx(minutes, rel=0.01)
    job = Restarted(executors=8, every_s=every_s, write_s=write_s, restart_s=restart_s)
    runs = [failures.restarted(job, 8 * mean_h * HOUR, 500 * HOUR, seed) for seed in SEEDS]
    assert mean(runs) == pytest.approx(failures.daly(job, 8 * mean_h * HOUR), rel=0.02)


def test_the_best_interval_is_best_by_the_formula() -> None:
    def goodput(every_s: float) -> float:
        return failures.daly(Restarted(executors=1, every_s=every_s, write_s=60, restart_s=300), 10 * HOUR)

    best = failures.best_interval(60, 10 * HOUR)
    assert goodput(best) > max(goodput(0.8 * best), goodput(1.25 * best))


@pytest.mark.parametrize(("executors", "pause_s"), [(10, 30.0), (1000, 0.6), (1000, 60.0), (1000, 3 * HOUR)])
def test_pauses_that_failures_begin_anew(executors: int, pause_s: float) -> None:
    job = Elastic(executors=executors, pause_s=pause_s, spares=10**6)
    mtbf_s = 2000 * HOUR
    useful_s = 2000 * HOUR if executors == 1000 else 50_000 * HOUR
    expected = failures.elastic_closed_form(pause_s, executors, mtbf_s)
    runs = [failures.elastic(job, mtbf_s, useful_s, seed) for seed in SEEDS[:10]]
    assert mean(runs) == pytest.approx(expected, rel=0.05)
    assert 1 - mean(runs) == pytest.approx(1 - expected, rel=0.1)


def test_a_job_that_shrinks_is_as_fast_as_its_fullest_executor() -> None:
    one = Elastic(executors=4, workers_each=1, pause_s=0)
    several = Elastic(executors=4, workers_each=3, pause_s=0)
    assert [one.speed(missing) for missing in (0, 1, 2, 3, 4)] == [1, 1 / 2, 1 / 2, 1 / 4, 0]
    assert [several.speed(missing) for missing in (0, 1, 2, 3)] == [1, 3 / 4, 3 / 6, 3 / 12]


def test_without_spares_it_waits_for_repairs() -> None:
    # Rarely more than one of ten is missing: the share of time with one missing is that of a queue without end.
    mtbf_s, repair_s, executors = 1000 * HOUR, 2 * HOUR, 10
    job = Elastic(executors=executors, pause_s=0, repair_s=repair_s)
    runs = [failures.elastic(job, mtbf_s, 20_000 * HOUR, seed) for seed in SEEDS[:10]]
    there = (mtbf_s / (mtbf_s + repair_s)) ** executors
    assert mean(runs) == pytest.approx(there + (1 - there) / 2, rel=0.005)


def test_spares_come_in_at_once_until_there_are_none() -> None:
    mtbf_s, executors = 100 * HOUR, 20
    few, many = (
        mean(
            failures.elastic(
                Elastic(executors=executors, pause_s=1, spares=spares, join_s=5, repair_s=10 * HOUR), mtbf_s, YEAR, seed
            )
            for seed in SEEDS[:5]
        )
        for spares in (1, 20)
    )
    assert many > 0.999
    assert few < many


def test_failures_that_take_everybody_cost_a_checkpoints_age() -> None:
    mtbf_s, executors = 1000 * HOUR, 10
    job = Elastic(
        executors=executors, pause_s=0, spares=10**6, all_share=1.0, checkpoint_age_s=4 * HOUR, restart_s=1 * HOUR
    )
    runs = [failures.elastic(job, mtbf_s, 50_000 * HOUR, seed) for seed in SEEDS[:10]]
    # In a mean of 100 hours between failures, two are lost and one is waited.
    assert mean(runs) == pytest.approx((100 - 2) / (100 + 1), rel=0.02)


@pytest.mark.parametrize("size", [4, 30])
def test_counts_of_messages_follow_from_the_protocol(size: int, tmp_path: Path) -> None:
    hello = m.Hello(executor=0, pid=1, kind="cpu", fingerprint="f", kernels={}, factors={})
    fleet = Fleet(size, tmp_path / "events.jsonl", hello)
    found = {}
    for name, work in traffic.sections(fleet).items():
        with fleet.section() as section:
            work()
        traffic.check(fleet, name)
        found[name] = dict(section.by_type)
        assert section.log_bytes > 0 or name in ("second", "step", "end")
    fleet.close()
    assert found["start"] == {"Hello": size, "Begin": size, "Sealed": size, "StepDone": 1}
    assert found["second"] == {"Beat": size, "Heard": size}
    assert found["step"] == {"StepDone": 1}
    assert found["scale out"] == {
        "Hello": 1,
        "Approach": 1,
        "Held": 1,
        "Prepare": size + 1,
        "Prepared": size + 1,
        "Switch": size,
        "Switched": size,
        "Received": 1,
        "Landed": 1,
        "Sealed": size + 1,
        "StepDone": 2,
    }
    recovering = {"Broken": size - 1, "Recover": size - 1, "Switched": size - 1}
    assert found["recover"] == {**recovering, "Hello": 1, "Approach": 1}
    assert found["end"] == {"Finished": size, "SaveResult": 1}


def test_orders_that_name_everybody_grow_with_the_square() -> None:
    rows = options.kept("scale_traffic")["rows"]
    sent = {row["executors"]: row["bytes_out"] for row in rows if row["section"] == "scale out"}
    assert 90 < sent[10_000] / sent[1_000] < 110


def test_kept_costs_are_those_of_the_kept_constants() -> None:
    rows = costs.rows_from(options.kept("scale_constants"), options.kept("scale_traffic"))
    assert rows == options.kept("scale_costs")["rows"]
    assert [row["executors"] for row in rows] == list(options.SIZES)
    for flat, grouped in (("seal_s", "seal_two_level_s"), ("form_s", "form_two_level_s")):
        assert rows[-1][grouped] < rows[-1][flat] / 10


def test_the_model_of_a_ring_is_latency_and_volume() -> None:
    c = network.Constants.of(options.kept("scale_constants"))
    assert network.buckets(26e6) == 2
    latency = 2 * 2 * 9 * c.alpha_s
    assert network.ring_s(c, 10, 26e6) == pytest.approx(latency + 2 * 26e6 * 0.9 / c.bytes_per_s)
    assert network.around_root(10_000) in (64, 128)
    assert math.isclose(network.volume_s(c, 2, 1e9), 1e9 / c.bytes_per_s)

"""Jobs out of traces: where speeds come from, and what the controller is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from isoscale.errors import UserError
from isoscale.sim.cluster_spec import parse_cluster
from isoscale.sim.traces.record import TraceJob
from isoscale.sim.workload import SpeedSources, Workload, make_cluster, make_jobs
from isoscale.sim.worlds.curves import Curve, read_gavel_curves, shipped_curves

POOLS = make_cluster(parse_cluster("V100*8+T4*4"))
NODES = make_cluster(parse_cluster("4x(T4*4)"))


def trace_job(name: str = "a", **changes: object) -> TraceJob:
    return TraceJob(**{"name": name, "submit_s": 0.0, "devices": 2, "duration_s": 100.0, **changes})  # type: ignore[arg-type]


def test_a_job_runs_as_long_as_in_the_trace_on_what_it_asked_for() -> None:
    jobs = make_jobs([trace_job(f"j{i}", devices=1 + i % 4, duration_s=50.0 + i) for i in range(40)], NODES, Workload())
    for number, job in enumerate(jobs):
        shape = (("T4", job.request.requested_devices),)
        assert job.truth.pace(shape, 0).seconds(0.0, job.truth.total_work) == pytest.approx(50.0 + number)
        assert job.isolated_s == pytest.approx(50.0 + number)
        # Nobody writes down how long a job will take.
        assert job.declared_work is None
        assert job.request.requested_devices <= job.request.max_devices <= 4 * job.request.requested_devices


def test_more_devices_are_faster_but_not_for_free() -> None:
    [job] = make_jobs([trace_job(devices=1)], NODES, Workload(seed=2))
    one, two = (job.truth.pace((("T4", count),), 0) for count in (1, 2))
    assert one.busy == 1.0
    assert two.seconds(0.0, 1.0) < one.seconds(0.0, 1.0)
    assert 0.3 < two.busy <= 1.0


def test_curves_are_drawn_by_seed() -> None:
    trace = [trace_job(f"j{i}", devices=1) for i in range(20)]

    def pictures(seed: int) -> list[float]:
        jobs = make_jobs(trace, NODES, Workload(seed=seed))
        return [job.truth.pace((("T4", 2),), 0).seconds(0.0, 100.0) for job in jobs]

    assert pictures(1) == pictures(1)
    assert pictures(1) != pictures(2)


def test_a_table_for_some_jobs_leaves_the_others_draws_alone() -> None:
    plain = [trace_job(f"j{i}", devices=1) for i in range(10)]
    mixed = [trace_job("j0", devices=1, application="resnet50", batch=64, steps=10.0), *plain[1:]]
    paces = [
        [job.truth.pace((("T4", 2),), 0).seconds(0.0, 100.0) for job in make_jobs(trace, NODES, Workload())][1:]
        for trace in (plain, mixed)
    ]
    assert paces[0] == paces[1]


def test_known_applications_use_their_measured_curve() -> None:
    curve = next(one for one in shipped_curves() if (one.application, one.batch) == ("resnet50", 64))
    sources = SpeedSources(NODES, Workload())
    job = sources.make(trace_job(devices=4, application="resnet50", batch=64, steps=1000.0))
    assert job.truth.pace((("T4", 4),), 0).seconds(0.0, 1000.0) == pytest.approx(1000.0 / curve.rates[2])
    assert job.declared_work == 1000.0
    assert sources.used == {"measured curves": 1}


def test_logical_workers_split_over_kinds() -> None:
    job = trace_job(
        devices=4,
        workers=8,
        steps=10.0,
        duration_s=None,
        kind="V100",
        kinds=("V100", "T4"),
        turn_s={"V100": 0.5, "T4": 1.0},
    )
    [made] = make_jobs([job], POOLS, Workload())
    assert made.request.kinds == ("V100", "T4")
    assert made.request.mixes_kinds
    assert (made.request.num_logical_workers, made.request.max_devices) == (8, 8)
    # 8 workers on 2 V100 and 1 T4: 3 + 3 + 2 turns, 2 s a step.
    assert made.truth.step_s((("V100", 2), ("T4", 1)), 0) == 2.0
    assert made.isolated_s == pytest.approx(10.0 * 2 * 0.5)


def test_rigid_kind_has_room_for_the_job() -> None:
    [made] = make_jobs([trace_job(devices=6, kinds=("T4", "V100"))], POOLS, Workload())
    assert made.request.kinds == ("V100", "T4")
    with pytest.raises(UserError, match=r"--cluster=.*job a asks for 9 devices of V100 or T4, which it does not have"):
        make_jobs([trace_job(devices=9)], POOLS, Workload())
    with pytest.raises(UserError, match="asks for 2 devices of K80"):
        make_jobs([trace_job(kind="K80")], POOLS, Workload())


def test_jobs_that_are_too_large_may_be_left_out() -> None:
    trace = [trace_job("a", devices=9), trace_job("b", devices=8), trace_job("c", devices=5, kind="T4")]
    jobs = make_jobs(trace, POOLS, Workload(drop_large=True))
    assert [job.request.name for job in jobs] == ["b"]
    with pytest.raises(UserError, match="every job asks for more"):
        make_jobs(trace[:1], POOLS, Workload(drop_large=True))


def test_kind_speeds_scale_what_was_measured() -> None:
    workload = Workload(kind_speeds={"V100": 2.0})
    [made] = make_jobs([trace_job(devices=1, kinds=("T4", "V100"))], POOLS, workload)
    fast, slow = (made.truth.pace(((kind, 1),), 0).seconds(0.0, 100.0) for kind in ("V100", "T4"))
    assert slow == pytest.approx(2 * fast)


def test_a_window_keeps_its_jobs_and_begins_at_zero() -> None:
    trace = [trace_job(f"j{i}", submit_s=10.0 * i) for i in range(5)]
    jobs = make_jobs(trace, NODES, Workload(begin_s=15.0, end_s=35.0))
    assert [(job.request.name, job.request.submitted_s) for job in jobs] == [("j2", 5.0), ("j3", 15.0)]
    with pytest.raises(UserError, match="--window"):
        make_jobs(trace, NODES, Workload(begin_s=1000.0))


def test_gavel_throughputs_by_kind(tmp_path: Path) -> None:
    path = tmp_path / "throughputs.json"
    key = "('LM (batch size 5)', {})"
    path.write_text(
        '{"v100": {"'
        + key.format(1)
        + '": {"null": 10.0}, "'
        + key.format(2)
        + '": {"null": 16.0}}, "k80": {"'
        + key.format(1)
        + '": {"null": 2.0}}}'
    )
    assert read_gavel_curves(path)["LM (batch size 5)"]["v100"].sizes == (1, 2)
    cluster = make_cluster(parse_cluster("K80*4+V100*4"))
    job = trace_job(devices=1, duration_s=None, steps=100.0, application="LM (batch size 5)")
    [made] = make_jobs([job], cluster, Workload(speeds=path))
    assert made.truth.pace((("V100", 2),), 0).seconds(0.0, 160.0) == pytest.approx(10.0)
    assert made.truth.pace((("K80", 1),), 0).seconds(0.0, 100.0) == pytest.approx(50.0)
    path.write_text("[]")
    with pytest.raises(UserError, match="--speeds"):
        read_gavel_curves(path)


def test_elasticflow_directories_and_empty_ones(tmp_path: Path) -> None:
    (tmp_path / "net.csv").write_text("global_batch_size,1,2,4,8,16,32,64\n64,1.0,1.5,2.0,nan,0,,\n")
    job = trace_job(devices=2, duration_s=None, steps=30.0, application="net", batch=64)
    [made] = make_jobs([job], NODES, Workload(speeds=tmp_path))
    assert made.isolated_s == pytest.approx(20.0)
    assert made.request.max_devices == 4
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"--speeds=.*no tables"):
        make_jobs([job], NODES, Workload(speeds=tmp_path / "empty"))


def test_curves_that_begin_late_are_extended_downwards() -> None:
    curve = Curve(application="a", kind="", batch=0, sizes=(4, 8), rates=(2.0, 3.0))
    assert curve.dense(8)[2] == pytest.approx(1.0)
    assert curve.dense(12)[12] == pytest.approx(3.0)

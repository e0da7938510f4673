"""The Pollux simulator's tables, in the small: times, gains, batches, and what a job learns about itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from isoscale.errors import UserError
from isoscale.scheduling.state import Cluster, Node
from isoscale.scheduling.throughput import GoodputSpeed
from isoscale.sim.engine import Options, Simulation
from isoscale.sim.traces.record import TraceJob
from isoscale.sim.worlds.pollux import PolluxTruth, pollux_job, pollux_tables
from isoscale.sim.worlds.pollux_agent import PolluxAgent
from isoscale.sim.worlds.pollux_settings import Settings, Spread
from isoscale.sim.worlds.pollux_tables import PolluxTables
from tests.unit.sim.worlds_of_one import Scripted, first_fit


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """An application with a step of 0.1 s + 10 ms a sample, 50 ms of synchronisation, twice that across nodes."""
    directory = tmp_path / "toy"
    directory.mkdir()
    lines = ["placement,local_bsz,step_time,sync_time"]
    for placement in ("1", "2", "3", "4", "11", "12", "22", "44"):
        sync = 0.0 if placement == "1" else 0.05 if len(placement) == 1 else 0.1
        lines += [f"{placement},{local},{0.1 + 0.01 * local + sync},{sync}" for local in (4, 8, 16)]
    (directory / "placements.csv").write_text("\n".join(lines) + "\n")
    scalability = ["num_nodes,num_replicas,local_bsz,step_time,sync_time"]
    scalability += [f"{n},{4 * n},{b},{0.2 + 0.01 * b + 0.1},0.1" for n in (3, 4) for b in (4, 8, 16)]
    (directory / "scalability.csv").write_text("\n".join(scalability) + "\n")
    for batch in (16, 64):
        # Two epochs of 100 progress each at any batch; noise doubles in the second.
        rows = [f"{100.0 * epoch},{1600 * epoch / batch:.0f},50.0,1.0,{noise}" for epoch, noise in ((1, 4.0), (2, 8.0))]
        (directory / f"validation-{batch}.csv").write_text(
            "progress,iteration,metric,grad_sqr,grad_var\n" + "\n".join(rows)
        )
    return tmp_path


def test_times_between_measured_batches_are_interpolated(traces: Path) -> None:
    tables = PolluxTables(traces / "toy")
    assert tables.step_times((1,), 6) == pytest.approx((0.16, 0.0))
    assert tables.step_times((2, 1), 8) == pytest.approx((0.28, 0.1))
    # Not measured: 3 nodes, from the scalability table.
    assert tables.step_times((4, 4, 4), 8) == pytest.approx((0.38, 0.1))


def test_large_batches_are_accumulated(traces: Path) -> None:
    tables = PolluxTables(traces / "toy")
    spread = Spread(tables, (2,), 64)
    assert (spread.atomic, spread.accumulate, spread.batch) == (16, 1, 64)
    assert spread.step_s == pytest.approx(0.31 + 0.26)
    assert spread.busy == pytest.approx(0.52 / 0.57)
    # One device takes two passes as soon as the batch is not the smallest.
    assert Spread(tables, (1,), 17).accumulate == 1
    assert Spread(tables, (1,), 16).accumulate == 0
    # Four samples on each device are the least.
    assert Spread(tables, (4, 4), 16).step_s == float("inf")


def test_gains_follow_the_gradient_noise(traces: Path) -> None:
    settings = Settings(PolluxTables(traces / "toy"))
    assert settings.gains(16) == pytest.approx([1.0, 1.0])
    # (4 + 1) / (4/4 + 1), and (8 + 1) / (8/4 + 1)
    assert settings.gains(64) == pytest.approx([2.5, 3.0])
    assert settings.noise(16) == pytest.approx([64.0, 128.0])


def test_the_best_batch_is_the_best_of_all_candidates(traces: Path) -> None:
    settings = Settings(PolluxTables(traces / "toy"))
    for counts in ((1,), (4,), (2, 2)):
        best = settings.rates(counts, 0)
        tried = [settings.gains(one.batch) / one.step_s for one in settings.candidates(counts)]
        assert best == pytest.approx([max(rates[epoch] for rates in tried) for epoch in range(2)])


def test_a_job_needs_the_time_of_its_epochs(traces: Path) -> None:
    truth = PolluxTruth(Settings(PolluxTables(traces / "toy")), profiled=True)
    spread = Spread(PolluxTables(traces / "toy"), (4,), 64)
    expected = 100.0 / (2.5 / spread.step_s) + 100.0 / (3.0 / spread.step_s)
    assert truth.pace((("T4", 4),), 64).seconds(0.0, truth.total_work) == pytest.approx(expected)
    with pytest.raises(UserError, match="toy cannot run"):
        truth.pace((("T4", 8),), 16)


def test_what_a_job_knows_comes_from_where_it_ran(traces: Path) -> None:
    truth = PolluxTruth(Settings(PolluxTables(traces / "toy")), profiled=False)
    assert truth.learned(0.0) is None
    truth.pace((("T4", 1),), 0)
    alone = truth.learned(0.0)
    assert isinstance(alone, GoodputSpeed)
    assert alone.communication.seconds(4, 1) == 0.0
    truth.pace((("T4", 4),), 0)
    with_neighbours = truth.learned(0.0)
    assert isinstance(with_neighbours, GoodputSpeed)
    assert with_neighbours.communication.seconds(4, 1) == pytest.approx(0.05)
    # Both times it chose 16 samples a pass, so what a sample costs cannot be told from what a pass costs.
    assert with_neighbours.fixed_s + 16 * with_neighbours.per_sample_s == pytest.approx(0.26)
    # The same knowledge is the same object: the controller is told only what is new.
    assert truth.learned(1.0) is with_neighbours
    assert truth.learned(150.0) is not with_neighbours


def test_what_was_learned_in_one_simulation_is_not_known_in_the_next(traces: Path) -> None:
    record = TraceJob(name="j", submit_s=0.0, devices=2, steps=0.0, application="toy", batch=64)
    jobs = [pollux_job(record, traces)]
    where = Cluster(nodes=(Node(name="n", kind="T4", num_devices=4),))
    first, second = (Simulation(jobs, where, Scripted(first_fit), Options()).run() for _ in range(2))
    assert first.finished_s == second.finished_s
    assert jobs[0].truth.learned(0.0) is None


def test_points_of_epochs_that_never_came_are_forgotten(traces: Path) -> None:
    agent = PolluxAgent(Settings(PolluxTables(traces / "toy")))
    spreads = agent.choose((("T4", 1),), 0)
    assert len(spreads) == 2
    known_first, known_second = (agent.model(epoch, 16) for epoch in (0, 1))
    # Moved in the first epoch: what the second would have shown is not known.
    agent.choose((("T4", 2),), 0)
    again = agent.model(0, 16)
    assert again.communication.seconds(2, 1) == pytest.approx(0.05)
    assert known_first.communication.seconds(2, 1) == known_second.communication.seconds(2, 1) == 0.0


def test_own_choices_are_not_better_than_the_best(traces: Path) -> None:
    known, learning = (PolluxTruth(Settings(PolluxTables(traces / "toy")), profiled=p) for p in (True, False))
    for shape in ((("T4", 1),), (("T4", 4),), (("T4", 2), ("T4", 2))):
        best, own = (truth.pace(shape, 0).seconds(0.0, 200.0) for truth in (known, learning))
        assert best <= own <= 1.2 * best


def test_declared_work_is_progress_or_steps_of_the_owners_batch(traces: Path) -> None:
    record = TraceJob(name="j", submit_s=1.0, devices=2, steps=0.0, application="toy", batch=64)
    adaptive, fixed = (pollux_job(record, traces, adaptive=adaptive) for adaptive in (True, False))
    assert adaptive.declared_work == 200.0
    assert (adaptive.request.min_batch, adaptive.request.max_batch, adaptive.request.max_devices) == (16, 64, 16)
    # 25 steps an epoch; the epoch under way is not counted, as in the original.
    assert fixed.declared_work == 25.0
    assert fixed.truth.remaining(150.0) == 1.0
    assert fixed.request.max_batch == 0
    assert adaptive.isolated_s == pytest.approx(fixed.isolated_s)


def test_missing_tables_name_the_option(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--speeds"):
        pollux_tables(tmp_path / "nothing")
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "placements.csv").write_text("placement,local_bsz,step_time,sync_time\n1,4,0.1,0\n")
    with pytest.raises(UserError, match=r"--speeds=.*validation"):
        PolluxTables(tmp_path / "half")

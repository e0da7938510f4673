"""Worlds and policies that users bring: found, checked at load, run like our own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from isoscale import plugins
from isoscale.errors import UserError
from isoscale.scheduling.policy import make_policy
from isoscale.scheduling.state import Cluster, JobRequest, Node, Shape
from isoscale.scheduling.throughput import TableSpeed
from isoscale.sim.costs import Costs
from isoscale.sim.engine import Options, Simulation
from isoscale.sim.job import ConstantPace, ModelTruth, Pace, SimJob
from isoscale.sim.recorder import ListRecorder
from isoscale.sim.run import Experiment
from isoscale.sim.traces.record import TraceJob
from isoscale.sim.workload import Workload
from isoscale.sim.worlds.pollux import pollux_job
from isoscale.sim.worlds.world import check_jobs, make_world

TWO_KINDS = Cluster(nodes=(Node(name="a", kind="V100", num_devices=2), Node(name="b", kind="T4", num_devices=4)))
HERE = "tests.unit.sim.test_worlds_from_outside"


def job(name: str = "job", *, kinds: tuple[str, ...] = ("V100", "T4"), costs: Costs | None = None) -> SimJob:
    speed = TableSpeed(tables={"V100": (0.0, 2.0, 4.0), "T4": (0.0, 1.0, 2.0)})
    request = JobRequest(name=name, submitted_s=0.0, requested_devices=1, max_devices=2, kinds=kinds)
    return SimJob(request=request, declared=speed, truth=ModelTruth(speed, 600.0), costs=costs)


class Lab:
    """A world of one's own."""

    def __init__(self, cost_s: float = 0.0) -> None:
        self._cost_s = cost_s

    def jobs(self, trace: list[TraceJob], cluster: Cluster, *, seed: int = 0) -> list[SimJob]:
        return [job(record.name, costs=Costs(start_s=self._cost_s)) for record in trace]


class NoPolicy:
    interval_s = 60.0


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "trace.csv"
    path.write_text("name,submit_s,devices,duration_s\na,0,1,600\nb,3600,1,600\n")
    return str(path)


def test_a_world_is_found_by_its_module(trace: str) -> None:
    for options, ends in (("", 300.0), ("(cost_s=20)", 320.0)):
        experiment = Experiment(
            trace=trace,
            cluster="V100*2+T4*4",
            world=f"{HERE}:Lab{options}",
            workload=Workload(end_s=100.0),
            options=Options(interval_s=0.0),
        )
        jobs = experiment.jobs(0)
        assert [one.request.name for one in jobs] == ["a"]
        outcome = experiment.simulate(make_policy("tiresias"), jobs, 0)
        assert outcome.finished_s == [ends]  # on a V100, by costs of its own


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("nowhere.at_all:Lab", "cannot be imported (ModuleNotFoundError"),
        (f"{HERE}:Lap", "has no Lap; give one of"),
        (f"{HERE}:", "is not MODULE:NAME"),
        (f"{HERE}:NoPolicy", "is no world: it has no jobs()"),
        ("mixd", "did you mean mixed?"),
    ],
)
def test_mistakes_in_a_world_are_named(path: str, words: str) -> None:
    with pytest.raises(UserError, match=re.escape(words)):
        make_world(path)


def test_mistakes_in_a_policy_are_named() -> None:
    with pytest.raises(UserError, match="is no policy: it has no oracle, watches_time, gang, decide"):
        make_policy(f"{HERE}:NoPolicy")
    with pytest.raises(UserError, match="or MODULE:CLASS"):
        make_policy("best")


def test_what_packages_declare_is_known_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "declared", lambda group: {"lab": f"{HERE}:Lab"} if "worlds" in group else {})
    assert isinstance(make_world("lab", cost_s=3.0), Lab)


def test_a_table_that_lacks_a_kind_is_found_at_load() -> None:
    check_jobs([job()], TWO_KINDS)
    with pytest.raises(UserError, match=r"knows no rate on 1 devices of A100"):
        check_jobs(
            [job(kinds=("V100", "A100"))], Cluster(nodes=(*TWO_KINDS.nodes, Node(name="c", kind="A100", num_devices=1)))
        )
    with pytest.raises(UserError, match="may use K80"):
        check_jobs([job(kinds=("K80",))], TWO_KINDS)
    with pytest.raises(UserError, match="is there twice"):
        check_jobs([job(), job()], TWO_KINDS)


def test_truth_is_told_the_time() -> None:
    """A job that is twice as fast from 1,000 s on, wherever it is placed then."""

    class AfterHours(ModelTruth):
        def fresh(self) -> AfterHours:
            return self

        def pace(self, shape: Shape, batch: int, done: float = 0.0, now: float = 0.0) -> Pace:
            return ConstantPace(2.0 if now >= 1000.0 else 1.0)

    speed = TableSpeed(tables={"T4": (0.0, 1.0)})
    requests = [JobRequest(name=str(at), submitted_s=at, requested_devices=1, kinds=("T4",)) for at in (0.0, 1000.0)]
    jobs = [SimJob(request=request, declared=speed, truth=AfterHours(speed, 100.0)) for request in requests]
    outcome = Simulation(jobs, TWO_KINDS, make_policy("fifo"), Options(), ListRecorder()).run()
    assert outcome.finished_s == [100.0, 1050.0]


def tables_by_kind(directory: Path, kinds: tuple[str, ...]) -> Path:
    """An application whose steps take half the time on a V100."""
    home = directory / "net"
    home.mkdir()
    seconds = {"T4": 2.0, "V100": 1.0}
    lines = [f"{kind},{p},{b},{seconds[kind] * b / 8},0.0" for kind in kinds for p in (1, 2) for b in (8, 16)]
    (home / "placements.csv").write_text("kind,placement,local_bsz,step_time,sync_time\n" + "\n".join(lines) + "\n")
    (home / "scalability.csv").write_text("kind,num_nodes,num_replicas,local_bsz,step_time,sync_time\n")
    for batch in (8, 16):
        (home / f"validation-{batch}.csv").write_text(
            "progress,iteration,grad_sqr,grad_var\n"
            # BERT's published variances begin at 7e15.
            + "".join(f"{100 * n},{100 * n},{x},{x}\n" for n, x in ((1, 7e15), (2, 1.0), (3, 1.0)))
        )
    return directory


@pytest.mark.parametrize("profiled", [False, True])
def test_tables_by_kind_give_speeds_by_kind(tmp_path: Path, profiled: bool) -> None:
    directory = tables_by_kind(tmp_path, ("T4", "V100"))
    record = TraceJob(name="a", submit_s=0.0, devices=1, steps=1.0, application="net", batch=8)
    made = pollux_job(record, directory, adaptive=True, profiled=profiled, kinds=("T4", "V100"))
    assert made.request.kinds == ("T4", "V100")
    seconds = {kind: made.truth.fresh().pace(((kind, 1),), 8).seconds(0.0, 50.0) for kind in ("T4", "V100")}
    assert seconds["T4"] == pytest.approx(2 * seconds["V100"])
    assert made.declared.rate((("T4", 1), ("V100", 1))) == 0.0
    if profiled:
        assert made.declared.rate((("V100", 1),), 8) == pytest.approx(2 * made.declared.rate((("T4", 1),), 8))
    else:
        truth = made.truth.fresh()
        truth.pace((("T4", 1),), 8)
        learned = truth.learned(0.0)
        assert learned is not None
        assert [learned.proven_on(kind) for kind in ("T4", "V100")] == [1, 0]  # type: ignore[attr-defined]
        assert learned.rates("V100", 1, 1)[1] == learned.rates("T4", 1, 1)[1]  # as long as nobody has tried
    with pytest.raises(UserError, match=r"no line of kind A100, which job a may use"):
        pollux_job(record, directory, kinds=("T4", "A100"))

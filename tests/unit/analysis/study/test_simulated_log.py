"""The figures of a simulation, computed again from its log, are the simulator's to the last bit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from isoscale.analysis.failures import should_retry
from isoscale.analysis.study.analysis import analyse, as_json
from isoscale.analysis.study.formats import open_trace, sources
from isoscale.analysis.study.reading import Reading
from isoscale.scheduling.policy import make_policy
from isoscale.sim.costs import PRESETS
from isoscale.sim.disturbances import DeviceFailures, ServingLoad
from isoscale.sim.engine import Options, Outcome
from isoscale.sim.interference import Interference
from isoscale.sim.recorder import FileRecorder
from isoscale.sim.result import details, summarise, summary_json
from isoscale.sim.run import Experiment

DISTURBED = Options(
    costs=PRESETS["stop-resume"],
    interference=Interference(share=0.3),
    failures=DeviceFailures(mean_s=20 * 3600.0, repair_s=1800.0),
    retry=should_retry,
    seed=3,
)
WORLDS = {
    "calm": Experiment(trace="philly:jobs=120,days=0.6", cluster="6x(V100*8)"),
    "disturbed": Experiment(trace="philly:jobs=120,days=0.6,failing=0.4", cluster="6x(V100*8)", options=DISTURBED),
    "lent": Experiment(
        trace="philly:jobs=60,days=0.4,hours=4",
        cluster="6x(V100*8)",
        options=replace(DISTURBED, failures=None),
        serving=ServingLoad(low=0.2, high=0.7),
    ),
}


def simulated(home: Path, world: str, policy: str) -> Outcome:
    experiment = WORLDS[world]
    home.mkdir(parents=True, exist_ok=True)
    with FileRecorder(home / "events.jsonl") as recorder:
        return experiment.simulate(make_policy(policy), experiment.jobs(0), 0, recorder)


@pytest.mark.parametrize("policy", ["fifo-backfill", "tiresias", "elastic-tiresias", "flow"])
@pytest.mark.parametrize("world", WORLDS)
def test_figures_are_the_simulators_own(tmp_path: Path, world: str, policy: str) -> None:
    outcome = simulated(tmp_path / policy, world, policy)
    (source,) = sources(str(tmp_path / policy))
    trace = open_trace(source, Reading(strict=True))
    found = as_json(analyse(trace, simulate_jobs=0))
    theirs = summary_json(summarise(outcome))
    theirs.pop("decision_ms_p50")
    assert found["own"]["summary"] == theirs
    assert found["jobs"] == len(outcome.jobs)
    more = details(outcome)
    assert found["own"]["retries"] == more.retries
    assert found["own"]["jobs_rejected"] == more.jobs_rejected
    assert found["status"]["by_jobs"].get("failed", 0) == more.jobs_failed
    assert found["status"]["by_jobs"].get("unfinished", 0) == more.jobs_unfinished
    assert {name: one["trials"] for name, one in found["failures"]["classes"].items()} == {
        name: row[0] for name, row in more.failures.items()
    }
    assert found["failures"]["trials"] == len(outcome.failed_trials)
    # Waits and run times by size are of the same jobs.
    started = [at for at in outcome.started_s if at == at]
    assert found["queue_s"]["all"]["count"] == len(started)
    assert found["queue_s"]["all"]["mean"] == theirs["mean_queue_s"]


def test_worlds_are_disturbed_enough_to_tell(tmp_path: Path) -> None:
    """Or the equality would be cheap."""
    outcome = simulated(tmp_path, "disturbed", "elastic-tiresias")
    assert outcome.failed_trials
    assert outcome.failed
    assert len(outcome.ledger.capacity) > 10
    assert sum(outcome.rescales) > 10
    assert len(simulated(tmp_path, "lent", "flow").ledger.reclaims) > 3


def test_a_log_without_its_cluster_says_what_is_missing(tmp_path: Path) -> None:
    simulated(tmp_path / "fifo", "calm", "fifo")
    log = tmp_path / "fifo" / "events.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(line for line in lines if '"cluster"' not in line))
    trace = open_trace(sources(str(tmp_path / "fifo"))[0], Reading(strict=True))
    found = as_json(analyse(trace, simulate_jobs=0))
    assert "cluster" in found["missing"]["load.utilisation"]


def test_lines_that_are_no_events_are_counted_and_shown(tmp_path: Path) -> None:
    simulated(tmp_path / "fifo", "calm", "fifo")
    log = tmp_path / "fifo" / "events.jsonl"
    text = log.read_text()
    bad = [
        "nonsense",
        '{"t": "soon", "event": "job_started"}',
        '{"t": 1.0}',
        '{"t": 5.0, "event": "job_finished", "job": "?"}',
    ]
    first, _, rest = text.partition("\n")
    log.write_text("\n".join([first, *bad]) + "\n" + rest + '{"t": 9')
    reading = Reading()
    trace = open_trace(sources(str(log))[0], reading)
    account = trace.account
    assert account.num_malformed == len(bad)
    assert [(one.line, one.field) for one in account.first] == [(2, "line"), (3, "t"), (4, "event"), (5, "job")]
    assert account.left_out == {"torn last lines": 1}
    assert account.lines["events.jsonl"] == len(text.splitlines()) + len(bad)
    with pytest.raises(ValueError, match=r"events.jsonl:2 line=nonsense"):
        open_trace(sources(str(log))[0], Reading(strict=True))


def test_the_directory_of_a_simulation_is_all_its_policies(tmp_path: Path) -> None:
    simulated(tmp_path / "fifo", "calm", "fifo")
    simulated(tmp_path / "srtf", "calm", "srtf")
    (tmp_path / "details.json").write_text(json.dumps({}))
    assert [source.label for source in sources(str(tmp_path))] == ["fifo", "srtf"]
    # What an earlier simulation left in the same place is no part of this one.
    (tmp_path / "details.json").write_text(json.dumps({"logs": ["srtf"]}))
    assert [source.label for source in sources(str(tmp_path))] == ["srtf"]
    (tmp_path / "details.json").write_text("damaged")
    assert [source.label for source in sources(str(tmp_path))] == ["fifo", "srtf"]

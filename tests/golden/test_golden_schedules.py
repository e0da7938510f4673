"""What every policy does with a small trace, decision by decision what it was when recorded.

A difference is a change of schedules: find the commit, and only if it is meant, record anew with
`pytest tests/golden --write-golden` and say so in the changelog.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from isoscale.scheduling.policy import policy_names
from isoscale.sim.costs import PRESETS
from isoscale.sim.engine import Options
from isoscale.sim.recorder import ListRecorder
from isoscale.sim.run import Experiment, parse_policies

HERE = Path(__file__).parent
RECORDED = HERE / "schedules.json"
#: policies as their papers have them, on the kind that a job prefers: recorded before they learned to choose
AS_PUBLISHED = (
    "autoscaler(kinds=preferred,paper=true)",
    "easyscale(kinds=preferred)",
    "elastic-tiresias(kinds=preferred)",
    "fixed-batch-max(kinds=preferred,paper=true)",
    "fixed-batch-min(kinds=preferred,paper=true)",
    "fixed-batch-random(kinds=preferred,paper=true)",
    "optimus(kinds=preferred)",
    "pollux(kinds=preferred)",
    "tiresias(kinds=preferred)",
)
ALL = (*policy_names(), *AS_PUBLISHED)


def schedule(policy: str) -> list[str]:
    """Every start, change of devices and end, one a line."""
    experiment = Experiment(
        trace=str(HERE / "schedules.csv"),
        cluster="V100*8+P100*4+T4*4",
        options=Options(costs=PRESETS["stop-free"], interval_s=10.0),
    )
    recorder = ListRecorder()
    [(_, make)] = parse_policies(policy)
    experiment.simulate(make(), experiment.jobs(0), 0, recorder)
    lines = []
    for event in recorder.events:
        if event["event"] in ("job_started", "job_resized"):
            held = "+".join(f"{count}@{node}" for node, count in event["nodes"]) or "nothing"
            lines.append(f"{event['t']:.3f} {event['job']} {held}")
        elif event["event"] == "job_finished":
            lines.append(f"{event['t']:.3f} {event['job']} done")
    return lines


@pytest.mark.parametrize("policy", ALL)
def test_decisions_are_the_recorded_ones(policy: str, request: pytest.FixtureRequest) -> None:
    here = schedule(policy)
    if request.config.getoption("--write-golden", default=False):
        recorded = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
        RECORDED.write_text(json.dumps(recorded | {policy: here}, indent=1, sort_keys=True) + "\n")
    there = json.loads(RECORDED.read_text())[policy]
    first = next((line for line in zip(here, there, strict=False) if line[0] != line[1]), None)
    assert first is None, f"{policy}: {first[0]!r}, recorded {first[1]!r}"
    assert len(here) == len(there)


def test_policies_differ_and_finish_every_job() -> None:
    """Or the goldens would guard nothing."""
    recorded = json.loads(RECORDED.read_text())
    assert set(recorded) == set(ALL)
    assert all(sum(line.endswith("done") for line in lines) == 14 for lines in recorded.values())
    # Without a batch to choose, the fixed-batch baselines are the autoscaler; EasyScale's jobs here prefer their only
    # kind, or mix.
    assert len({json.dumps(lines) for lines in recorded.values()}) >= len(recorded) - 7

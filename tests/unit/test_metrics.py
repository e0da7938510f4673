from __future__ import annotations

import re
from typing import Any

from isoscale.cli.metrics import metrics_text

STATUS: dict[str, Any] = {
    "job": 'a"b.py',
    "state": "training",
    "term": 1,
    "generation": 3,
    "step": 40,
    "loss": "nan",
    "steps_per_s": None,
    "workers": 4,
    "checkpoint": {"step": 20, "age_s": 1.5},
    "executors": [
        {"executor": 0, "kind": "cpu", "state": "training", "turn_s": 0.02, "idle": 0.25, "last_seen_s": 0.1},
        {"executor": 1, "kind": "cpu", "state": "training", "turn_s": None, "idle": None, "last_seen_s": None},
        {"executor": 2, "kind": "cpu-sse", "state": "spare", "turn_s": None, "idle": None, "last_seen_s": 0.3},
    ],
}
SAMPLE = re.compile(r'[a-z_]+\{[a-z]+="(\\.|[^"\\])*"(,[a-z]+="(\\.|[^"\\])*")*\} (NaN|[+-]Inf|-?[0-9.e+-]+)')


def test_every_known_value_is_a_sample_and_unknown_ones_are_left_out() -> None:
    text = metrics_text(STATUS, "runs-1")
    assert text.endswith("\n")
    samples = [line for line in text.splitlines() if not line.startswith("#")]
    assert all(SAMPLE.fullmatch(line) for line in samples), samples
    assert 'isoscale_state{run="runs-1",script="a\\"b.py",state="training"} 1' in samples
    assert 'isoscale_step{run="runs-1"} 40' in samples
    assert 'isoscale_loss{run="runs-1"} NaN' in samples
    assert 'isoscale_executors{run="runs-1",state="spare"} 1' in samples
    assert 'isoscale_executors{run="runs-1",state="training"} 2' in samples
    assert 'isoscale_executor_turn_seconds{run="runs-1",executor="0",kind="cpu"} 0.02' in samples
    assert 'isoscale_checkpoint_age_seconds{run="runs-1"} 1.5' in samples
    assert "steps_per_second" not in text
    assert sum("turn_seconds{" in line for line in samples) == 1


def test_a_family_has_its_help_once_and_before_its_samples() -> None:
    lines = metrics_text(STATUS, "r").splitlines()
    for name in {line.partition("{")[0] for line in lines if not line.startswith("#")}:
        mine = [line for line in lines if re.match(rf"(# (HELP|TYPE) )?{name}[ {{]", line)]
        assert [line.split()[1] for line in mine[:2]] == ["HELP", "TYPE"]
        assert not any(line.startswith("#") for line in mine[2:])
        assert lines[lines.index(mine[0]) :][: len(mine)] == mine


def test_an_empty_status_is_no_error() -> None:
    assert metrics_text({}, "r").splitlines()[-1] == 'isoscale_state{run="r",script="",state="unknown"} 1'

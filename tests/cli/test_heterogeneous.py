"""Mixed kinds with real processes: one digest at `heterogeneous`, refusals elsewhere."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from isoscale.kinds import host_capability

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        host_capability().isa not in ("avx2", "avx512"), reason="this CPU has no AVX2, so only one kind"
    ),
]

ISOSCALE = str(Path(sys.executable).parent / "isoscale")
SCRIPT = str(Path(__file__).parent / "scripts" / "two_models.py")
DEVICES = ["cpu-avx2*2", "cpu-sse*2", "cpu-avx2*1+cpu-sse*1"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [ISOSCALE, "run", SCRIPT, "--workers", "2", "--until", "4", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=280)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The job on each set of devices. One script trains both models, so three runs are enough."""
    found = {}
    for devices in DEVICES:
        out = tmp_path_factory.mktemp("mixed") / "run"
        done = run(
            "--devices", devices, "--kinds", "cpu-avx2,cpu-sse", "--determinism", "heterogeneous", "--out", str(out)
        )
        assert done.returncode == 0, done.stdout + done.stderr
        found[devices] = out
    return found


def test_every_set_of_kinds_gives_the_same_digest(runs: dict[str, Path]) -> None:
    summaries = {devices: json.loads((out / "summary.json").read_text()) for devices, out in runs.items()}
    assert [len(summary["executors"]) for summary in summaries.values()] == [2, 2, 2]
    kinds = [executor["kind"] for executor in summaries[DEVICES[2]]["executors"]]
    assert sorted(kinds) == ["cpu-avx2", "cpu-sse"]
    assert {summary["step"] for summary in summaries.values()} == {4}
    assert len({summary["digest"] for summary in summaries.values()}) == 1


@pytest.mark.parametrize(
    ("model", "optimizer", "moment"), [("Pictures", "sgd", "momentum_buffer"), ("Words", "adam", "exp_avg")]
)
def test_each_model_trains_to_the_same_bits(model: str, optimizer: str, moment: str, runs: dict[str, Path]) -> None:
    finals = [torch.load(out / "final.pt", weights_only=True) for out in runs.values()]
    for name, tensor in finals[0]["models"][model].items():
        assert all(torch.equal(tensor, final["models"][model][name]) for final in finals[1:]), name
    states = [final[optimizer]["state"] for final in finals]
    assert len(states[0]) > 4
    for index, state in states[0].items():
        assert state[moment].abs().sum() > 0
        assert all(torch.equal(state[moment], other[index][moment]) for other in states[1:])


def test_every_step_has_the_same_loss(runs: dict[str, Path]) -> None:
    losses = []
    for out in runs.values():
        events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
        losses.append([event["loss"] for event in events if event["event"] == "step"])
    assert len(losses[0]) == len(set(losses[0])) == 4
    assert losses[0] == losses[1] == losses[2]


def test_mixed_kinds_at_elastic_are_refused_with_both_fingerprints(tmp_path: Path) -> None:
    done = run("--devices", DEVICES[2], "--out", str(tmp_path / "run"))
    assert done.returncode == 2, done.stdout + done.stderr
    prints = dict(re.findall(r"(cpu-avx2|cpu-sse): ([0-9a-f]{16})\b", done.stderr))
    assert set(prints) == {"cpu-avx2", "cpu-sse"}
    assert prints["cpu-avx2"] != prints["cpu-sse"]
    assert "--determinism heterogeneous" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_kind_that_was_not_declared_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = run("--devices", DEVICES[2], "--kinds", "cpu-sse", "--determinism", "heterogeneous", "--out", str(out))
    assert done.returncode == 2
    assert "cpu-avx2 is not among --kinds cpu-sse" in done.stderr
    assert not out.exists()

"""`isoscale check` with real processes: one whole check, operators without a deterministic form, failures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from isoscale.kinds import host_capability
from tests.cli.in_process import refusal

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        host_capability().isa not in ("avx2", "avx512"), reason="this CPU has no AVX2, so only one kind"
    ),
]

ISOSCALE = str(Path(sys.executable).parent / "isoscale")
SCRIPTS = Path(__file__).parent / "scripts"
TWO_MODELS = str(SCRIPTS / "two_models.py")


def check(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([ISOSCALE, "check", *arguments], capture_output=True, text=True, timeout=280)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("check")
    done = check(
        TWO_MODELS, "--workers", "2", "--kinds", "cpu-avx2,cpu-sse", "--steps", "4", "--json", "--out", str(out)
    )
    assert done.returncode == 0, done.stderr
    printed: dict[str, Any] = json.loads(done.stdout)
    assert json.loads((out / "check.json").read_text()) == printed
    assert [path.name for path in out.iterdir()] == ["check.json"]
    return printed


def test_kinds_differ_at_elastic_and_agree_at_the_common_profile(report: dict[str, Any]) -> None:
    assert report["format"] == 1
    assert report["steps"] == 4
    verdict = report["verdict"]
    assert (verdict["mix_at_elastic"], verdict["mix_at_heterogeneous"]) == (False, True)
    assert report["common_profile"] == "sse"
    digests = {(run["level"], run["kind"]): run["digest"] for run in report["runs"]}
    assert digests["elastic", "cpu-avx2"] != digests["elastic", "cpu-sse"]
    assert digests["heterogeneous", "cpu-avx2"] == digests["heterogeneous", "cpu-sse"]
    assert report["fingerprints"]["cpu-avx2"] != report["fingerprints"]["cpu-sse"]
    assert "conv_3x3" in report["differing_kernels"]


def test_modules_are_listed_with_what_they_depend_on(report: dict[str, Any]) -> None:
    modules = {module["type"]: module for module in report["modules"]}
    assert (modules["Conv2d"]["count"], modules["Conv2d"]["parameters"]) == (2, 3 * 16 * 9 + 16 + 16 * 24 * 9)
    assert modules["Conv2d"]["depends"] == modules["MultiheadAttention"]["depends"] == "yes"
    assert modules["ReLU"]["depends"] == modules["MaxPool2d"]["depends"] == modules["Embedding"]["depends"] == "no"
    assert modules["TransformerEncoderLayer"]["depends"] == "through its parts"
    assert report["hidden_state"] == [{"where": "Words.noise", "holds": "Generator"}]
    assert report["nondeterministic"] == []


def test_factors_and_times_are_those_of_the_executors(report: dict[str, Any]) -> None:
    factors = report["factors"]
    assert [factors[kind]["cpu_capability"] for kind in ("cpu-avx2", "cpu-sse")] == ["AVX2", "DEFAULT"]
    assert factors["cpu-sse"]["is_deterministic"] == "True"
    assert [run["time"]["steps"] for run in report["runs"]] == [2] * 5
    assert report["cost"]["elastic_over_off"] > 0
    assert set(report["cost"]["heterogeneous_over_elastic"]) == {"cpu-avx2", "cpu-sse"}


def test_an_operator_without_a_deterministic_form_is_a_finding(tmp_path: Path) -> None:
    done = check(TWO_MODELS, "--workers", "1", "--kinds", "cpu", "--steps", "2", "--", "put_")
    assert done.returncode == 0, done.stderr
    assert "torch cannot run put_ deterministically" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_a_failing_script_exits_1_with_its_traceback_once() -> None:
    done = check(str(SCRIPTS / "tiny.py"), "--workers", "2", "--kinds", "cpu", "--", "raise")
    assert done.returncode == 1
    assert done.stderr.count("Traceback (most recent call last)") == 1
    assert "ValueError: planted in the turn" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.py", "--workers", "2"], "SCRIPT=nowhere.py"),
        ([TWO_MODELS, "--workers", "0"], "--workers=0"),
        ([TWO_MODELS, "--workers", "2", "--kinds", "cpu-vax"], "--kinds=cpu-vax: unknown device kind"),
        ([TWO_MODELS, "--workers", "2", "--out", TWO_MODELS], "--out="),
    ],
)
def test_bad_input_is_refused_with_the_field(arguments: list[str], message: str) -> None:
    assert message in refusal("check", *arguments)


def test_bad_input_exits_2() -> None:
    done = check(TWO_MODELS)
    assert done.returncode == 2
    assert "--workers" in done.stderr

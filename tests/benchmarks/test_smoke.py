"""Every benchmark starts, goes the whole way with tiny sizes, and keeps nothing: `python -m benchmarks --smoke`."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.index import Benchmark, benchmarks
from benchmarks.lib.processes import ROOT
from benchmarks.lib.result import RESULTS

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]


def kept() -> dict[str, str]:
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in RESULTS.rglob("*.json")}


@pytest.fixture(scope="module")
def fared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """All that are asked for, one after another, from one process that imports torch once."""
    out = tmp_path_factory.mktemp("smoke") / "smoke.json"
    before = kept()
    asked = [item for item in request.session.items if isinstance(item, pytest.Function)]
    names = [item.callspec.params["benchmark"].name for item in asked if item.originalname == test_it_runs.__name__]
    command = [sys.executable, "-m", "benchmarks", "--smoke", "--out", str(out), "--only", *names]
    done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert out.exists(), done.stdout + done.stderr
    assert kept() == before, "a smoke run changed a kept result"
    return {one["name"]: one for one in json.loads(out.read_text())}


@pytest.mark.parametrize(
    "benchmark",
    [pytest.param(one, id=one.name) for one in benchmarks()],
)
def test_it_runs(benchmark: Benchmark, fared: dict[str, dict[str, Any]]) -> None:
    one = fared[benchmark.name]
    assert one["code"] == 0, one["output"]


def test_all_that_measure_are_known() -> None:
    """A module that can be started, is in no list and belongs to no other would never be smoke-tested."""
    known = {one.module for one in benchmarks()}
    for path in sorted((ROOT / "benchmarks").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if "RESULT, MINUTES = " in text and module not in ("benchmarks.index",):
            assert module in known, f"{module} measures, but its docstring shows no command that starts it"
    for one in benchmarks():
        text = Path(ROOT, *one.module.split(".")).with_suffix(".py").read_text(encoding="utf-8")
        assert "RESULT, MINUTES = " in text, f"{one.module} does not say its result and how long it takes"


def test_no_two_write_the_same_result() -> None:
    names = [one.result for one in benchmarks()]
    assert len(names) == len(set(names))

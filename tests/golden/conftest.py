"""The golden runs of this machine, computed once; `--write-golden` makes them the recorded ones."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from isoscale.kinds import executor_environment, host_capability, profile_named

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-golden", action="store_true", help="record the golden runs of this machine and torch")


@pytest.fixture(scope="session")
def computed() -> dict[str, Any]:
    """What this machine computes at the profile `sse`, which is meant to give the same bits on every x86 CPU."""
    if platform.machine().lower() not in ("x86_64", "amd64") or host_capability().isa == "other":
        pytest.skip(f"golden runs are recorded for x86 with SSE4.2, this machine is {platform.machine()}")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ISOSCALE_")}
    environment = executor_environment(inherited, profile_named("sse"), 1)
    environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(
        [sys.executable, str(HERE / "golden_jobs.py")], env=environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@pytest.fixture
def recorded(request: pytest.FixtureRequest, job_name: str, computed: dict[str, Any]) -> dict[str, Any]:
    """The recorded runs of a job, written first if asked for."""
    path = HERE / f"{job_name}.json"
    if request.config.getoption("--write-golden", default=False):
        record = {"machine": computed["machine"], "runs": computed["runs"][job_name]}
        path.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    return json.loads(path.read_text())  # type: ignore[no-any-return]

"""Parts of the coordinator that decide without acting: how long survivors are waited for, and how a job ended."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from isoscale.backends.seam import Device
from isoscale.errors import StartError, UserError
from isoscale.runtime.coordinator.adoption import Introductions
from isoscale.runtime.coordinator.conclusion import conclude, how_it_ended
from isoscale.runtime.coordinator.journal import RunResult
from isoscale.runtime.coordinator.processes import Processes
from isoscale.runtime.membership.instructions import Done, Emit, Fail, Stop
from isoscale.types import JobSpec


def wait(orphan_s: float = 60.0) -> Introductions:
    return Introductions(orphan_s, begun=100.0)


def test_nobody_is_waited_for_who_has_come() -> None:
    assert not wait().goes_on({1, 2}, {1, 2, 3}, [1, 2], 100.0)


def test_who_has_not_come_has_a_while() -> None:
    assert wait().goes_on({1, 2}, {1}, [1, 2], 114.0)
    assert not wait().goes_on({1, 2}, {1}, [1, 2], 116.0), "somebody came, so the other one is at fault"
    assert not wait().goes_on({1}, set(), [1], 116.0), "a single one that is silent tells nothing of its machine"


def test_several_that_are_all_silent_have_longer_and_it_is_said_once() -> None:
    waiting = wait()
    assert waiting.goes_on({1, 2}, set(), [1, 2], 116.0)
    assert "2 executors are alive and none has come" in waiting.warning
    assert waiting.goes_on({1, 2}, set(), [1, 2], 159.0)
    assert waiting.warning == ""
    assert not waiting.goes_on({1, 2}, set(), [1, 2], 161.0)


def test_stopped_ones_are_not_silent_because_of_their_machine() -> None:
    assert not wait().goes_on({1, 2}, set(), [], 116.0)


@pytest.mark.parametrize(("rescued", "code"), [(False, 0), (True, 3)])
def test_a_job_that_finished(rescued: bool, code: int) -> None:
    result = RunResult()
    event = conclude(result, Done(digest="abc", step=7, stop_reason=""), rescued=rescued)
    assert event == Emit("finished", {"step": 7, "digest": "abc"})
    assert (result.exit_code, result.digest) == (code, "abc")
    assert how_it_ended(result) == "the job finished at step 7"


def test_a_job_that_was_stopped() -> None:
    result = RunResult(step=5)
    event = conclude(result, Stop(told="stopped: asked", exit_code=130, saved=5), rescued=False)
    assert event == Emit("stopped", {"step": 5, "saved": 5, "error": "stopped: asked"})
    assert (result.exit_code, how_it_ended(result)) == (130, "stopped: asked")


def test_a_job_that_failed() -> None:
    result = RunResult(step=5)
    error = UserError(field="--x", value=1, problem="wrong", remedy="give 2")
    assert conclude(result, Fail(error=error, traceback="trace"), rescued=False).event == "failed"
    assert result.exit_code == error.exit_code
    assert (result.error, result.traceback) == (str(error), "trace")


def test_a_job_that_was_interrupted() -> None:
    assert how_it_ended(RunResult(step=3)) == "the job was interrupted at step 3"


def test_who_cannot_be_given_what_it_needs_is_not_started_and_that_is_told(tmp_path: Path) -> None:
    """Machines that share no disk get token and certificate with the start; a file may be gone by then."""
    backend = SimpleNamespace(
        listen=lambda listener: None,
        start=None,
        free_device=lambda kind, taken: Device(id="cpu/0", kind="cpu", node="here"),
    )
    server = SimpleNamespace(url="wss://here:1", ca_file=tmp_path / "gone.pem")
    (tmp_path / "token").write_text("secret")
    spec = JobSpec(workers=2, script="none.py", out=str(tmp_path))
    processes = Processes(spec, cast(Any, backend), cast(Any, server), tmp_path / "token", lambda *told: None)
    processes.storage = "s3://bucket/run"
    with pytest.raises(StartError, match=r"gone\.pem: No such file"):
        asyncio.run(processes.start(0, "cpu", newcomer=False))
    assert processes.devices() == set()

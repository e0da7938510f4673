"""A coordinator takes over a job that has come to its end without one: whoever still waits for a word is told."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from isoscale.errors import UserError
from isoscale.kinds import DeviceSet
from isoscale.protocol import messages as m
from isoscale.protocol.files import write_json_atomic
from isoscale.runtime.control.directory import Control, read_address, saved
from isoscale.runtime.control.executor_link import open_socket
from isoscale.runtime.control.join import ask_to_join
from isoscale.runtime.coordinator.run import RunResult, resume_job
from isoscale.types import JobSpec, Settings

pytestmark = pytest.mark.timeout(300)

DIGEST = "d" * 64
REMOTE = 3


class Silent:
    """An observer that shows nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: None


@pytest.fixture
def ended(tmp_path: Path) -> Path:
    """The directory of a job without a coordinator, whose executor on another machine has written the result."""
    script = tmp_path.parent / f"{tmp_path.name}-script" / "train.py"
    script.parent.mkdir()
    script.write_text("")
    control = Control(tmp_path)
    spec = JobSpec(workers=2, script=str(script), out=str(tmp_path))
    control.save_job(saved(spec, Settings(), DeviceSet.parse("cpu*1"), []))
    control.save_executors({REMOTE: {"pid": 1, "born": 0, "machine": "elsewhere"}})
    write_json_atomic(control.path / "result.json", {"step": 9, "digest": DIGEST, "stop_reason": ""})
    control.close()
    return tmp_path


@pytest.fixture
def resumed(ended: Path) -> Iterator[tuple[Path, Callable[[], RunResult]]]:
    """The directory, with a coordinator that has just come; and what came of it."""
    outcome: list[Any] = []
    thread = threading.Thread(target=lambda: outcome.append(asyncio.run(resume_job(ended, Silent()))))  # type: ignore[arg-type]
    thread.start()
    while not (ended / "control" / "coordinator.json").exists():
        assert thread.is_alive()
        thread.join(0.01)

    def result() -> RunResult:
        thread.join()
        found: RunResult = outcome[0]
        return found

    yield ended, result
    thread.join()


def come_back(directory: Path) -> list[m.FromCoordinator]:
    """What an executor hears that comes with the end of its training function."""
    url, token = read_address(directory)
    hello = m.Hello(executor=REMOTE, pid=1, kind="cpu", fingerprint="f", kernels={}, factors={}, machine="elsewhere")
    rejoin = m.Rejoin(
        hello=hello,
        state="finished",
        generation=1,
        members=(REMOTE,),
        shares=(2,),
        step=9,
        highest=1,
        waiting=False,
        finished=m.Finished(executor=REMOTE, step=9, digest=DIGEST, stop_reason=""),
    )
    heard: list[m.FromCoordinator] = []
    with open_socket(f"{url}/executor/{REMOTE}", token, None) as socket:
        socket.send(m.encode(rejoin))
        while not any(isinstance(message, m.Leave) for message in heard):
            frame = socket.recv(timeout=120)
            heard.append(m.decode_from_coordinator(frame if isinstance(frame, bytes) else frame.encode()))
    return heard


def test_an_executor_that_waits_elsewhere_is_told_to_go(resumed: tuple[Path, Callable[[], RunResult]]) -> None:
    directory, result = resumed
    assert come_back(directory)[-1] == m.Leave(reason="the job is over")
    assert (result().exit_code, result().digest, result().step) == (0, DIGEST, 9)


def test_nobody_can_join_a_job_that_has_ended(resumed: tuple[Path, Callable[[], RunResult]]) -> None:
    directory, result = resumed
    url, token = read_address(directory)
    with pytest.raises(UserError, match="the job has ended"):
        ask_to_join(url, token, "cpu", None)
    come_back(directory)
    assert result().exit_code == 0

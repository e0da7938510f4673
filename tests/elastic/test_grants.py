"""Jobs whose devices are granted: they train on those and no others, and give them back in time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from isoscale.backends.seam import Device
from isoscale.backends.system import lives
from isoscale.errors import UserError
from isoscale.protocol.events import read_events
from isoscale.protocol.files import read_small_json
from isoscale.runtime.control.grants import DeviceGrant, device_named, write_grant
from isoscale.runtime.control.job_handle import JobHandle, RequestRefusedError
from isoscale.testing import short_job_path
from isoscale.testing.chaos import Result

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]

HERE = Path(__file__).parent
D0, D1, D2 = (device_named(f"node0/cpu/{number}") for number in range(3))
TURN_S = "0.05"
#: two turns of so many times as long make a step of twenty seconds
SLOWNESS = 200
Found = TypeVar("Found")
PATIENCE_S = 240.0


class Granted:
    """A job in the hands of a test that plays the service."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.process: subprocess.Popen[bytes] | None = None
        #: of the script, after the seconds of a turn
        self.arguments: tuple[str, ...] = ()
        directory.mkdir()

    def hurry(self) -> None:
        """From here on turns take no longer than they must."""
        (self.directory / "hurry").touch()

    def launch(self, number: int, *devices: Device, batch: int | None = None) -> None:
        """Another coordinator, by this grant."""
        assert write_grant(self.directory, DeviceGrant(number=number, devices=devices, batch=batch, job="job-7"))
        command = [
            sys.executable,
            str(HERE / "granted_run.py"),
            str(self.directory),
            str(short_job_path()),
            "4",
            TURN_S,
            *self.arguments,
        ]
        with (self.directory / "coordinator.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def handle(self) -> JobHandle:
        return wait_for(self._connected)

    def _connected(self) -> JobHandle | None:
        assert self.process is not None
        assert self.process.poll() is None, (self.directory / "coordinator.log").read_text()
        try:
            return JobHandle(self.directory)
        except UserError:
            return None

    def wait_step(self, step: int) -> None:
        wait_for(lambda: self.step() >= step)

    def step(self) -> int:
        return max((event["step"] for event in self.events("step")), default=0)

    def events(self, name: str) -> list[dict[str, object]]:
        path = self.directory / "events.jsonl"
        return [event for event in read_events(path) if event["event"] == name] if path.exists() else []

    def processes(self) -> dict[str, tuple[int, int]]:
        """Pid and birth by device, of executors that live."""
        known = read_small_json(self.directory / "control" / "executors.json").values()
        return {one["device"]: (one["pid"], one["born"]) for one in known if lives(one["pid"], one["born"])}

    def wait_ended(self) -> int:
        assert self.process is not None
        code = self.process.wait(PATIENCE_S)
        assert not self.processes()
        return code

    def finish(self) -> int:
        """To its end, as fast as it can."""
        self.hurry()
        return self.wait_ended()

    def slow_down(self) -> None:
        """Until the job is in the middle of a step that takes twenty seconds."""
        known = read_small_json(self.directory / "control" / "executors.json")
        (self.directory / "slow").write_text(f"{min(map(int, known))} {SLOWNESS}")
        wait_for(self._is_in_a_long_step)

    def _is_in_a_long_step(self) -> bool:
        before = self.step()
        time.sleep(1.5)
        return self.step() == before

    def speed_up(self) -> None:
        """From the next turn on."""
        (self.directory / "slow").unlink()


def wait_for(look: Callable[[], Found | None]) -> Found:
    deadline = time.monotonic() + PATIENCE_S
    while not (found := look()):
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.02)
    return found


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Granted]:
    one = Granted(tmp_path / "run")
    yield one
    if one.process is not None and one.process.poll() is None:
        one.process.kill()
        for pid, _ in one.processes().values():
            os.kill(pid, signal.SIGKILL)


def ends_like(job: Granted, expected: Result) -> None:
    assert job.finish() == 0, (job.directory / "coordinator.log").read_text()
    (finished,) = job.events("finished")
    assert finished["digest"] == expected.digest
    # No committed step was made twice.
    assert [event["step"] for event in job.events("step")] == list(range(1, 81))


def test_executors_run_on_granted_devices_only_and_older_grants_are_ignored(job: Granted, expected: Result) -> None:
    pinned = device_named("node0/cpu/0", cores=(0,))
    job.launch(1, pinned)
    with job.handle() as handle:
        job.wait_step(2)
        ((_, (pid, _)),) = job.processes().items()
        assert os.sched_getaffinity(pid) == {0}
        accepted = handle.grant(3, [D1, D2])
        with pytest.raises(RequestRefusedError, match="a newer one is on the disk"):
            handle.grant(2, [D0])
        for asked, verb in ((lambda: handle.scale_to(3), "scale"), (handle.stop, "pause")):
            with pytest.raises(RequestRefusedError, match=f"isoscale jobs {verb} job-7"):
                asked()
        assert handle.wait_answer(accepted["request"], PATIENCE_S)["outcome"] == "done"
        held = handle.held()
        assert held["number"] == 3
        assert held["held"] == held["devices"] == ["node0/cpu/1", "node0/cpu/2"]
        assert held["settled"]
        assert sorted(job.processes()) == held["held"]
    for command in (["scale", "2"], ["stop"], ["resume"]):
        run = [
            sys.executable,
            "-c",
            "from isoscale.cli import main; main()",
            command[0],
            str(job.directory),
            *command[1:],
        ]
        refused = subprocess.run(run, capture_output=True, text=True, timeout=240)
        assert refused.returncode == 2
        assert "isoscale jobs" in refused.stderr
    ends_like(job, expected)


def test_a_new_coordinator_obeys_the_grant_that_was_written_while_nobody_was_there(
    job: Granted, expected: Result
) -> None:
    job.launch(1, D0, D1)
    job.handle().close()
    job.wait_step(2)
    job.slow_down()
    assert job.process is not None
    job.process.kill()
    job.process.wait()
    assert sorted(job.processes()) == ["node0/cpu/0", "node0/cpu/1"]
    job.speed_up()
    job.launch(2, D1)
    with job.handle() as handle:
        wait_for(lambda: handle.held()["held"] == ["node0/cpu/1"] or None)
        # And then it is told to pause by a grant of nothing, while nobody is there again.
        job.process.kill()
        job.process.wait()
    job.launch(3)
    assert job.wait_ended() == 75
    stopped = job.events("stopped")[-1]
    assert stopped["paused"]
    assert stopped["saved"] == stopped["step"]
    job.launch(4, D2)
    ends_like(job, expected)


def test_a_device_is_wanted_back_in_the_middle_of_a_long_step(job: Granted, expected: Result) -> None:
    job.launch(1, D0, D1)
    with job.handle() as handle:
        job.wait_step(3)
        job.slow_down()
        accepted = handle.grant(2, [D0], within_s=2.0)
        wait_for(lambda: sorted(job.processes()) == ["node0/cpu/0"] or None)
        # The one that left did not end its step, and those who stay do it again.
        job.speed_up()
        assert handle.wait_answer(accepted["request"], PATIENCE_S)["outcome"] == "done"
        held = handle.held()
        assert held["held"] == ["node0/cpu/0"]
        assert held["abandoned_s"] > 0
    assert [event["reason"] for event in job.events("executor_killed")] == [
        "its device is wanted back before it could leave"
    ]
    ends_like(job, expected)


def test_all_devices_are_wanted_back_in_the_middle_of_a_long_step(job: Granted, expected: Result) -> None:
    """Its last sealed state is written beside the step that is given up; nothing that was committed is lost."""
    job.launch(1, D0, D1)
    with job.handle() as handle:
        job.wait_step(3)
        job.slow_down()
        before = job.step()
        handle.pause(2, within_s=8.0)  # long enough to write its state on a busy machine
    assert job.wait_ended() == 75
    (stopped,) = job.events("stopped")
    assert stopped["paused"]
    assert stopped["saved"] == stopped["step"] == before
    (answered,) = job.events("answered")
    assert answered["outcome"] == "done"
    assert "of the open step are given up" in str(answered["detail"])
    job.speed_up()
    job.launch(3, D2)
    ends_like(job, expected)


def test_a_state_that_cannot_be_written_in_time_is_lost_only_with_consent(job: Granted, expected: Result) -> None:
    job.launch(1, D0)
    with job.handle() as handle:
        job.wait_step(2)
        handle.checkpoint()
        wait_for(lambda: handle.held()["write_s"])
        saved = handle.status()["checkpoint"]
        assert saved is not None
        job.wait_step(saved["step"] + 2)
        job.slow_down()
        with pytest.raises(RequestRefusedError, match="committed steps will be trained again"):
            handle.pause(2, within_s=1e-6)
        assert handle.held()["number"] == 1
        handle.pause(2, within_s=1e-6, force=True)
    assert job.wait_ended() == 75
    (stopped,) = job.events("stopped")
    assert stopped["saved"] == saved["step"] < stopped["step"]
    job.speed_up()
    job.launch(3, D1)
    assert job.finish() == 0
    (finished,) = job.events("finished")
    assert finished["digest"] == expected.digest


def test_a_coordinator_begins_with_the_batch_size_of_its_grant(job: Granted) -> None:
    """Whether it takes over from one that died, or resumes a job that was paused: the service need not ask again."""
    job.arguments = ("0", "live", "wait")
    job.launch(1, D0)
    job.handle().close()
    job.wait_step(2)
    assert job.process is not None
    job.process.kill()
    job.process.wait()
    # Its executor trains on; the next coordinator hears from it which sizes the script allows.
    job.launch(2, D0, batch=16)
    wait_for(lambda: job.events("batch"))
    with job.handle() as handle:
        assert handle.status()["batch"]["size"] == 16  # type: ignore[index]
        handle.pause(3)
        assert job.process.wait(PATIENCE_S) == 75
    paused_at = job.step()
    job.launch(4, D1, batch=4)
    wait_for(lambda: len(job.events("batch")) > 1)
    assert job.finish() == 0, (job.directory / "coordinator.log").read_text()
    changes = job.events("batch")
    assert [(one["from"], one["to"], one["reason"]) for one in changes] == [(8, 16, "granted"), (16, 4, "granted")]
    # At the first place where it can be: the step that was under way ends with the old size.
    assert changes[1]["step"] <= paused_at + 1  # type: ignore[operator]

"""What protects a run's directory and its processes, without starting any."""

from __future__ import annotations

import os
import pwd
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import pytest

from isoscale.backends.host_id import machine_id
from isoscale.backends.system import is_executor
from isoscale.cli.job import claim_directory
from isoscale.clock import WallClock
from isoscale.errors import UserError
from isoscale.kinds import DeviceSet
from isoscale.protocol import messages as m
from isoscale.runtime.control.directory import Control, read_address, saved
from isoscale.runtime.control.listener import listening_socket
from isoscale.runtime.control.server import Security, check_security
from isoscale.runtime.coordinator.journal import Journal, Observer
from isoscale.runtime.membership.dispatch import may_say
from isoscale.runtime.membership.instructions import Fail
from isoscale.runtime.membership.state_machine import Membership
from isoscale.runtime.membership.target import Goal
from isoscale.types import JobSpec, Settings


@pytest.fixture(params=[0o000, 0o022, 0o077, 0o177])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_the_token_is_readable_by_its_user_alone_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    (tmp_path / "control").mkdir(mode=0o700)
    control = Control(tmp_path)
    assert stat.S_IMODE((tmp_path / "control" / "token").stat().st_mode) == 0o600
    control.close()


def test_every_run_has_a_token_of_its_own_and_keeps_it(tmp_path: Path) -> None:
    tokens = []
    for name in ("a", "a", "b"):
        (tmp_path / name).mkdir(exist_ok=True)
        control = Control(tmp_path / name)
        tokens.append(control.token)
        control.close()
    assert tokens[0] == tokens[1] != tokens[2]


def test_of_two_coordinators_one_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    first = Control(tmp_path)
    first.announce("ws://127.0.0.1:1")
    before = {path: path.read_bytes() for path in (tmp_path / "control").iterdir()}
    with pytest.raises(UserError, match="another coordinator runs this job"):
        Control(tmp_path)
    assert {path: path.read_bytes() for path in (tmp_path / "control").iterdir()} == before
    first.close()
    second = Control(tmp_path)
    assert second.term == first.term + 1
    second.close()
    with pytest.raises(UserError, match="not the directory of a run"):
        read_address(tmp_path)


@pytest.fixture
def nobody() -> Iterator[None]:
    """What follows is done by somebody who may do nothing."""
    if os.geteuid() != 0:
        yield  # a file of mode 000 is closed to anybody but root
        return
    os.seteuid(65534)
    yield
    os.seteuid(0)


@pytest.mark.parametrize(("closed", "named"), [("token", "token"), ("coordinator.json", "coordinator.json")])
def test_a_token_that_may_not_be_read_is_no_missing_coordinator(
    tmp_path: Path, closed: str, named: str, request: pytest.FixtureRequest
) -> None:
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents[:3]:
        parent.chmod(parent.stat().st_mode | 0o055) if parent.stat().st_uid == os.geteuid() else None
    control = Control(tmp_path)
    control.save_job(saved(JobSpec(workers=4), Settings(), DeviceSet.parse("cpu"), []))
    control.announce("ws://127.0.0.1:1")
    (tmp_path / "control" / closed).chmod(0)
    owner = pwd.getpwuid(os.geteuid()).pw_name
    request.getfixturevalue("nobody")
    with pytest.raises(UserError) as caught:
        read_address(tmp_path)
    assert str(caught.value) == (
        f"DIR={tmp_path}: its {named} cannot be read (Permission denied): it belongs to {owner}; "
        f"run this as {owner}, who runs the job"
    )
    os.seteuid(os.getuid())
    control.close()


def test_a_pipe_for_an_event_log_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "events.jsonl")
    with pytest.raises(UserError, match=r"its events.jsonl cannot be used \(a pipe, not a file\)"):
        Journal(JobSpec(workers=2, out=str(tmp_path)), cast("Observer", None), WallClock())


def test_of_many_runs_that_want_a_directory_one_gets_it(tmp_path: Path) -> None:
    def claim(_: int) -> bool:
        try:
            claim_directory(tmp_path / "out", "train.py")
        except UserError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(claim, range(40))) == 1


def test_whoever_takes_over_shows_the_same_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    control = Control(tmp_path)
    target = DeviceSet.parse("cpu*2")
    control.save_job(saved(JobSpec(workers=4), Settings(), target, [(3, target)], Path("a.pem"), Path("a.key")))
    job = control.load_job()
    assert (job.certificate, job.key) == (tmp_path / "a.pem", tmp_path / "a.key")
    control.save_job(saved(JobSpec(workers=4), Settings(), target, []))
    assert control.load_job().certificate is None
    control.close()


# ---- addresses ----


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "[::]", "", "203.0.113.7", "no such host", "x" * 300])
def test_an_address_that_cannot_be_listened_on(host: str) -> None:
    with pytest.raises(UserError, match="--listen="):
        check_security(host, Security())


def test_a_port_that_is_taken_or_none() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for port in (taken.getsockname()[1], 65536, -1):
            with pytest.raises(UserError, match="--port="):
                check_security("127.0.0.1", Security(port=port))


def test_a_key_without_a_certificate(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--key="):
        check_security("127.0.0.1", Security(key=tmp_path / "key"))


def test_beyond_the_limit_the_oldest_stranger_goes() -> None:
    with listening_socket("127.0.0.1", 0, 2) as gate:
        gate.setblocking(True)
        clients = [socket.create_connection(gate.getsockname(), timeout=60) for _ in range(4)]
        accepted = [gate.accept()[0] for _ in range(2)]
        gate.admit(accepted[0].fileno())  # has shown the token: is no stranger any more
        accepted += [gate.accept()[0] for _ in range(2)]
        for one, other in zip(accepted, clients, strict=True):
            other.settimeout(0.05)
            if one is accepted[1]:
                assert other.recv(1) == b""
            else:
                with pytest.raises(TimeoutError):
                    other.recv(1)
        for one in [*accepted, *clients]:
            one.close()


# ---- who may say what ----


def _membership() -> Membership:
    """Executor 0 trains, executor 1 waits."""
    membership = Membership(JobSpec(workers=4), Settings(spawn=False), Goal(DeviceSet.parse("cpu*1")), lambda _, __: ())
    for _ in range(2):
        membership.on_joining("cpu")
    for executor in range(2):
        hello = m.Hello(executor=executor, pid=1, kind="cpu", fingerprint="f", kernels={}, factors={})
        membership.on_hello(hello)
    membership.on_sealed(membership.current, 0)
    assert (membership.phase, membership.members) == ("training", (0,))
    assert membership.roster[1].state == "warm"
    return membership


@pytest.mark.parametrize(
    "message",
    [
        m.Finished(executor=1, step=1, digest="", stop_reason=""),
        m.Saved(step=1, path="final.pt", seconds=0),
        m.Broken(generation=9, reason=""),
        m.Sealed(generation=9, step=1),
        m.Suspect(executor=0, reason=""),
        m.StepDone(step=9, epoch=0, loss=0.0, seconds=0.0, samples=1, generation=1, total=0),
        m.Logged(step=1, epoch=0, values={}),
        m.Audited(step=1, digest=""),
        m.CheckpointWritten(generation=1, step=1, written={}, blocked_s=0, seconds=0),
    ],
)
def test_only_those_who_hold_the_jobs_state_speak_for_it(message: m.FromExecutor) -> None:
    membership = _membership()
    assert may_say(membership, 0, message)
    assert not may_say(membership, 1, message)
    assert not may_say(membership, 7, message)


@pytest.mark.parametrize(
    "message", [m.Beat(step=1, place="outside", place_s=0), m.Notice(reason=""), m.Held(), m.Warned(message="")]
)
def test_everybody_speaks_for_themselves(message: m.FromExecutor) -> None:
    membership = _membership()
    assert may_say(membership, 0, message)
    assert may_say(membership, 1, message)
    assert not may_say(membership, 7, message)


def test_a_spare_that_fails_does_not_fail_the_job() -> None:
    membership = _membership()
    failed = m.Failed(executor=1, error="E", summary="s", traceback="t", logical_rank=None, exit_code=1, step=0)
    assert not [one for one in membership.on_failed(failed) if isinstance(one, Fail)]
    assert membership.phase == "training"


def test_a_group_that_cannot_be_formed_does_not_fail_the_job() -> None:
    """On a disk that is full, say: both who should have formed it say so, time and again."""
    membership = _membership()
    membership.on_request(DeviceSet.parse("cpu*2"))
    membership.on_held(1)
    for _ in range(20):
        attempt = membership.attempt
        if attempt is None:
            break
        for executor in attempt.members:
            told = membership.on_broken(executor, attempt.generation, "No space left on device", 0.0)
            assert not [one for one in told if isinstance(one, Fail)]
        assert membership.on_tick(1000.0) == []
    else:
        pytest.fail("it never stops trying")
    assert (membership.phase, membership.members, membership.current) == ("training", (0,), 1)
    assert "No space left on device" in membership.goal.refused


# ---- processes ----


def test_a_process_is_adopted_only_if_it_was_started_as_that_executor() -> None:
    command = [sys.executable, "-c", "print(flush=True); input()"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "ISOSCALE_EXECUTOR": "12"}
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert is_executor(process.pid, 12)
        assert not is_executor(process.pid, 1)
        process.kill()
    assert not is_executor(os.getpid(), 12)
    assert not is_executor(-1, 12)


def test_processes_that_cannot_signal_each_other_are_on_different_machines() -> None:
    code = "from isoscale.backends.host_id import machine_id; print(machine_id())"
    command = [sys.executable, "-c", code]
    same = subprocess.run(command, capture_output=True, text=True, check=True)
    assert same.stdout.strip() == machine_id()
    other = subprocess.run(["unshare", "--pid", "--fork", *command], capture_output=True, text=True)
    if other.returncode:
        pytest.skip("no namespaces here")
    # /proc is still the old one; the link in it is the process's own all the same.
    assert other.stdout.strip() != machine_id()


def test_a_meeting_place_in_memory_is_only_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = tmp_path / "memory"
    memory.mkdir()
    monkeypatch.setattr("isoscale.runtime.control.directory._MEMORY", memory)
    (tmp_path / "run").mkdir()
    control = Control(tmp_path / "run")
    place = control.meeting_place()
    assert place.parent.parent == memory
    assert place.parent.stat().st_mode & 0o077 == 0
    # Somebody else got there first, with a directory that others can enter.
    place.parent.chmod(0o777)
    assert control.meeting_place().parent == tmp_path / "run" / "control"
    place.parent.chmod(0o700)
    control.close()
    assert not list(memory.iterdir())

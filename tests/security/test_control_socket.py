"""One real job, and everything that somebody without business there can do to its sockets. It ends with the same bits.

The tests follow one another on one job, which listens on another loopback address than the usual one.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest
from websockets.exceptions import ConnectionClosed, InvalidHandshake, WebSocketException
from websockets.sync.client import ClientConnection, connect

from isoscale.protocol import messages as m
from isoscale.runtime.control.job_handle import JobHandle
from tests.security.jobs import STEPS, Running, isoscale, running
from tests.security.sockets import is_loopback, tcp_sockets

pytestmark = [pytest.mark.processes, pytest.mark.timeout(400)]

HOST = "127.0.0.2"


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    directory = tmp_path_factory.mktemp("job")
    # A umask that takes nothing away: modes are what the code says.
    with running(directory, "--executors", 2, "--listen", HOST, umask=0) as run:
        run.until(lambda: run.step() >= 1, "the first step")
        yield run


@pytest.fixture(autouse=True)
def goes_on(job: Running) -> Iterator[None]:
    """After every test the job commits further steps with the executors it had, and has said nothing of it."""
    before = job.events()
    yield
    if job.process.poll() is None:
        job.train(1)
        since = job.events()[len(before) :]
        assert [event for event in since if event["event"] in ("warning", "failed", "suspect")] == []
        assert [event for event in since if event["event"] == "executor_lost" and event["executor"] <= 2] == []
        assert "Traceback" not in job.printed
        assert "handshake" not in job.printed


def _address(job: Running) -> tuple[str, int]:
    parts = urlsplit(job.url)
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port


def _open(job: Running, path: str, token: str | None = None) -> ClientConnection:
    headers = {"Authorization": f"Bearer {token if token is not None else job.token}"}
    return connect(
        f"{job.url}{path}", additional_headers=headers, proxy=None, compression=None, open_timeout=60, close_timeout=1
    )


def _is_closed(connection: ClientConnection) -> bool:
    """By the other side, whatever it says before."""
    with contextlib.suppress(TimeoutError):
        try:
            while True:
                connection.recv(timeout=60)
        except ConnectionClosed:
            return True
    return False


# ---- where it listens ----


def test_an_executor_joins_from_another_directory(job: Running, tmp_path: Path) -> None:
    job.join(cwd=tmp_path)
    with JobHandle(job.out) as handle:
        handle.wait_for(lambda s: len(s["executors"]) == 3 and s["executors"][2]["state"] == "spare", 100)
        handle.scale_to(3)
        # It comes in between two steps.
        job.until(lambda: job.train(1) or len(job.events("rescale")) == 1, "three executors")
        status = handle.status()
    assert status["executors"][2]["pid"] == job.joined[0].pid
    assert sum(last - first + 1 for first, last in (e["logical_workers"] for e in status["executors"])) == 4


def test_every_socket_is_on_loopback(job: Running) -> None:
    found = list(tcp_sockets(job.pids()))
    listening = [one for one in found if one.state == "listening"]
    assert (job.process.pid, *_address(job)) in {(one.pid, one.local, one.port) for one in listening}
    # gloo's: every executor listens, and is connected with the others.
    executors = {event["pid"] for event in job.events("executor_started")} | {job.joined[0].pid}
    assert {one.pid for one in listening} >= executors
    assert {one.pid for one in found if one.state == "established"} >= executors
    for one in found:
        assert all(map(is_loopback, one.addresses)), one
    assert {one.local for one in listening} == {HOST}


# ---- the token ----


def test_the_token_is_the_users_alone(job: Running) -> None:
    path = job.out / "control" / "token"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.stat().st_uid == os.geteuid()
    assert len(job.token) >= 43  # 32 random bytes


def test_the_token_is_in_no_command_line_environment_log_or_other_file(job: Running) -> None:
    token = job.token.encode()
    for pid in job.pids():
        for name in ("cmdline", "environ"):
            assert token not in Path(f"/proc/{pid}/{name}").read_bytes(), f"{name} of {pid}"
    files = [path for path in job.out.rglob("*") if path.is_file() and path != job.out / "control" / "token"]
    for path in [*files, *job.log.parent.glob("*.*")]:
        assert token not in path.read_bytes(), path
    assert any(path.name == "executor-0.log" for path in files)


@pytest.mark.parametrize("token", ["", "wrong", "\N{SNOWMAN}", "x" * 5000])
@pytest.mark.parametrize("path", ["/control", "/executor/0", "/join"])
def test_a_wrong_token_is_refused(job: Running, path: str, token: str) -> None:
    with socket.create_connection(_address(job), timeout=60) as raw:
        raw.sendall(
            f"GET {path} HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {'A' * 22}==\r\n"
            f"Authorization: Bearer {token}\r\n\r\n".encode()
        )
        assert raw.makefile("rb").readline().split()[1] == b"401"


def test_the_beginning_of_the_token_is_not_the_token(job: Running) -> None:
    for token in (job.token[:-1], job.token + "x", job.token.swapcase()):
        with pytest.raises(InvalidHandshake, match="401"):
            _open(job, "/control", token)


def test_the_command_says_which_file_is_wrong(job: Running, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("wrong")
    refused = isoscale("executor", "--join", job.url, "--token-file", tmp_path / "token")
    assert refused.returncode == 2
    assert refused.stdout.startswith("isoscale: --token-file=")
    assert len(refused.stdout.splitlines()) == 1


# ---- with the token, but wrong ----


@pytest.mark.parametrize(
    "path", ["/", "/executor/", "/executor/-1", "/executor/99", "/executor/0/", "/other", "//control"]
)
def test_a_path_that_nobody_serves(job: Running, path: str) -> None:
    with _open(job, path) as connection:
        assert _is_closed(connection)


def test_a_kind_that_was_not_declared_may_not_join(job: Running) -> None:
    with _open(job, "/join?kind=cuda") as connection:
        assert _is_closed(connection)


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xc1",
        "text",
        msgspec.msgpack.encode({"type": "Scale"}),
        msgspec.msgpack.encode({"type": "Scale", "target": 4}),
        msgspec.msgpack.encode({"type": "Welcome"}),
        b"\x82\xa4type\xb1CheckpointWritten\xa7written" + b"\x81\xa1a" * 100_000,
        b"\xdf\xff\xff\xff\xff",
    ],
)
def test_a_malformed_message_ends_its_connection(job: Running, frame: bytes | str) -> None:
    with _open(job, "/control") as connection:
        connection.send(frame)
        assert _is_closed(connection)


def test_a_message_that_is_too_large_ends_its_connection(job: Running) -> None:
    with _open(job, "/control") as connection:
        with contextlib.suppress(ConnectionClosed):
            connection.send(m.encode(m.Scale(target="x" * m.MAX_MESSAGE_BYTES)))
        assert _is_closed(connection)


def test_a_request_that_is_refused_is_answered(job: Running) -> None:
    with _open(job, "/control") as connection:
        for target in ("0", "5", "-9", "tpu*1", "cpu*x", "cpu*999999999", "\x00", "٤", "²", "+-2", "9" * 5000):
            connection.send(m.encode(m.Scale(target=target)))
            assert not m.decode_reply(connection.recv(timeout=60)).ok, target


def test_an_executor_cannot_speak_for_another(job: Running) -> None:
    """One that has joined and is no member yet says that the job is done, broken, saved, and who is to blame."""
    with _open(job, "/join?kind=cpu") as connection:
        welcome = m.decode_from_coordinator(connection.recv(timeout=60))
    assert isinstance(welcome, m.Welcome)
    me = welcome.executor
    in_anothers_name = [
        m.Finished(executor=0, step=1, digest="f" * 64, stop_reason=""),
        m.Failed(executor=0, error="E", summary="s", traceback="t", logical_rank=None, exit_code=1, step=1),
        m.Hello(executor=1, pid=job.process.pid, kind="cpu", fingerprint="", kernels={}, factors={}),
    ]
    for message in in_anothers_name:
        with _open(job, f"/executor/{me}") as connection:
            connection.send(m.encode(message))
            assert _is_closed(connection)
    out_of_turn: list[m.FromExecutor] = [
        m.Sealed(generation=10**6, step=10**6),
        m.Finished(executor=me, step=1, digest="f" * 64, stop_reason=""),
        m.Saved(step=1, path="final.pt", seconds=0.0),
        m.Broken(generation=10**6, reason="so it says"),
        m.Suspect(executor=0, reason="so it says"),
        m.StepDone(step=10**6, epoch=0, loss=0.0, seconds=0.0, samples=1, generation=1, total=0),
        m.Switched(generation=10**6, step=1, left_at=0.0, started_at=0.0, waited_s=0.0),
        m.Prepared(generation=10**6),
        m.Landed(generation=10**6),
        m.Held(),
        m.CheckpointWritten(generation=1, step=1, written={"step": 1, "tag": "../../x"}, blocked_s=0.0, seconds=0.0),
        m.Left(reason="so it says"),
    ]
    with _open(job, f"/executor/{me}") as connection:
        for message in out_of_turn:
            connection.send(m.encode(message))
        assert isinstance(m.decode_from_coordinator(connection.recv(timeout=60)), m.Welcome)
    job.train(3)
    with JobHandle(job.out) as handle:
        status = handle.status()
    assert [one["executor"] for one in status["executors"] if one["logical_workers"] is not None] == [0, 1, 2]
    assert job.step() < 10**6
    job.until(lambda: job.events("executor_lost"), "the one that has gone is forgotten")
    assert [event["executor"] for event in job.events("executor_lost")] == [me]


# ---- garbage, floods, and those who never finish a sentence ----


def test_random_bytes_and_half_handshakes(job: Running) -> None:
    chance = random.Random(7)
    good = f"GET /control HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {job.token}\r\n".encode()
    for _ in range(150):
        beginning = chance.choice([b"", good, good[: chance.randrange(len(good))], b"GET / HTTP/1.1\r\n"])
        with contextlib.suppress(OSError), socket.create_connection(_address(job), timeout=60) as raw:
            raw.sendall(beginning + chance.randbytes(chance.randrange(3000)))
            if chance.random() < 0.5:
                raw.shutdown(socket.SHUT_WR)


def test_random_changes_to_frames_of_somebody_with_the_token(job: Running) -> None:
    """Bits flipped in good messages and in the WebSocket framing around them."""
    chance = random.Random(11)
    frames = [m.encode(m.GetStatus()), m.encode(m.Scale(target="0")), m.encode(m.Scale(target="", away=(10**6,)))]
    for _ in range(40):
        with contextlib.suppress(OSError, WebSocketException, EOFError), _open(job, "/control") as connection:
            frame = bytearray(chance.choice(frames))
            for _ in range(chance.randrange(1, 4)):
                frame[chance.randrange(len(frame))] ^= 1 << chance.randrange(8)
            if chance.random() < 0.3:
                connection.socket.sendall(bytes(frame) + chance.randbytes(50))
            else:
                connection.send(bytes(frame))
            connection.recv(timeout=0.2)


def test_a_thousand_silent_connections_keep_nobody_out(job: Running) -> None:
    with contextlib.ExitStack() as stack:
        for number in range(1000):
            raw = stack.enter_context(socket.create_connection(_address(job), timeout=60))
            if number % 2:
                raw.sendall(b"GET /control HTTP/1.1\r\nX-Slow: ")
        # Those of before the last few have been ended; somebody with the token comes in at once.
        with _open(job, "/control") as connection:
            connection.send(m.encode(m.GetStatus()))
            assert m.decode_reply(connection.recv(timeout=60)).ok
        mine = [one for one in tcp_sockets([job.process.pid]) if one.state == "established"]
        assert len(mine) < 100
        job.train(1)


def test_nobody_has_for_ever_to_say_who_they_are(job: Running) -> None:
    with socket.create_connection(_address(job), timeout=60) as raw:
        raw.sendall(b"GET /control HTTP/1.1\r\n")
        begun = time.monotonic()
        while time.monotonic() - begun < 60:
            try:
                raw.sendall(b"X")
                raw.settimeout(0.2)
                if not raw.recv(1000):
                    return
            except TimeoutError:
                continue
            except OSError:
                return
        pytest.fail("still open")


def test_one_who_does_not_read_costs_nothing(job: Running) -> None:
    with _open(job, "/control") as connection:
        request = m.encode(m.GetStatus())
        with contextlib.suppress(OSError, WebSocketException):
            for _ in range(3000):
                connection.send(request)
        job.train(1)


# ---- two commands on one directory ----


def test_another_run_may_not_have_the_directory(job: Running) -> None:
    script = Path(__file__).with_name("scripts") / "paced.py"
    listing = sorted(job.out.rglob("*"))
    for command, field in (
        (("run", script, "--workers", 4, "--out", job.out, "--", STEPS), "--out="),
        (("run", script, "--workers", 4, "--out", job.out, "--resume", "--", STEPS), "--resume="),
        (("resume", job.out), "DIR="),
    ):
        refused = isoscale(*command)
        assert refused.returncode == 2, refused.stdout
        assert refused.stdout.startswith(f"isoscale: {field}"), refused.stdout
        assert len(refused.stdout.splitlines()) == 1
    assert {path for path in sorted(job.out.rglob("*")) if path not in listing} <= set((job.out / "control").iterdir())
    assert json.loads((job.out / "control" / "coordinator.json").read_text())["pid"] == job.process.pid


# ---- the end ----


def test_the_bits_are_those_of_an_undisturbed_run(job: Running, undisturbed: str) -> None:
    summary = job.finish()
    assert summary["digest"].startswith(undisturbed)
    assert summary["step"] == STEPS
    assert [event["step"] for event in job.events("step")] == list(range(1, STEPS + 1))
    assert job.joined[0].wait(60) == 0
    late = isoscale("scale", job.out, "2")
    assert late.returncode == 2
    assert late.stdout.startswith("isoscale: DIR=")
    assert len(late.stdout.splitlines()) == 1

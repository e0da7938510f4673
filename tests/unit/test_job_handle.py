"""Replies belong to the call they answer: a handle against real sockets of a coordinator that is slow to answer."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from websockets.sync.server import Server, ServerConnection, serve

from isoscale.errors import UserError
from isoscale.protocol import messages as m
from isoscale.protocol.status import JobStatus
from isoscale.runtime.control.executor_link import ADDRESS_FILE
from isoscale.runtime.control.job_handle import JobHandle

pytestmark = pytest.mark.processes


STATUS: JobStatus = {"job": "x.py", "state": "training", "step": 1, "loss": None, "workers": 4, "executors": []}


class Coordinator:
    """Answers every request with the target it names, the ones before `prompt` only when told to."""

    def __init__(self) -> None:
        self.prompt = threading.Event()
        self.asked: list[m.FromClient] = []

    def __call__(self, connection: ServerConnection) -> None:
        try:
            for frame in connection:
                request = m.decode_from_client(frame if isinstance(frame, bytes) else frame.encode())
                self.asked.append(request)
                assert self.prompt.wait(30)
                target = request.target if isinstance(request, m.Scale) else "status"
                connection.send(m.encode(m.Reply(ok=True, status={**STATUS, "target": target})))
        except Exception:
            pass


@contextmanager
def running(coordinator: Coordinator, directory: Path) -> Iterator[None]:
    control = directory / "control"
    control.mkdir(exist_ok=True)
    (control / "token").write_text("secret")
    (control / "token").chmod(0o600)
    with serve(coordinator, "127.0.0.1", 0, ping_interval=None) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        address = {"url": _url(server), "term": 1, "pid": 0, "born": 0, "machine": "elsewhere"}
        (control / ADDRESS_FILE).write_text(json.dumps(address))
        yield
        coordinator.prompt.set()
        server.shutdown()
        thread.join(10)


def _url(server: Server) -> str:
    host, port = server.socket.getsockname()[:2]
    return f"ws://{host}:{port}"


def test_a_late_reply_does_not_answer_the_next_call(tmp_path: Path) -> None:
    coordinator = Coordinator()
    with running(coordinator, tmp_path), JobHandle(tmp_path, answer_s=0.2) as handle:
        with pytest.raises(UserError, match="does not answer"):
            handle.scale_to(4)
        coordinator.prompt.set()
        handle.answer_s = 30.0
        assert handle.scale_to(3)["target"] == "3"
        assert handle.status()["target"] == "status"


def test_a_call_that_was_interrupted_leaves_no_reply_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator = Coordinator()
    coordinator.prompt.set()
    with running(coordinator, tmp_path), JobHandle(tmp_path) as handle:
        with monkeypatch.context() as patch:
            patch.setattr("websockets.sync.client.ClientConnection.recv", _interrupted)
            with pytest.raises(KeyboardInterrupt):
                handle.scale_to(4)
        assert handle.scale_to(3)["target"] == "3"


def _interrupted(*_: object, **__: object) -> bytes:
    raise KeyboardInterrupt


def test_a_handle_outlives_the_coordinator_it_was_made_for(tmp_path: Path) -> None:
    with running(first := Coordinator(), tmp_path):
        first.prompt.set()
        handle = JobHandle(tmp_path)
        assert handle.scale_to(2)["target"] == "2"
    with pytest.raises(UserError):
        handle.status()
    with running(second := Coordinator(), tmp_path), handle:
        second.prompt.set()
        assert handle.scale_to(3)["target"] == "3"


def test_a_closed_handle_is_closed_again(tmp_path: Path) -> None:
    coordinator = Coordinator()
    with running(coordinator, tmp_path), JobHandle(tmp_path, answer_s=0.1) as handle:
        with pytest.raises(UserError):
            handle.status()
        handle.close()
    handle.close()

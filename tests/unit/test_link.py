"""An executor's connection against real coordinators' sockets that come and go."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.server import Server, ServerConnection, serve

from isoscale.protocol import messages as m
from isoscale.runtime.control import executor_link as links
from isoscale.runtime.control.executor_link import ADDRESS_FILE, Link, open_socket

pytestmark = pytest.mark.processes


class Coordinator:
    """Takes what comes; acknowledges when it is told to."""

    def __init__(self) -> None:
        self.got: list[m.FromExecutor] = []
        self.peers: list[ServerConnection] = []
        self.news = threading.Condition()

    def __call__(self, connection: ServerConnection) -> None:
        with self.news:
            self.peers.append(connection)
        try:
            for frame in connection:
                with self.news:
                    self.got.append(m.decode_from_executor(frame if isinstance(frame, bytes) else frame.encode()))
                    self.news.notify_all()
        except Exception:
            pass

    def wait(self, done: Callable[[], bool]) -> None:
        with self.news:
            assert self.news.wait_for(done, 30), self.got

    def warnings(self) -> list[str]:
        return [message.message for message in self.got if isinstance(message, m.Warned)]


@contextmanager
def running(coordinator: Coordinator) -> Iterator[str]:
    with serve(coordinator, "127.0.0.1", 0, ping_interval=None) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield _url(server)
        for peer in coordinator.peers:
            peer.close()
        server.shutdown()
        thread.join(10)


def _url(server: Server) -> str:
    host, port = server.socket.getsockname()[:2]
    return f"ws://{host}:{port}"


def make_link(url: str, control: Path, got: list[Any]) -> Link:
    socket = open_socket(f"{url}/executor/1", "token", None)
    link = Link(
        socket,
        path="/executor/1",
        token="token",
        ca_file=None,
        find=lambda: links.find_coordinator(control),
        on_message=got.append,
        introduce=lambda: m.Notice(reason="introduction"),
        on_refused=lambda reason: None,
    )
    link.use_address(url, 1)
    return link


def test_what_was_not_acknowledged_is_sent_again_to_the_next_coordinator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "_RETRY_S", 0.02)
    first, second, got = Coordinator(), Coordinator(), []
    with running(first) as url:
        link = make_link(url, tmp_path, got)
        for number in range(4):
            link.send(m.Warned(message=str(number)))
        first.wait(lambda: len(first.warnings()) == 4)
        first.peers[0].send(m.encode(m.Heard(count=3)))
        begun = time.monotonic()
        assert link.unheard_since() < begun
        first.peers[0].send(m.encode(m.Approach()))
        while not got:
            threading.Event().wait(0.01)
    assert link.lost_for() >= 0.0
    link.send(m.Warned(message="4"))
    with running(second) as url:
        (tmp_path / ADDRESS_FILE).write_text(json.dumps({"url": url, "term": 2}))
        second.wait(lambda: len(second.warnings()) == 2)
        assert isinstance(second.got[0], m.Notice), "it says first who it is"
        assert second.warnings() == ["3", "4"]
        assert link.lost_for() == 0.0
        link.close()


def test_an_older_coordinator_is_not_listened_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "_RETRY_S", 0.02)
    first, old, new = Coordinator(), Coordinator(), Coordinator()
    with running(first) as url:
        link = make_link(url, tmp_path, [])
        link.use_address(url, 5)
    with running(old) as old_url, running(new) as new_url:
        (tmp_path / ADDRESS_FILE).write_text(json.dumps({"url": old_url, "term": 4}))
        link.send(m.Warned(message="to whom it may concern"))
        threading.Event().wait(0.3)
        assert not old.got
        (tmp_path / ADDRESS_FILE).write_text(json.dumps({"url": new_url, "term": 6}))
        new.wait(lambda: len(new.warnings()) == 1)
        assert not old.got
        link.close()


def test_a_connection_draws_nothing_from_pythons_own_stream(tmp_path: Path) -> None:
    """Threads of a connection run beside turns, whose logical worker owns `random`: a ping would draw from it."""
    coordinator, got = Coordinator(), []
    random.seed(7)
    before = random.getstate()
    with running(coordinator) as url:
        link = make_link(url, tmp_path, got)
        # Nor do frames: masks come from the system.
        for number in range(20):
            link.send(m.Warned(message=str(number)))
        coordinator.wait(lambda: len(coordinator.warnings()) == 20)
        assert link._socket is not None
        assert link._socket.ping_interval is None
        link.close()
    assert random.getstate() == before


def test_a_coordinator_that_does_not_read_costs_facts_and_no_word_that_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is stopped while a job commits more steps than are worth keeping."""
    monkeypatch.setattr(links, "_MAX_WAITING", 10)
    coordinator = Coordinator()
    with running(coordinator) as url:
        link = make_link(url, tmp_path, [])
        for number in range(30):
            link.send_fact(m.Logged(step=number, epoch=0, values={}))
        for number in range(5):
            link.send(m.Warned(message=str(number)))
        coordinator.wait(lambda: len(coordinator.warnings()) == 5)
        facts = [message.step for message in coordinator.got if isinstance(message, m.Logged)]
        assert facts == list(range(10))
        link.close()

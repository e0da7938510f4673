"""State changes reach the operator's address in order, though it fails now and then, and over a restart."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from isoscale.cluster import webhooks
from isoscale.errors import UserError
from tests.unit.cluster.conftest import World
from tests.unit.cluster.test_desk import wait_for, wait_until


@pytest.fixture
def listener():
    heard: list[tuple[str, str]] = []
    answers = [503, 200]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            event = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status = answers.pop(0) if answers else 200
            if status == 200:
                heard.append((event["event"], event["job"]))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/hook", heard
    server.shutdown()
    server.server_close()


def test_state_changes_are_told(make_world: Callable[..., World], listener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "_SOONEST_S", 0.01)
    url, heard = listener
    world = make_world(webhooks=(url,))
    world.submit()
    wait_until(lambda: heard == [("job_submitted", "j1")])
    world.service.close()
    world = make_world(webhooks=(url,))
    world.ask("POST", "/api/jobs/j1/cancel")
    wait_for(world, "j1", "cancelled")
    wait_until(lambda: ("job_cancelled", "j1") in heard)
    assert heard == [("job_submitted", "j1"), ("job_cancelled", "j1")]


def test_an_address_that_is_none_is_refused() -> None:
    for url in ("file:///etc/passwd", "localhost", "ftp://x/y"):
        with pytest.raises(UserError, match="--webhook"):
            webhooks.check_address(url)

"""A client outlives the services that it talks to."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from isoscale.cluster.client import Client, NobodyServesError, ServiceError
from tests.unit.cluster.conftest import World


@pytest.fixture
def serve() -> Iterator[Callable[[bytes], str]]:
    """A server that gives one answer to everything; returns its address."""
    servers: list[http.server.HTTPServer] = []

    def make(answer: bytes) -> str:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: object) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}"

    yield make
    for server in servers:
        server.shutdown()
        server.server_close()


def test_who_waits_for_a_job_outlives_a_service_that_ended_in_good_order(
    world: World, tmp_path: Path, serve: Callable[[bytes], str]
) -> None:
    shown = world.submit().json()
    running = serve(json.dumps(shown).encode())
    over = serve(json.dumps({**shown, "state": "finished"}).encode())
    state = tmp_path / "elsewhere"
    state.mkdir()
    (state / "token").write_text("t")
    with pytest.raises(NobodyServesError, match="isoscale serve --state"):
        Client(state)
    (state / "address").write_text(running)
    client = Client(state, patience_s=0.0)
    assert client.job("j1").state == "queued"
    client.close()
    (state / "address").unlink()
    with pytest.raises(NobodyServesError):
        client.job("j1")
    threading.Timer(0.5, lambda: (state / "address").write_text(over)).start()
    assert client.wait("j1", timeout_s=30).state == "finished"
    client.close()


def test_what_is_no_id_is_no_such_job(tmp_path: Path, serve: Callable[[bytes], str]) -> None:
    (tmp_path / "token").write_text("t")
    client = Client(serve(b"{}"), token_file=tmp_path / "token")
    for name in ("j1/../j2", "jé", "j\uff11", "j 1", ""):
        with pytest.raises(ServiceError, match="no such job"):
            client.job(name)
    client.close()

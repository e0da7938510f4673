"""An inference server, one process for each device that it holds: a small convolutional network behind HTTP.

A process loads the model, says the port that it listens on, and answers one request after another; others wait in line
as the system keeps them. `Server` is the end of it in the harness.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import TracebackType
from typing import Any

from benchmarks.lib.processes import ROOT, run_module

#: images in a request
BATCH, WIDTH = 4, 48
_BACKLOG = 1024


class Server:
    """One process, which runs on one core at a time; idle until somebody asks it."""

    def __init__(self) -> None:
        command = run_module("benchmarks.cluster.inference")
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, env=environment)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        #: requests that were sent and not answered yet
        self.outstanding = 0

    def run_on(self, core: int) -> None:
        for task in os.listdir(f"/proc/{self._process.pid}/task"):
            os.sched_setaffinity(int(task), [core])

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(OSError):
            assert self._process.stdout is not None
            self._process.stdout.close()


def main() -> None:
    import torch

    from benchmarks.lib.models import convnet

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = convnet(WIDTH).eval()
    images = torch.randn(BATCH, 3, 32, 32)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with torch.inference_mode():
                found = model(images).argmax(1).tolist()
            body = ",".join(map(str, found)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Queue(HTTPServer):
        request_queue_size = _BACKLOG

    for _ in range(20):
        model(images)
    with Queue(("127.0.0.1", 0), Handler) as server:
        print(server.server_port, flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()

"""A Ray cluster whose nodes are machines of their own: they see each other by address only."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from isoscale.protocol.events import read_events
from isoscale.testing import short_job_path, start
from tests.security.network import Machine, Network, network, why_not

pytestmark = [pytest.mark.processes, pytest.mark.network, pytest.mark.timeout(900)]

PORT = 6379
PROGRAMS = Path(sys.executable).parent
ARGUMENTS = ["4", "0.04", "0", "wait", "track"]


@contextmanager
def on(machine: Machine, log: Path, *command: object) -> Iterator[subprocess.Popen[bytes]]:
    """A program there, with all that it starts. Ray's sockets and shared memory are each machine's own."""
    own = 'for path in /tmp/ray /dev/shm; do mkdir -p $path && mount -t tmpfs none $path || exit; done; exec "$@"'
    variables = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "PATH": f"{PROGRAMS}:{os.environ['PATH']}"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*machine.own_processes, "sh", "-c", own, "sh", *map(str, command)],
            stdout=output,
            stderr=output,
            env=variables,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def ray_start(machine: Machine, *options: str) -> list[str]:
    store = f"--object-store-memory={80 * 2**20}"
    return [str(PROGRAMS / "ray"), "start", f"--node-ip-address={machine.address}", store, *options]


def until(done: Callable[[], Any], what: str, log: Path, seconds: float = 300.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := done()):
        assert time.monotonic() < deadline, f"{what} did not come:\n{log.read_text()[-3000:]}"
        time.sleep(0.1)
    return found


def test_nodes_in_network_namespaces(tmp_path: Path) -> None:
    if reason := why_not():
        pytest.skip(reason)
    with start(short_job_path(), out=tmp_path / "alone", executors=1, script_args=["4"]) as alone:
        assert alone.wait() == 0, alone.output()
    with network(3) as machines:
        _story(machines, tmp_path, alone.digest())


def _story(machines: Network, folder: Path, expected: str) -> None:
    head, *workers = machines.machines
    out, log = folder / "run", folder / "head.log"
    address = f"{head.address}:{PORT}"
    started = ray_start(head, "--head", f"--port={PORT}", "--num-cpus=0", "--include-dashboard=false")
    job = [str(PROGRAMS / "isoscale"), "run", str(short_job_path()), "--workers", "4", "--executors", "2"]
    job += ["--out", str(out), "--backend", "ray", "--address", address, "--no-rebalance", "--", *ARGUMENTS]
    # The coordinator is a program of the head's machine; it begins when the other nodes are there.
    program = f"{shlex.join(started)} && until [ -e {folder}/go ]; do sleep 0.2; done; {shlex.join(job)}"
    joined = [ray_start(worker, f"--address={address}", "--num-cpus=1", "--block") for worker in workers]

    def events(name: str) -> list[dict[str, Any]]:
        path = out / "events.jsonl"
        return [one for one in read_events(path) if one["event"] == name] if path.exists() else []

    with on(head, log, "sh", "-c", program) as coordinator:
        until(lambda: "Ray runtime started" in log.read_text(), "the head", log)
        with (
            on(workers[0], folder / "1.log", *joined[0]),
            on(workers[1], folder / "2.log", *joined[1]),
        ):
            for number in (1, 2):
                path = folder / f"{number}.log"
                until(lambda path=path: "Ray runtime started" in path.read_text(), "a node", path)
            (folder / "go").touch()
            until(lambda: len(events("step")) >= 3, "three steps", log)
            known = json.loads((out / "control" / "executors.json").read_text())
            assert len({one["machine"] for one in known.values()}) == 2, "two machines"
            assert machines.passed > 0

            # A node is cut off: nobody can be asked about it, and the job goes on at once when it is given up.
            machines.cut_off.add(2)
            until(lambda: events("executor_lost"), "a loss", log)
            step = events("step")[-1]["step"]
            until(lambda: events("step")[-1]["step"] > step, "a step without it", log)
            (out / "hurry").touch()
            until(lambda: coordinator.poll() is not None, "the end", log)
        assert events("finished")[-1]["digest"] == expected, log.read_text()[-3000:]

"""Starts benchmarks with `--smoke`, each in a child that is forked from one process that has imported torch.

So the import is paid for once. A child has its own session, its output is kept, and it ends with what it started when
its time is over. Nobody measures here: settings of memory that would make a benchmark start itself again are given
beforehand.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import runpy
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.index import Benchmark
from benchmarks.lib.processes import ROOT
from isoscale.backends.local import ALLOCATOR

LIMIT_S = 240.0
_POLL_S = 0.02
_GRACE_S = 20.0


@dataclass(frozen=True)
class Smoke:
    """How one benchmark fared."""

    name: str
    #: exit code; -1: not done in time
    code: int
    seconds: float
    #: of the child and what it started and waited for
    processor_s: float
    output: str

    @property
    def skipped(self) -> list[str]:
        """What it left out, by its own words."""
        return [line for line in self.output.splitlines() if line.startswith("skipped")]


def warm_up() -> None:
    """What almost all of them import. One thread, or a fork would not be safe."""
    os.environ.update({name: os.environ.get(name, value) for name, value in ALLOCATOR.items()})
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch

    torch.set_num_threads(1)


def run(benchmark: Benchmark) -> Smoke:
    with tempfile.TemporaryFile() as output:
        begun, used = time.monotonic(), _used()
        child = os.fork()
        if child == 0:
            _be(benchmark, output.fileno())
        try:
            code = _wait(child, begun + LIMIT_S)
        except BaseException:  # Ctrl-C reaches this process only: the child has a session of its own
            _end(child)
            raise
        seconds, processor_s = time.monotonic() - begun, _used() - used
        output.seek(0)
        text = output.read().decode(errors="replace")
    return Smoke(benchmark.name, code, round(seconds, 1), round(processor_s, 1), text)


def _be(benchmark: Benchmark, output: int) -> None:
    """The child; does not return."""
    code = 1
    try:
        os.setsid()
        os.chdir(ROOT)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.argv = [benchmark.module, "--smoke"]
        runpy.run_module(benchmark.module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _wait(child: int, until: float) -> int:
    while time.monotonic() < until:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(_POLL_S)
    _end(child)
    return -1


def _end(child: int) -> None:
    """SIGTERM first, so that it ends what it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGTERM)
        until = time.monotonic() + _GRACE_S
        while time.monotonic() < until and os.waitpid(child, os.WNOHANG)[0] == 0:
            time.sleep(_POLL_S)
        os.killpg(child, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child, 0)


def _used() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def line(one: Smoke) -> str:
    word = "ok    " if one.code == 0 else "FAILED"
    notes = "".join(f"; {note}" for note in one.skipped)
    return f"{word} {one.name:26} {one.seconds:6.1f} s, {one.processor_s:5.1f} s of processor time{notes}"


def write(path: Path, found: list[Smoke]) -> None:
    path.write_text(json.dumps([asdict(one) for one in found], indent=1) + "\n")

"""Step time of isoscale's Trainer over that of the stock class under torchrun, two processes each.

A GPT-2 of four layers, one thread per process. Both sides, and a second stock one as control, run at the same time and
take turns: while one does a round of ten steps, the others wait. Seconds are those between two ends of steps, without
the first step of a round, which finds the caches full of others' data. Processor seconds are those of a whole round, of
all processes of a side, launcher and coordinator included. All is started anew several times, since where memory
happens to lie counts, too.

    python -m benchmarks.integrations.trainer_step
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import IO

from benchmarks.lib.measure import ratio_of
from benchmarks.lib.options import options as chosen
from benchmarks.lib.result import save
from isoscale.backends.local import ALLOCATOR

RESULT, MINUTES = "trainer_step", 12
STARTS = ("benchmarks.integrations.trainer_job", "isoscale.integrations.transformers")
PROCESSES = 2
#: steps at the beginning that do not count: rounds begin amid the ten steps from one log to the next
_SETTLING = 5


class Side:
    """The processes of one training, which wait for each other at the end of every round."""

    def __init__(self, name: str, folder: Path, processes: int, job: list[str]) -> None:
        script = str(Path(__file__).with_name("trainer_job.py"))
        self.name = name
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address := str(folder / "socket"))
        self._listener.listen()
        if name == "b":
            isoscale = str(Path(sys.executable).with_name("isoscale"))
            there = ["--workers", str(processes), "--executors", str(processes), "--out", str(folder / "run")]
            command = [isoscale, "run", script, *there, "--", "isoscale", address, *job]
        else:
            launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
            command = [*launcher, f"--nproc-per-node={processes}", script, "stock", address, *job]
        self._output = (folder / "output").open("w+")
        # The memory settings that executors get, for both.
        environment = {**ALLOCATOR, **os.environ, "OMP_NUM_THREADS": "1"}
        self._launcher = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=self._output, stderr=subprocess.STDOUT
        )
        self._processes = processes
        self._members: list[tuple[socket.socket, IO[str]]] = []

    def settle(self) -> None:
        """Until all of them wait."""
        self._listener.settimeout(1)
        while len(self._members) < self._processes:
            with contextlib.suppress(TimeoutError):
                member = self._listener.accept()[0]
                self._members.append((member, member.makefile()))
            if self._launcher.poll() is not None:
                self._fail()
        self._arrivals()

    def round(self) -> tuple[list[float], float]:
        """Seconds of its steps, of the process that came last; and processor seconds of all."""
        everybody = _descendants(self._launcher.pid)
        before = sum(map(_processor_seconds, everybody))
        self._go()
        arrived = self._arrivals()
        return [max(both) for both in zip(*arrived, strict=True)], sum(map(_processor_seconds, everybody)) - before

    def end(self) -> None:
        self._go()
        if self._launcher.wait() != 0:
            self._fail()

    def stop(self) -> None:
        """Whatever has become of it."""
        self._launcher.terminate()
        self._launcher.wait()
        self._output.close()
        self._listener.close()
        for member, lines in self._members:
            lines.close()
            member.close()

    def _go(self) -> None:
        for member, _ in self._members:
            member.sendall(b"+")

    def _arrivals(self) -> list[list[float]]:
        lines = [lines.readline() for _, lines in self._members]
        if not all(lines):
            self._fail()
        return [json.loads(line) for line in lines]

    def _fail(self) -> None:
        self._output.seek(0)
        sys.exit(f"side {self.name}: exit code {self._launcher.wait()}\n{self._output.read()[-3000:]}")


def _processor_seconds(process: int) -> float:
    # The clock of another process (clock_getcpuclockid).
    return time.clock_gettime(~process << 3 | 2)


def _descendants(process: int) -> list[int]:
    """And itself."""
    found = [process]
    for one in found:
        for children in Path(f"/proc/{one}/task").glob("*/children"):
            found += map(int, children.read_text().split())
    return found


@contextlib.contextmanager
def started(names: str, processes: int, job: list[str]) -> Iterator[list[Side]]:
    with tempfile.TemporaryDirectory(prefix="trainer-") as folder, contextlib.ExitStack() as stack:
        sides = []
        for name in names:
            (place := Path(folder, name)).mkdir()
            sides.append(Side(name, place, processes, job))
            stack.callback(sides[-1].stop)
        for side in sides:
            side.settle()
        yield sides


def main() -> None:
    options = chosen(__doc__)
    width = options.pick(smoke=32, quick=256, full=256)
    blocks, rounds, steps = options.pick(smoke=(1, 1, 3), quick=(1, 10, 10), full=(4, 40, 10))
    processes, names = options.pick(smoke=(1, "ab"), quick=(PROCESSES, "abc"), full=(PROCESSES, "abc"))
    order = random.Random(0)
    times: dict[str, list[list[float]]] = {name: [] for name in names}
    busy: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(blocks):
        job = list(map(str, (_SETTLING, steps, rounds, width)))
        with started("".join(order.sample(names, len(names))), processes, job) as sides:
            for name in names:
                times[name].append([])
            for _ in range(rounds):
                for side in order.sample(sides, len(sides)):
                    seconds, busy_s = side.round()
                    times[side.name][-1] += seconds[1:]
                    busy[side.name].append(busy_s / steps)
            for side in sides:
                side.end()
    control = times.get("c", times["a"])
    ratio = ratio_of({"a": times["a"], "b": times["b"], "control": control})
    means = {name: statistics.fmean(seconds for block in found for seconds in block) for name, found in times.items()}
    processor = {name: statistics.median(found) for name, found in busy.items()}
    row = {
        "model": f"GPT-2, width {width}",
        **asdict(ratio),
        "mean_ratio": round(means["b"] / means["a"], 4),
        "mean_control": round(means.get("c", means["a"]) / means["a"], 4),
        "processor_ratio": round(processor["b"] / processor["a"], 4),
        "processor_control": round(processor.get("c", processor["a"]) / processor["a"], 4),
        "processor_a_ms": round(processor["a"] * 1e3, 2),
        "processor_b_ms": round(processor["b"] * 1e3, 2),
    }
    print(f"{ratio.ratio:.4f}x +- {ratio.half_width:.4f} of {ratio.a_ms:.1f} ms a step (limit 1.03x)", flush=True)
    print({name: value for name, value in row.items() if name.startswith(("mean", "processor"))}, flush=True)
    save(RESULT, [row], options, processes=PROCESSES)


if __name__ == "__main__":
    main()

"""Step time of isoscale's Trainer over that of the stock class under torchrun, two processes each.

A GPT-2 of four layers, one thread per process. Both sides and a control of the stock one are started in turn, several
times; seconds are those between two ends of steps.

    python -m benchmarks.integrations.trainer_step
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from benchmarks.lib.measure import ratio_of
from benchmarks.lib.options import options as chosen
from benchmarks.lib.result import save
from isoscale.backends.local import ALLOCATOR

RESULT, MINUTES = "trainer_step", 4
STARTS = ("benchmarks.integrations.trainer_job", "isoscale.integrations.transformers")
PROCESSES = 2
#: steps at the beginning that do not count
_SETTLING = 3


def seconds(side: str, folder: Path, steps: int, width: int, processes: int) -> list[float]:
    """Of the steps of one run."""
    script, out = Path(__file__).with_name("trainer_job.py"), folder / "seconds.json"
    arguments = ["isoscale" if side == "b" else "stock", str(out), str(steps), str(width)]
    if side == "b":
        isoscale = str(Path(sys.executable).with_name("isoscale"))
        there = ["--workers", str(processes), "--executors", str(processes), "--out", str(folder / "run")]
        command = [isoscale, "run", str(script), *there, "--", *arguments]
    else:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
        command = [*launcher, f"--nproc-per-node={processes}", str(script), *arguments]
    # The memory settings that executors get, for both.
    environment = {**ALLOCATOR, **os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{(done.stdout + done.stderr)[-3000:]}")
    return [float(one) for one in json.loads(out.read_text())][_SETTLING:]


def main() -> None:
    options = chosen(__doc__)
    steps, width = options.pick(smoke=(_SETTLING + 3, 32), quick=(20, 256), full=(40, 256))
    processes, sides = options.pick(smoke=(1, "ab"), quick=(PROCESSES, "abc"), full=(PROCESSES, "abc"))
    order, times = random.Random(0), dict[str, list[list[float]]]()
    for _ in range(options.pick(smoke=1, quick=1, full=3)):
        for side in order.sample(sides, len(sides)):
            with tempfile.TemporaryDirectory(prefix="trainer-") as folder:
                times.setdefault(side, []).append(seconds(side, Path(folder), steps, width, processes))
    ratio = ratio_of({"a": times["a"], "b": times["b"], "control": times.get("c", times["a"])})
    print(f"{ratio.ratio:.4f}x +- {ratio.half_width:.4f} of {ratio.a_ms:.1f} ms a step (limit 1.03x)", flush=True)
    save(RESULT, [{"model": f"GPT-2, width {width}", **asdict(ratio)}], options, processes=PROCESSES)


if __name__ == "__main__":
    main()

"""The elastic runtime in steady state over the static core of the commit before it.

Same script, same model, same number of executors; nothing scales. The peer is isoscale itself at the last commit that
could not scale (`--commit`), unpacked into a temporary directory. What the elastic runtime does in every step (contexts
replicated, the seal's control word, heartbeats, speeds, events) is in its times. Jobs train in turn, blocks in random
order; the control is the static core once more.

    python -m benchmarks.elastic.steady
"""

from __future__ import annotations

import argparse
import io
import signal
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.elastic.gate import Side, interleaved
from benchmarks.lib.measure import ratio_of, save
from benchmarks.lib.models import workloads
from benchmarks.lib.processes import ROOT

STATIC_COMMIT = "a1e20ce"
LIMIT = 1.01
#: a control that strays further says that the machine was busy, and nothing about the runtime
WIDEST = 0.03
STEPS = 10


def unpacked(commit: str, folder: Path) -> Path:
    """isoscale of that commit: an archive, so that the repository itself is left alone, and none of its benchmarks."""
    data = subprocess.run(["git", "archive", commit, "isoscale"], cwd=ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def without_benchmarks(tree: Path, folder: Path) -> Path:
    """The tree's isoscale alone: both sides run the script, the models and the log of this tree's benchmarks."""
    folder.mkdir()
    (folder / "isoscale").symlink_to(tree.resolve() / "isoscale")
    return folder


def row_of(workload: int, workers: int, executors: int, static: Path, folder: Path, options: Any) -> dict[str, Any]:
    before, now = Side(workers, executors, root=static), Side(workers, executors, root=options.tree)
    times = interleaved(
        {"a": before, "b": now, "control": before},
        workload,
        folder,
        blocks=1 if options.quick else options.blocks,
        rounds=1 if options.quick else max(1, options.pairs // STEPS),
        steps=STEPS,
    )
    found = ratio_of(times)
    row = {
        "model": workloads()[workload].name,
        "workers": workers,
        "executors": executors,
        **vars(found),
        "limit": LIMIT,
        "meets": found.meets(LIMIT) and found.half_width <= WIDEST,
    }
    print(
        f"{row['model']:18} N={workers} E={executors}  static {found.a_ms:7.2f} ms  elastic {found.b_ms:7.2f} ms  "
        f"ratio {found.ratio:.4f}  control {found.control:.4f} +- {found.half_width:.4f}  "
        f"{'met' if row['meets'] else 'MISSED' if found.half_width <= WIDEST else 'too noisy to tell'}",
        flush=True,
    )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one short block; prints, saves nothing")
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=100, help="steps of each side in a block")
    parser.add_argument("--models", default="1,0", help="1: transformer 26 MB, 0: convnet 6.5 MB")
    parser.add_argument("--sizes", default="2x2,8x2,2x1", help="logical workers x executors")
    parser.add_argument("--commit", default=STATIC_COMMIT, help="the static core")
    parser.add_argument("--tree", type=Path, default=ROOT, help="the elastic runtime, if not this tree's")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        static = unpacked(options.commit, Path(temporary) / "static")
        if options.tree != ROOT:
            options.tree = without_benchmarks(options.tree, Path(temporary) / "elastic")
        for workload in map(int, options.models.split(",")):
            for size in options.sizes.split(","):
                workers, executors = map(int, size.split("x"))
                folder = Path(temporary) / f"{workload}-{size}"
                rows.append(row_of(workload, workers, executors, static, folder, options))
    if not options.quick:
        save("elastic_steady", rows, static_commit=options.commit)


if __name__ == "__main__":
    main()

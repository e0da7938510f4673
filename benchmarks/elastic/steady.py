"""The elastic runtime in steady state over the static core of the commit before it.

Same script, same model, same number of executors; nothing scales. The peer is isoscale itself at the last commit that
could not scale (`--commit`), unpacked into a temporary directory. What the elastic runtime does in every step (contexts
replicated, the seal's control word, heartbeats, speeds, events) is in its times. Jobs train in turn, blocks in random
order; the control is the static core once more.

    python -m benchmarks.elastic.steady
"""

from __future__ import annotations

import io
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.elastic.gate import Side, interleaved
from benchmarks.lib.measure import ratio_of
from benchmarks.lib.models import TINY, workload
from benchmarks.lib.options import Options, parsed, parser
from benchmarks.lib.processes import ROOT
from benchmarks.lib.result import Rows

RESULT, MINUTES = "elastic_steady", 7
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


def row_of(number: int, workers: int, executors: int, static: Path, folder: Path, options: Options) -> dict[str, Any]:
    before, now = Side(workers, executors, root=static), Side(workers, executors, root=options.tree)
    # A smoke run spares the third job.
    sides = {"a": before, "b": now} | ({} if options.smoke else {"control": before})
    times = interleaved(
        sides,
        number,
        folder,
        blocks=options.pick(smoke=1, quick=1, full=options.blocks),
        rounds=options.pick(smoke=1, quick=2, full=max(1, options.pairs * executors // workers // STEPS)),
        steps=STEPS,
    )
    found = ratio_of({"control": times["a"], **times})
    row = {
        "model": workload(number).name,
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
    made = parser(__doc__)
    made.add_argument("--blocks", type=int, default=4)
    made.add_argument("--pairs", type=int, default=40, help="steps of each side in a block, of two turns each")
    made.add_argument("--models", default="", help="1: transformer 26 MB, 0: convnet 6.5 MB; both by default")
    made.add_argument("--sizes", default="", help="logical workers x executors, by default 2x2,8x2")
    made.add_argument("--commit", default=STATIC_COMMIT, help="the static core")
    made.add_argument("--tree", type=Path, default=ROOT, help="the elastic runtime, if not this tree's")
    options = parsed(made)
    models = options.models or options.pick(smoke=str(TINY), quick="0", full="1,0")
    sizes = options.sizes or options.pick(smoke="2x1", quick="2x2", full="2x2,8x2")
    asked = {"commit": options.commit, "blocks": options.blocks, "pairs": options.pairs, "tree": options.tree == ROOT}
    rows = Rows(RESULT, options, ("model", "workers", "executors"), **asked)
    with tempfile.TemporaryDirectory() as temporary:
        static = unpacked(options.commit, Path(temporary) / "static")
        if options.tree != ROOT:
            options.tree = without_benchmarks(options.tree, Path(temporary) / "elastic")
        for number in map(int, models.split(",")):
            for size in sizes.split(","):
                workers, executors = map(int, size.split("x"))
                if rows.find(model=workload(number).name, workers=workers, executors=executors) is None:
                    folder = Path(temporary) / f"{number}-{size}"
                    rows.put(row_of(number, workers, executors, static, folder, options))
    rows.finish(static_commit=options.commit)


if __name__ == "__main__":
    main()

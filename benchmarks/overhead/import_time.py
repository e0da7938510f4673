"""Time of `import isoscale` in a fresh interpreter, over that of an empty one.

The target is under 0.1 s.

    python -m benchmarks.overhead.import_time
"""

from __future__ import annotations

import subprocess
import sys
import time

from benchmarks.lib.measure import percentile
from benchmarks.lib.options import options as chosen
from benchmarks.lib.result import save

RESULT, MINUTES = "import_time", 1


def seconds(code: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - start


def main() -> None:
    options = chosen(__doc__)
    count = options.pick(smoke=1, quick=10, full=40)
    pairs = [(seconds("pass"), seconds("import isoscale")) for _ in range(count)]
    empty, ours = (percentile([pair[i] for pair in pairs], 50) for i in (0, 1))
    print(f"empty {empty * 1e3:.1f} ms, with import isoscale {ours * 1e3:.1f} ms: {(ours - empty) * 1e3:.1f} ms more")
    row = {
        "empty_ms": round(empty * 1e3, 2),
        "with_import_ms": round(ours * 1e3, 2),
        "import_ms": round((ours - empty) * 1e3, 2),
        "meets 100": ours - empty < 0.1,
    }
    save(RESULT, [row], options)


if __name__ == "__main__":
    main()

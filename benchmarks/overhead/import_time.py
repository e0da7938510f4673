"""Time of `import isoscale` in a fresh interpreter, over that of an empty one.

The target is under 0.1 s.

    python -m benchmarks.overhead.import_time
"""

from __future__ import annotations

import subprocess
import sys
import time

from benchmarks.lib.measure import percentile, quick_option, save


def seconds(code: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - start


def main() -> None:
    quick = quick_option(__doc__ or "").quick
    pairs = [(seconds("pass"), seconds("import isoscale")) for _ in range(10 if quick else 40)]
    empty, ours = (percentile([pair[i] for pair in pairs], 50) for i in (0, 1))
    print(f"empty {empty * 1e3:.1f} ms, with import isoscale {ours * 1e3:.1f} ms: {(ours - empty) * 1e3:.1f} ms more")
    if not quick:
        save(
            "import_time",
            [
                {
                    "empty_ms": round(empty * 1e3, 2),
                    "with_import_ms": round(ours * 1e3, 2),
                    "import_ms": round((ours - empty) * 1e3, 2),
                    "meets 100": ours - empty < 0.1,
                }
            ],
        )


if __name__ == "__main__":
    main()

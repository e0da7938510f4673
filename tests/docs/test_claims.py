"""docs/claims.md says what benchmarks/results say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_is_generated_from_the_results() -> None:
    check = subprocess.run([sys.executable, "-m", "benchmarks.claims", "--check"], cwd=ROOT, check=False)
    assert check.returncode == 0, "run: python -m benchmarks.claims"

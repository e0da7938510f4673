"""docs/recipes.md says what benchmarks/results say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_tables_are_generated_from_the_results() -> None:
    check = subprocess.run([sys.executable, "-m", "benchmarks.recipes.page", "--check"], cwd=ROOT, check=False)
    assert check.returncode == 0, "run: python -m benchmarks.recipes.page"

"""Every command behind docs/scale.md runs, and the page's tables are what the kept results say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.scale import page

ROOT = Path(__file__).parents[2]


@pytest.mark.processes
@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", ["constants", "traffic", "costs", "goodput"])
def test_a_short_run_writes_what_the_long_one_would(name: str, tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    command = [sys.executable, "-m", f"benchmarks.scale.{name}", "--smoke", "--out", str(out)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    short = json.loads(out.read_text())
    kept = json.loads((ROOT / "benchmarks" / "results" / f"scale_{name}.json").read_text())
    assert short["rows"][0].keys() == kept["rows"][0].keys()
    assert short.keys() <= kept.keys()


def test_pictures_are_drawn(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.scale.figures", "--out", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    for name in ("scale_costs.png", "scale_goodput.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
        assert (ROOT / "docs" / "images" / name).exists()


def test_tables_are_generated_from_the_results() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert all(f"<!-- generated: {name} -->" in text for name in page.TABLES)
    assert page.page(text) == text, "run: python -m benchmarks.scale.page"


def test_numbers_are_shown_with_two_digits() -> None:
    shown = [page.seconds(value) for value in (2.3e-6, 0.00214, 0.25, 3.46, 99.9, 9580.0)]
    assert shown == ["2.3 µs", "2.1 ms", "250 ms", "3.5 s", "100 s", "2.7 h"]
    assert [page.size(value) for value in (12, 5056, 3.2e9)] == ["12 B", "5.1 kB", "3.2 GB"]

"""Reading is streaming: memory grows with jobs, not with lines; and somebody who waits is told how far it is."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest

from isoscale.analysis.study.formats import open_trace, sources
from isoscale.analysis.study.readers import blocks, json_array
from isoscale.analysis.study.reading import Reading
from tests.unit.analysis.study.test_readers import PHILLY

MONITOR = "time,machineId," + ",".join(f"gpu{i}_util" for i in range(8)) + ",\n"


def peak(home: Path) -> int:
    tracemalloc.start()
    try:
        open_trace(sources(str(home))[0], Reading(strict=True))
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "_BYTES", 1 << 16)
    (tmp_path / "cluster_job_log").write_text(json.dumps([PHILLY]))
    lines = [
        f"2017-10-09 {i // 60 % 24:02d}:{i % 60:02d}:00 PDT,m{i % 7},{i % 101},0,5.5,NA,100,3,4,5,\n"
        for i in range(4000)
    ]
    peaks = []
    for times in (1, 8):
        (tmp_path / "cluster_gpu_util").write_text(MONITOR + "".join(lines) * times)
        peaks.append(peak(tmp_path))
    assert peaks[1] < 1.3 * peaks[0], peaks


def test_a_long_job_log_is_never_held_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_array, "_PIECE", 1 << 14)
    # Megabytes that nobody needs: fields that the reader does not know.
    job = json.dumps({**PHILLY, "notes": "x" * 10_000})
    (tmp_path / "cluster_job_log").write_text("[" + ",\n".join([job] * 400) + "]")
    size = (tmp_path / "cluster_job_log").stat().st_size
    assert size > 4_000_000
    assert peak(tmp_path) < size / 2


def test_progress_goes_forward_to_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "_BYTES", 1 << 12)
    (tmp_path / "cluster_job_log").write_text(json.dumps([PHILLY]))
    line = "2017-10-09 07:03:00 PDT,m1,1,2,3,4,5,6,7,8,\n"
    (tmp_path / "cluster_gpu_util").write_text(MONITOR + line * 500)
    told: dict[str, list[float]] = {}
    reading = Reading(on_progress=lambda name, done, total: told.setdefault(name, []).append(done / total))
    open_trace(sources(str(tmp_path))[0], reading)
    assert len(told["cluster_gpu_util"]) > 3
    for shares in told.values():
        assert shares == sorted(shares)
        assert shares[-1] == 1.0

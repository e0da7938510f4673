"""`scripts/demo` in short: the story is told, the digest is stock DDP's, a report is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from isoscale.demo import one_job

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(300)]


def test_the_demo_ends_with_the_bits_of_stock_ddp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(one_job, "_EPOCHS", "12")
    monkeypatch.setattr(one_job, "_QUIET_STEPS", 10)
    assert one_job.main() == 0
    shown = capsys.readouterr().out
    assert "the same bits" in shown
    assert "losses equal bit for bit: 276 of 276 steps" in shown
    assert "-> 3 executors" in shown
    (picture,) = tmp_path.glob("runs/demo-*/report.png")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.with_suffix(".html").exists()

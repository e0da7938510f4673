"""`scripts/demo` in short: the stories are told, digests are those of stock DDP and of jobs run alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from isoscale.demo import many_jobs, one_job

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


def test_three_jobs_share_devices_and_end_with_the_bits_of_each_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(many_jobs, "_QUIET_STEPS", 5)
    assert many_jobs.main() == 0
    shown = capsys.readouterr().out
    assert "the same bits" in shown
    assert "isoscale reclaim local 1 --within 2" in shown
    assert "is free after" in shown
    assert "is the service's again" in shown
    for name in ("short", "middle", "long"):
        assert f"{name} starts on" in shown
        assert f"{name} has finished" in shown

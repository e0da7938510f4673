"""`isoscale report` on written logs; no training."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from isoscale.cli.promises import warn_if_broken
from isoscale.cli.report import report as command
from isoscale.errors import UserError
from tests.unit.analysis.logs import Writer, old, save, simulated, story
from tests.unit.promises.histories import real

cli = typer.Typer()
cli.command()(command)


def report(*arguments: str | Path) -> str:
    result = CliRunner().invoke(cli, [*map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def run(tmp_path: Path) -> Path:
    directory = save(story(), tmp_path / "run", torn='{"t": 1794787999.0, "event": "ste')
    summary = {"job": {"script": "somewhere/digits.py", "workers": 8}}
    (directory / "summary.json").write_text(json.dumps(summary))
    return directory


def test_a_page_and_a_picture_appear_in_the_directory(run: Path) -> None:
    output = report(run)
    assert "digits.py: 1 → 3 → 2 → 4 → 3 → 4 executors" in output
    assert {path.name for path in run.iterdir()} == {"events.jsonl", "summary.json", "report.html", "report.png"}
    assert (run / "report.html").read_text().startswith("<!doctype html>")
    assert (run / "report.png").read_bytes().startswith(b"\x89PNG")


def test_a_second_report_replaces_the_first(run: Path) -> None:
    (run / "report.html").write_text("old")
    report(run)
    assert "digits.py" in (run / "report.html").read_text()


@pytest.mark.parametrize(
    ("name", "start"), [("a.html", b"<!doctype"), ("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a.json", b'{"format"')]
)
def test_out_writes_only_that_file(run: Path, tmp_path: Path, name: str, start: bytes) -> None:
    before = set(run.iterdir())
    report(run, "--out", tmp_path / "deep" / name)
    assert (tmp_path / "deep" / name).read_bytes().startswith(start)
    assert [path.name for path in (tmp_path / "deep").iterdir()] == [name]
    assert set(run.iterdir()) == before


def test_json_is_printed_and_nothing_written(run: Path) -> None:
    before = set(run.iterdir())
    shown = json.loads(report(run, "--json"))
    assert (shown["format"], shown["state"], shown["step"], shown["job"]) == (1, "finished", 432, "digits.py")
    assert len(shown["lives"]) == 6
    assert set(run.iterdir()) == before


def test_an_event_log_may_be_named_itself(run: Path) -> None:
    (run / "events.jsonl").rename(run / "sim.jsonl")
    assert json.loads(report(run / "sim.jsonl", "--json"))["step"] == 432


def test_the_number_of_logical_workers_of_an_old_run_comes_from_its_summary(tmp_path: Path) -> None:
    directory = save(old(2), tmp_path / "old")
    (directory / "summary.json").write_text(json.dumps({"job": {"script": "x.py", "workers": 6}}))
    lives = json.loads(report(directory, "--json"))["lives"]
    assert [(life["stays"][0]["first"], life["stays"][0]["last"]) for life in lives] == [(0, 2), (3, 5)]


@pytest.mark.parametrize("summary", ["", "[]", '{"job": 3}', '{"job": {"script": 3, "workers": "x"}}', "{"])
def test_a_broken_summary_does_no_harm(tmp_path: Path, summary: str) -> None:
    directory = save(old(2), tmp_path / "named")
    (directory / "summary.json").write_text(summary)
    assert json.loads(report(directory, "--json"))["job"] == "named"


def test_an_empty_log_has_a_page(tmp_path: Path) -> None:
    assert "no events yet" in report(save([], tmp_path / "empty"))


def test_a_profile_is_part_of_the_page(run: Path) -> None:
    points = [{"devices": {"cpu": n}, "batch": 8, "step_s": 1 / n, "samples_per_s": 8.0 * n} for n in (1, 2)]
    (run / "profile.json").write_text(json.dumps({"format": 1, "workers": 2, "points": points}))
    report(run)
    assert "<h2>Profile</h2>" in (run / "report.html").read_text()


def test_several_jobs(tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []
    for number in range(25):
        events += [{**event, "job": f"job-{number}"} for event in simulated(3)]
    directory = save([*events, {"t": 5, "event": "device_failed", "node": 1}], tmp_path / "jobs")
    shown = json.loads(report(directory, "--json"))
    assert [job["job"] for job in shown["jobs"]] == [f"job-{number}" for number in range(20)]
    assert shown["jobs_left_out"] == 5


def test_a_hundred_thousand_steps(tmp_path: Path) -> None:
    w = Writer(workers=2)
    w.start(0)
    w.place([0], "start")
    w.train(100_000)
    w.finish()
    directory = save(w.events, tmp_path / "long")
    report(directory)
    assert (directory / "report.html").stat().st_size < 1_000_000


def test_bad_input_is_named(tmp_path: Path) -> None:
    save(old(), tmp_path / "run")
    (tmp_path / "bytes").mkdir()
    (tmp_path / "bytes" / "events.jsonl").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "file").write_text("")
    for arguments, problem in [
        (("nowhere",), "DIR=nowhere: no such directory"),
        ((tmp_path,), "no events.jsonl in it"),
        ((tmp_path / "bytes",), "holds no event"),
        ((tmp_path / "run", "--out", "x.pdf"), "--out=x.pdf: unknown sort of file"),
        ((tmp_path / "run", "--out", "x.png", "--json"), "a file beside --json"),
        ((tmp_path / "run", "--out", tmp_path / "file" / "x.png"), "cannot be written"),
    ]:
        with pytest.raises(UserError) as caught:
            report(*arguments)
        assert problem in str(caught.value)


def test_the_program_exits_with_2_and_one_line(tmp_path: Path) -> None:
    program = Path(sys.executable).parent / "isoscale"
    done = subprocess.run([program, "report", tmp_path], capture_output=True, text=True, timeout=200)
    assert done.returncode == 2
    assert done.stderr == f"isoscale: DIR={tmp_path}: no events.jsonl in it; give the --out of a run\n"


# ---- promises ----


def test_a_run_that_broke_a_promise_says_which(tmp_path: Path) -> None:
    directory = save(real("paused_coordinator"), tmp_path / "run")
    (directory / "control").mkdir()
    (directory / "control" / "job.json").write_text(json.dumps({"settings": {"lost_after_s": 2.0}}))
    lines = report(directory).splitlines()
    assert [line.split("  ")[0] for line in lines if line.startswith(("broken", "kept", "cannot tell"))] == [
        *("broken", "broken", "cannot tell", "kept", "cannot tell", "kept", "cannot tell", "kept"),
    ]
    page = (directory / "report.html").read_text()
    assert "<h2>Did not keep its promises</h2>" in page
    assert "steps 1-51 were done again: executor 0 held them, was alive, and was killed by mistake" in page
    assert "2 of 8 broken" in page
    promises = {one["promise"]: one for one in json.loads(report(directory, "--json"))["promises"]}
    assert promises["sealed"]["said"] == "broken"
    assert promises["sealed"]["findings"][0]["index"] is not None
    assert promises["pauses"]["said"] == "kept"


def test_a_run_that_kept_them_says_so(tmp_path: Path) -> None:
    directory = save(real("storm"), tmp_path / "run")
    report(directory)
    page = (directory / "report.html").read_text()
    assert "<h2>Kept its promises</h2>" in page
    assert "all 8 kept" in page
    assert {one["said"] for one in json.loads(report(directory, "--json"))["promises"]} == {"kept"}


@pytest.mark.parametrize("events", [[], simulated(3)])
def test_where_nothing_was_promised_nothing_is_said(tmp_path: Path, events: list[dict[str, Any]]) -> None:
    directory = save(events, tmp_path / "run")
    assert "sealed step" not in report(directory)
    assert json.loads(report(directory, "--json"))["promises"] is None


def test_a_warning_at_the_end_of_a_run_that_broke_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    warn_if_broken(save(real("storm"), tmp_path / "kept"), "kept")
    warn_if_broken(tmp_path / "absent", "absent")
    assert capsys.readouterr().err == ""
    warn_if_broken(save(real("stopped_without_checkpoint"), tmp_path / "broken"), "broken")
    assert capsys.readouterr().err == (
        "warning: this run broke a promise: steps 1-4 were done again: they were sealed when the job was stopped on "
        "request (and 1 more); see isoscale report broken\n"
    )

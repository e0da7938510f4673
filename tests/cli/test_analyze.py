"""`isoscale analyze` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.in_process import printed, refusal
from tests.unit.analysis.study.made_cluster import make

SIZES = {"all", "1", "2-4", "5-8", ">8"}
QUICK = ("--simulate-jobs", "20")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(5).write(tmp_path_factory.mktemp("cluster") / "october")


def test_the_promised_keys(home: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = printed("analyze", home, "--out", out, *QUICK)
    found = json.loads((out / "analysis.json").read_text())
    assert found["format"] == "philly"
    assert found["jobs"] == 43
    assert {"by_jobs", "by_device_time"} <= set(found["status"])
    for name in ("run_s", "queue_s"):
        assert set(found[name]) == SIZES
        assert all({"count", "mean", "p50", "p90", "p99"} <= set(one) for one in found[name].values())
    assert {"failures", "missing", "retries", "users", "load", "sizes", "utilisation", "host", "locality"} <= set(found)
    assert set(found["advice"]) == {"locality", "dedicated", "trial", "hopeless", "idle", "elasticity"}
    for name in ("analysis.html", "run_time.png", "queueing.png", "utilisation.png", "status.png", "load.png"):
        assert (out / name).stat().st_size > 1000
    for told in ("43 jobs", "What to change", "Final status", "Waiting before the first start", "Missing"):
        assert told in words
    # A table that cannot be computed names the column.
    assert "stderr" in found["missing"]["failures.classes"]


def test_json_is_printed_and_nothing_written(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = json.loads(printed("analyze", home, "--json", *QUICK))
    assert found["jobs"] == 43
    assert list(tmp_path.iterdir()) == []


def test_two_traces_are_compared(home: Path, tmp_path: Path) -> None:
    other = make(6).write(tmp_path / "november")
    words = printed("analyze", home, other, "--out", tmp_path / "out", *QUICK)
    assert "october" in words
    assert "november" in words
    found = json.loads((tmp_path / "out" / "analysis.json").read_text())
    assert found["compared"] == ["october", "november"]
    assert set(found["traces"]) == {"october", "november"}
    again = printed("analyze", f"{home}@2017-10", f"{home}@2017-11", "--out", tmp_path / "months", *QUICK)
    assert "october 2017-10" in again
    assert "last over first" in again


def test_malformed_lines_are_shown_and_strict_stops(home: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    for path in home.iterdir():
        (broken / path.name).write_bytes(path.read_bytes())
    with (broken / "cluster_gpu_util").open("a") as file:
        file.write("2017-11-01 00:00:00 PDT,m1,1,2,3,4,5,6,7,much,\n")
    words = printed("analyze", broken, "--out", tmp_path / "out", *QUICK)
    assert "1 malformed line left out" in words
    assert "gpu7_util=much" in words
    assert json.loads((tmp_path / "out" / "analysis.json").read_text())["reading"]["malformed"] == 1
    told = refusal("analyze", broken, "--strict", "--out", tmp_path / "strict")
    assert "cluster_gpu_util:1802 gpu7_util=much: is not a number" in told


def test_rules_logs_and_quotas(home: Path, tmp_path: Path) -> None:
    failed = json.loads((home / "cluster_job_log").read_text())
    name = next(job["jobid"] for job in failed if job["status"] == "Failed" and job["attempts"])
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / f"{name}.log").write_text("the moon is full")
    rules = tmp_path / "rules.toml"
    rules.write_text(
        "[[class]]\nname = 'moon'\norigin = 'infrastructure'\nretries = 1\nsignatures = ['moon is full']\n"
    )
    quotas = tmp_path / "quotas.csv"
    quotas.write_text("tenant,devices\nvc0,2\nvc1,100\n")
    words = ("analyze", home, "--json", "--rules", rules, "--logs", logs, "--quotas", quotas, *QUICK)
    found = json.loads(printed(*words))
    assert found["failures"]["classes"]["moon"]["trials"] == 1
    assert found["queue_causes"]["all"]["fair share"]["jobs"] > 0
    assert "queue_causes.fair share" not in found["missing"]


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (("nowhere",), "TRACE=nowhere"),
        (("easyscale", "--format", "csv"), "--format=csv"),
        (("easyscale", "--rules", "nowhere.toml"), "--rules=nowhere.toml"),
        (("easyscale", "--logs", "nowhere"), "--logs=nowhere"),
        (("easyscale", "--quotas", "nowhere.csv"), "--quotas=nowhere.csv"),
        (("philly:jobs=30", "--present", "magic"), "--present=magic"),
        (("easyscale", "--simulate-jobs", "-1"), "--simulate-jobs=-1"),
        (("easyscale", "--out", "/proc/here"), "--out=/proc/here"),
        (("philly:jobs=many",), "TRACE=philly:jobs=many"),
    ],
)
def test_bad_input_is_one_line_that_names_the_field(tmp_path: Path, words: tuple[str, ...], field: str) -> None:
    given = (*words, "--out", str(tmp_path / "o")) if "--out" not in words else words
    assert refusal("analyze", *given).startswith(f"{field}: ")


def test_every_shipped_format_of_simulate_is_read(tmp_path: Path) -> None:
    for name in ("easyscale", "easyscale-d2c", "philly:jobs=40,days=1"):
        assert json.loads(printed("analyze", name, "--json", *QUICK))["jobs"] >= 40


def test_names_are_neither_markup_nor_commands_to_a_terminal(home: Path, tmp_path: Path) -> None:
    evil = "[/bold]\\[red]\x1b[31m\x07</td><script>"
    jobs = json.loads((home / "cluster_job_log").read_text())
    for job in jobs:
        job["vc"] = job["user"] = evil
    path = tmp_path / "[evil]"
    path.write_text(json.dumps(jobs))
    words = printed("analyze", path, path, "--out", tmp_path / "both", *QUICK)
    words += printed("analyze", path, "--out", tmp_path / "out", *QUICK)
    assert "[/bold]" in words
    assert "[evil]: 43 jobs" in words
    assert "\x1b[31m" not in words
    assert "\x07" not in words
    assert "<script" not in (tmp_path / "out" / "analysis.html").read_text()

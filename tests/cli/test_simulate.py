"""`isoscale simulate` and `isoscale plan` as a user meets them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from isoscale.protocol.events import read_events
from tests.cli.in_process import printed, refusal

KEYS = {
    "mean_jct_s",
    "p50_jct_s",
    "p99_jct_s",
    "makespan_s",
    "mean_queue_s",
    "allocated_utilisation",
    "busy_utilisation",
    "rescales",
    "decision_ms_p50",
    "jobs_finished",
}
POOLS = "V100*32+P100*16+T4*16"


def isoscale(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).parent / "isoscale"
    return subprocess.run([program, *words], capture_output=True, text=True, timeout=280, cwd=cwd, check=False)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    out = tmp_path_factory.mktemp("simulated") / "out"
    done = isoscale(
        *("simulate", "--trace", "easyscale", "--cluster", POOLS, "--policy", "fifo,fifo-backfill,elastic-tiresias"),
        *("--costs", "free:start_s=20", "--interval", "10", "--out", str(out)),
    )
    assert done.returncode == 0, done.stderr
    return out, done


def test_summary_has_exactly_the_promised_fields(simulated: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    summary = json.loads((simulated[0] / "summary.json").read_text())
    assert list(summary) == ["fifo", "fifo-backfill", "elastic-tiresias"]
    assert all(set(figures) == KEYS for figures in summary.values())
    assert all(figures["jobs_finished"] == 62 for figures in summary.values())


def test_fifo_on_the_easyscale_trace_is_as_published(simulated: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    """Mean completion times of the patched artifact with 10 s rounds."""
    summary = json.loads((simulated[0] / "summary.json").read_text())
    assert summary["fifo"]["mean_jct_s"] == pytest.approx(4267, abs=1)
    assert summary["fifo-backfill"]["mean_jct_s"] == pytest.approx(2348, abs=1)
    assert summary["elastic-tiresias"]["mean_jct_s"] < 1000


def test_table_picture_page_and_log_are_there(simulated: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    out, done = simulated
    lines = done.stdout.splitlines()
    assert lines[0].split()[:3] == ["policy", "mean", "JCT"]
    assert [line.split()[0] for line in lines[1:4]] == ["fifo", "fifo-backfill", "elastic-tiresias"]
    assert "4,267 s" in lines[1]
    assert (out / "simulation.png").read_bytes().startswith(b"\x89PNG")
    page = (out / "simulation.html").read_text()
    assert page.count("data:image/png") == 5
    assert "http" not in page.replace("http-equiv", "")
    events = list(read_events(out / "fifo" / "events.jsonl"))
    assert sum(event["event"] == "job_finished" for event in events) == 62
    assert [event["t"] for event in events] == sorted(event["t"] for event in events)


def test_the_same_command_gives_the_same_numbers(tmp_path: Path) -> None:
    found = []
    for name in ("a", "b"):
        done = isoscale(
            *("simulate", "--trace", "philly:jobs=60,days=0.5", "--cluster", "2x(V100*8)", "--policy", "tiresias"),
            *("--seeds", "2", "--failures", "200/2", "--interference", "0.1", "--out", str(tmp_path / name)),
        )
        assert done.returncode == 0, done.stderr
        [figures] = json.loads((tmp_path / name / "summary.json").read_text()).values()
        # How long decisions took is the machine's business.
        found.append({key: value for key, value in figures.items() if key != "decision_ms_p50"})
    assert found[0] == found[1]
    logs = [(tmp_path / name / "tiresias" / "seed-1" / "events.jsonl").read_bytes() for name in ("a", "b")]
    assert logs[0] == logs[1]


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (("--cluster", "V100**2"), "--cluster=V100**2"),
        (("--cluster", "4x(V100*8"), "--cluster=4x(V100*8"),
        (("--cluster", "T4*1"), "--cluster=T4*1"),
        (("--policy", "fastest"), "--policy=fastest"),
        (("--policy", "fifo,fifo"), "--policy=fifo"),
        (("--policy", "fifo(colour=red)"), "--policy=fifo(colour=red)"),
        (("--trace", "no/such.csv"), "--trace=no/such.csv"),
        (("--trace", "jupiter"), "--trace=jupiter"),
        (("--trace", "philly:jobs=many"), "--trace=philly:jobs=many"),
        (("--costs", "cheap"), "--costs=cheap"),
        (("--window", "9"), "--window=9"),
        (("--window", "5:3"), "--window=5:3"),
        (("--interference", "2"), "--interference=2.0"),
        (("--interval", "-1"), "--interval=-1.0"),
        (("--failures", "often"), "--failures=often"),
        (("--serving", "0.9-0.1"), "--serving=0.9-0.1"),
        (("--quotas", "team"), "--quotas=team"),
        (("--retry", "often"), "--retry=often"),
        (("--kind-speeds", "V100"), "--kind-speeds=V100"),
        (("--speeds", "nowhere"), "--speeds=nowhere"),
        (("--out", "/proc/here"), "--out=/proc/here"),
    ],
)
def test_bad_input_is_one_line_that_names_the_field(tmp_path: Path, words: tuple[str, str], field: str) -> None:
    given = {"--trace": "easyscale", "--cluster": POOLS, "--policy": "fifo", "--out": str(tmp_path / "o")}
    given |= dict([words])
    assert refusal("simulate", *(word for pair in given.items() for word in pair)).startswith(f"{field}: ")
    # Before anything is written.
    assert not (tmp_path / "o").exists()


def test_a_mistake_ends_the_process_with_2_and_one_line(tmp_path: Path) -> None:
    done = isoscale(
        *("simulate", "--trace", "jupiter", "--cluster", POOLS, "--policy", "fifo", "--out", str(tmp_path / "o"))
    )
    assert done.returncode == 2
    assert done.stderr.startswith("isoscale: --trace=jupiter: ")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "o").exists()


def test_split_prints_the_promised_json() -> None:
    done = printed("plan", "split", "--workers", "16", "--devices", "V100*2+T4*3", "--speeds", "V100=2,T4=1", "--json")
    assert json.loads(done) == {"split": [5, 5, 2, 2, 2], "step_s": 2.5, "waste": 0.6, "perf": 6.4}


def test_split_says_which_devices_are_better_left_unused() -> None:
    words = ("plan", "split", "--workers", "8", "--devices", "cpu*2+cpu-sse*1", "--speeds", "cpu=1,cpu-sse=0.19")
    answer = json.loads(printed(*words, "--json"))
    assert answer["split"] == [4, 4, 0]
    assert (answer["step_s"], answer["unused"], answer["speedup"]) == (4.0, {"cpu-sse": 1}, pytest.approx(1 / 0.19 / 4))
    assert "leave cpu-sse unused: 1.32x faster without it" in printed(*words)
    two = ("plan", "split", "--workers", "4", "--devices", "cpu*1+cpu-sse*2", "--speeds", "cpu=5,cpu-sse=1")
    assert "leave cpu-sse*2 unused: 1.25x faster without them" in printed(*two)


def test_grow_answers_what_more_devices_give() -> None:
    words = ("plan", "grow", "--workers", "4", "--devices", "V100*2", "--speeds", "V100=2,T4=1")
    answer = json.loads(printed(*words, "--json"))
    assert answer["now"]["step_s"] == 1.0
    best = answer["grow"][0]
    assert (best["add"], best["speedup"], best["speedup_per_device"]) == ({"V100": 2}, 2.0, 0.5)
    # Three fast devices for four workers: one still has two turns.
    assert {"add": {"V100": 1}, "speedup": 1.0}.items() <= next(
        w for w in answer["grow"] if w["add"] == {"V100": 1}
    ).items()
    assert "V100*2" in printed(*words)
    only = json.loads(printed(*words, "--more", "T4*1", "--json"))["grow"]
    assert [way["add"] for way in only] == [{"T4": 1}]


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (("--devices", "V100*x"), "--devices=V100*x"),
        (("--devices", "V100*9"), "--devices=V100*9"),
        (("--speeds", "T4=1"), "--speeds=T4=1"),
        (("--speeds", "V100=fast"), "--speeds=V100=fast"),
        (("--workers", "0"), "--workers=0"),
    ],
)
def test_bad_plans_name_the_field(words: tuple[str, str], field: str) -> None:
    given = {"--workers": "4", "--devices": "V100*2", "--speeds": "V100=2"} | dict([words])
    assert refusal("plan", "split", *(word for pair in given.items() for word in pair)).startswith(f"{field}: ")

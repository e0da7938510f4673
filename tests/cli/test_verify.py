"""`isoscale verify` with real processes: equal runs, planted divergences, failures on either side, Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.in_process import refusal

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]

ISOSCALE = str(Path(sys.executable).parent / "isoscale")
SCRIPTS = Path(__file__).parent / "scripts"
TINY = str(SCRIPTS / "tiny.py")


def verify(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([ISOSCALE, "verify", *arguments], capture_output=True, text=True, timeout=300)


def test_equal_runs_exit_0_and_show_equal_digests(tmp_path: Path) -> None:
    done = verify(TINY, "--workers", "3", "--executors", "2", "--until", "4", "--out", str(tmp_path / "v"))
    assert done.returncode == 0, done.stdout + done.stderr
    digests = [line.split()[-1] for line in done.stdout.splitlines() if " digest " in line]
    assert len(digests) == 2
    assert digests[0] == digests[1]
    assert "equal: 2 executors and stock DDP with 3 processes give the same bits" in done.stdout
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["steps", "4", "yes"] in rows
    assert ["logged", "values", "(every", "step,", "every", "logical", "worker)", "12", "yes"] in rows
    assert (tmp_path / "v" / "final.pt").exists()
    assert (tmp_path / "v" / "reference" / "final.pt").exists()


def test_mixed_kinds_and_tree_order_agree_with_the_reference_at_the_common_profile(tmp_path: Path) -> None:
    done = verify(
        TINY,
        "--workers",
        "2",
        "--devices",
        "cpu*1+cpu-sse*1",
        "--determinism",
        "heterogeneous",
        "--order",
        "tree",
        "--until",
        "3",
        "--out",
        str(tmp_path / "v"),
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_plan_is_followed_and_the_sizes_are_named(tmp_path: Path) -> None:
    done = verify(TINY, "--workers", "3", "--plan", "0:1,2:3,4:2", "--out", str(tmp_path / "v"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "step 2: 1 -> 3 executors" in done.stdout
    assert "equal: 1 -> 3 -> 2 executors and stock DDP with 3 processes give the same bits" in done.stdout


def test_explain_finds_a_difference_after_a_rescale(tmp_path: Path) -> None:
    plan = ["--plan", "0:2,2:1", "--until", "4"]
    done = verify(TINY, "--workers", "2", *plan, "--explain", "--out", str(tmp_path / "v"), "--", "outside")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "not equal: 2 -> 1 executors and stock DDP" in done.stdout
    assert "first difference: outside turns after step 3: tensor model.last.bias differs" in done.stdout


def test_what_a_plan_did_not_come_to_is_said(tmp_path: Path) -> None:
    done = verify(TINY, "--workers", "3", "--plan", "0:1,50:2", "--out", str(tmp_path / "w"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "not tried: cpu*2 at step 50, because the job ended after 8 steps" in done.stdout


@pytest.mark.parametrize(
    ("planted", "found"),
    [
        (
            "generator",
            "step 1, logical worker 1: forward operator aten.rand.generator in module drop (Noise) gives other bits",
        ),
        ("closure", "step 1, logical worker 1: forward operator aten.mul.Tensor outside any module gives other bits"),
        ("outside", "outside turns after step 3: tensor model.last.bias differs"),
    ],
)
def test_explain_names_the_first_difference(planted: str, found: str, tmp_path: Path) -> None:
    done = verify(TINY, "--workers", "2", "--until", "4", "--explain", "--out", str(tmp_path / "v"), "--", planted)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "not equal: 1 executor and stock DDP with 2 processes give other bits" in done.stdout
    assert f"first difference: {found}" in done.stdout


@pytest.mark.parametrize(
    ("mode", "side", "reason"),
    [
        ("raise", "under isoscale", "ValueError: planted in the turn"),
        ("raise-in-reference", "in the reference (stock DDP)", "ValueError: planted in the turn"),
        ("die", "in the reference (stock DDP)", "rank 1 died: killed by SIGKILL"),
    ],
)
def test_a_failing_script_is_shown_once_with_its_side(mode: str, side: str, reason: str, tmp_path: Path) -> None:
    done = verify(TINY, "--workers", "2", "--out", str(tmp_path / "v"), "--", mode)
    assert done.returncode == 1
    assert f"the script failed {side}" in done.stderr
    assert reason in done.stderr
    assert done.stderr.count("Traceback (most recent call last)") == (0 if mode == "die" else 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.py", "--workers", "2"], "SCRIPT=nowhere.py"),
        ([TINY, "--workers", "2", "--executors", "3"], "--executors=3"),
        ([TINY, "--workers", "2", "--plan", "0:1,4:2", "--executors", "2"], "--plan=0:1,4:2"),
        ([TINY, "--workers", "2", "--plan", "0:1,4:3"], "--plan=0:1,4:3"),
        ([TINY, "--workers", "2", "--out", str(SCRIPTS)], "not empty"),
    ],
)
def test_bad_input_is_refused_with_the_field(arguments: list[str], message: str) -> None:
    assert message in refusal("verify", *arguments)


def test_bad_input_exits_2() -> None:
    done = verify(TINY)
    assert done.returncode == 2
    assert "--workers" in done.stderr


@pytest.mark.parametrize("phase", ["elastic", "reference"])
def test_ctrl_c_exits_130_and_leaves_no_process(phase: str, tmp_path: Path) -> None:
    only_reference = ["only-in-reference"] if phase == "reference" else []
    mark = str(tmp_path / "mark")
    command = [ISOSCALE, "verify", str(SCRIPTS / "slow.py"), "--workers", "2", "--out", str(tmp_path / "v"), "--"]
    with subprocess.Popen(
        [*command, "60", mark, *only_reference], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        started = tmp_path / "v" / ("events.jsonl" if phase == "elastic" else "reference/rank-0.jsonl")
        wanted = '"event": "step"' if phase == "elastic" else "loss"
        deadline = time.monotonic() + 200
        while not (started.exists() and wanted in started.read_text()):
            assert process.poll() is None, process.stdout and process.stdout.read()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert running(mark)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=200)
    assert process.returncode == 130, output
    assert "interrupted" in output
    assert not running(mark)


def running(mark: str) -> list[str]:
    """Processes whose command line has `mark` as an argument, other than verify itself."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if mark in arguments and "verify" not in arguments:
            found.append(path.parent.name)
    return found

"""A script that is asked for its help, or that refuses what it is given: its own words once, its own exit code."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from isoscale.errors import UserError
from isoscale.runtime.membership.admission import script_fault
from isoscale.runtime.training.execute import exit_of

ISOSCALE = str(Path(sys.executable).parent / "isoscale")
OPTIONS = """\
import argparse
import sys
import isoscale

def options():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=float, help="how fast")
    return parser.parse_args()
"""
#: where scripts parse: in the training function, or before isoscale.run
INSIDE = OPTIONS + "def train(job):\n    options()\n\nisoscale.run(train)\n"
BEFORE = OPTIONS + "options()\nisoscale.run(lambda job: None)\n"


def isoscale(script: str, directory: Path, command: list[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    (directory / "script.py").write_text(script)
    whole = [ISOSCALE, command[0], "script.py", *command[1:], "--out", "out", "--", *arguments]
    return subprocess.run(whole, cwd=directory, capture_output=True, text=True, timeout=280)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("script", "command", "arguments"),
    [
        (INSIDE, ["run", "--workers", "2"], ["--rate", "1", "--help"]),
        (BEFORE, ["verify", "--workers", "2"], ["-h"]),
    ],
)
def test_help_is_printed_once_and_nothing_is_started(
    script: str, command: list[str], arguments: list[str], tmp_path: Path
) -> None:
    done = isoscale(script, tmp_path, command, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("how fast") == 1
    assert done.stdout.startswith("usage: script.py")
    assert done.stderr == ""
    assert not (tmp_path / "out").exists()


@pytest.mark.processes
@pytest.mark.parametrize("script", [INSIDE, BEFORE], ids=["inside", "before"])
def test_arguments_that_a_script_refuses_end_the_command_as_argparse_would(script: str, tmp_path: Path) -> None:
    done = isoscale(script, tmp_path, ["run", "--workers", "2", "--executors", "2"], "--rate", "fast")
    assert done.returncode == 2
    assert "Traceback" not in done.stdout + done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("isoscale: ")]
    assert "argument --rate: invalid float value: 'fast'" in line


def ended(function: object, *arguments: object) -> SystemExit:
    with pytest.raises(SystemExit) as caught:
        function(*arguments)  # type: ignore[operator]
    return caught.value


def test_how_a_script_ended_itself() -> None:
    assert exit_of(ended(sys.exit)) == ("the script called sys.exit() before training was done", 1)
    assert exit_of(ended(sys.exit, 3)) == ("the script ended itself with exit code 3", 3)
    assert exit_of(ended(sys.exit, 256)) == ("the script ended itself with exit code 256", 1)
    assert exit_of(ended(sys.exit, "no data")) == ("the script ended itself: no data", 1)
    refused = ended(argparse.ArgumentParser().parse_args, ["--what"])
    assert exit_of(refused) == ("the script refused its arguments: unrecognized arguments: --what", 2)


def test_a_process_that_ended_before_it_could_say_hello() -> None:
    fault = script_fault("train.py", 0, "exit code 2", "usage: train.py\ntrain.py: error: no\n")
    assert isinstance(fault, UserError)
    assert "train.py: error: no" in str(fault)
    # Nobody can tell whose fault these are.
    assert script_fault("train.py", 0, "exit code 2", "") is None
    assert script_fault("train.py", 0, "exit code 1", "isoscale: no coordinator") is None
    assert script_fault("train.py", 0, "signal 9", "half a line") is None

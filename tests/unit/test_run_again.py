"""`scripts/tests.py`: which failures are tried again, what is printed of them, and what fails the run all the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

TESTS = """
import pathlib
import pytest

HERE = pathlib.Path(__file__).parent

def test_good():
    pass

def test_left_out():
    pytest.skip("no")

@pytest.mark.parametrize("name", {unstable})
def test_unstable(name):
    seen = HERE / f"seen-{{len(name)}}"
    was_there = seen.exists()
    seen.touch()
    assert was_there

@pytest.mark.parametrize("number", range({broken}))
def test_broken(number):
    raise ValueError(number)
"""


def ended(directory: Path, *options: str, broken: int = 0, unstable: tuple[str, ...] = ()) -> tuple[int, list[str]]:
    """Exit code, and the lines that are printed after the first run's."""
    (directory / "pytest.ini").write_text("[pytest]\n")
    (directory / "test_made_up.py").write_text(TESTS.format(broken=broken, unstable=unstable))
    command = [sys.executable, ROOT / "scripts" / "tests.py", "-q", "-p", "xdist", *options]
    # Other plugins would only take time.
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.splitlines()


def counts(line: str) -> str:
    words, separator, seconds = line.rpartition(" in ")
    assert separator
    assert seconds.endswith("s")
    return words


def test_without_a_failure_it_is_pytest(tmp_path: Path) -> None:
    code, lines = ended(tmp_path)
    assert (code, counts(lines[-1])) == (0, "1 passed, 3 skipped")
    assert not [line for line in lines if "again" in line]


def test_what_passes_alone_is_said_and_passes(tmp_path: Path) -> None:
    code, lines = ended(tmp_path, unstable=("a", "with a [space] and/a::slash"))
    names = [f"test_made_up.py::test_unstable[{name}]" for name in ("a", "with a [space] and/a::slash")]
    assert lines[-2] == f"unstable: failed beside others, passed alone: {' '.join(names)}"
    assert (code, counts(lines[-1])) == (0, "3 passed, 2 skipped")


def test_what_fails_again_fails_the_run(tmp_path: Path) -> None:
    code, lines = ended(tmp_path, unstable=("a",), broken=1)
    assert lines[-2] == "unstable: failed beside others, passed alone: test_made_up.py::test_unstable[a]"
    assert (code, counts(lines[-1])) == (1, "1 failed, 2 passed, 1 skipped")
    assert lines.count("FAILED test_made_up.py::test_broken[0] - ValueError: 0") == 2


def test_many_failures_are_not_tried_again(tmp_path: Path) -> None:
    code, lines = ended(tmp_path, broken=6)
    assert lines[-2] == "6 failed: more than 5 are not run again"
    assert (code, counts(lines[-1])) == (1, "6 failed, 1 passed, 2 skipped")


@pytest.mark.parametrize("text", ["import no_such_module_at_all", "import os\nos._exit(9)"])
def test_a_module_that_cannot_be_collected_fails_the_run(tmp_path: Path, text: str) -> None:
    (tmp_path / "test_other.py").write_text(text)
    code, _ = ended(tmp_path, "--continue-on-collection-errors")
    assert code not in (0, 5)

"""Runs pytest with the given arguments, and the few tests that failed a second time: alone, one after another.

Tests start real processes, many at once on few cores. What fails beside others and passes alone is printed as unstable
and does not fail the run; what fails again does. The last line has pytest's form, with the counts of both runs.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

#: more than these are no accident of timing
MOST = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    code: int
    #: by pytest's words (passed, failed, error, skipped, ...)
    tests: dict[str, list[str]] = field(default_factory=dict)

    @property
    def failed(self) -> list[str]:
        return list(dict.fromkeys([*self.tests.get("failed", []), *self.tests.get("error", [])]))


class Recorder:
    """A plugin that writes down what pytest's last line is made of."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        tests = {
            word: [one.nodeid for one in reports if getattr(one, "count_towards_summary", True)]
            for word, reports in terminalreporter.stats.items()
            if word  # what belongs to setting up and tearing down
        }
        self._path.write_text(json.dumps(tests))


def main(arguments: list[str]) -> int:
    begun = time.monotonic()
    first = session(arguments)
    if first.code != pytest.ExitCode.TESTS_FAILED or not first.failed:
        return first.code
    if len(first.failed) > MOST:
        print(f"\n{len(first.failed)} failed: more than {MOST} are not run again")
        print(last_line(first, [], time.monotonic() - begun))
        return first.code
    print(f"\n== failed, and run again alone: {' '.join(first.failed)}", flush=True)
    again = session([*arguments, "--last-failed", "--last-failed-no-failures=none", "-n0"])
    if again.code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        return again.code
    unstable = [one for one in first.failed if one in again.tests.get("passed", []) and one not in again.failed]
    if unstable:
        print(f"\nunstable: failed beside others, passed alone: {' '.join(unstable)}")
    print(last_line(first, unstable, time.monotonic() - begun))
    return 0 if unstable == first.failed else first.code


def session(arguments: list[str]) -> Outcome:
    """One run of pytest in a process of its own; what it prints is printed."""
    with tempfile.TemporaryDirectory(prefix="isoscale-tests-") as directory:
        record = Path(directory) / "record.json"
        command = [sys.executable, __file__, "--record", str(record), *arguments]
        code = subprocess.run(command, check=False).returncode
        return Outcome(code=code, tests=json.loads(record.read_text()) if record.exists() else {})


def last_line(first: Outcome, unstable: list[str], seconds: float) -> str:
    """As pytest ends, with what is unstable among the passed."""
    left = {word: [one for one in names if one not in unstable] for word, names in first.tests.items()}
    left["passed"] = [*left.get("passed", []), *unstable]
    order = ("failed", "passed", "skipped", "deselected", "xfailed", "xpassed", "warnings", "error")
    return ", ".join(f"{len(left[word])} {word}" for word in order if left.get(word)) + f" in {seconds:.2f}s"


if __name__ == "__main__":
    # Tests find their modules as they do under pytest's own command: not beside this file.
    del sys.path[0]
    if sys.argv[1:2] == ["--record"]:
        sys.exit(pytest.main(sys.argv[3:], plugins=[Recorder(Path(sys.argv[2]))]))
    sys.exit(main(sys.argv[1:]))

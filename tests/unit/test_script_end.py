"""Whoever lasts as long as a script is told of its end, however it ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
from isoscale.runtime.code.script_end import at_script_end

at_script_end(lambda error: print("ended", type(error).__name__, flush=True))
{rest}
"""


@pytest.mark.parametrize(
    ("rest", "shown", "code"),
    [
        ("", "ended NoneType", 0),
        ("sys.exit()", "ended NoneType", 0),
        ("sys.exit(0)", "ended NoneType", 0),
        ("raise ValueError('no')", "ended ValueError", 1),
    ],
)
def test_a_script_that_python_runs(rest: str, shown: str, code: int, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(rest=rest))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.returncode) == (shown, code)


@pytest.mark.parametrize(("error", "told"), [(None, None), (SystemExit(), None), (SystemExit(3), SystemExit)])
def test_a_script_that_the_launcher_runs(error: BaseException | None, told: type | None) -> None:
    from isoscale.runtime.code import script_end

    heard: list[BaseException | None] = []
    script_end._calls.append(heard.append)
    script_end.script_ended(error)
    assert [None if one is None else type(one) for one in heard] == [told]
    script_end.script_ended(error)
    assert len(heard) == 1

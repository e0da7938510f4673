"""Where an executor was whose process is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from isoscale.runtime.control.trail import Trail, trail_path, whereabouts_of
from isoscale.types import Whereabouts

CHILD = """
import os, sys
from pathlib import Path
from isoscale.runtime.control.trail import Trail
trail = Trail(Path(sys.argv[1]))
trail.note("turn", 29, 2)
os.kill(os.getpid(), int(sys.argv[2])) if int(sys.argv[2]) else os._exit(1)
"""


@pytest.mark.parametrize("number", [0, signal.SIGKILL, signal.SIGSEGV])
def test_it_is_known_after_a_sudden_end(tmp_path: Path, number: int) -> None:
    path = trail_path(tmp_path, 5)
    process = subprocess.run([sys.executable, "-c", CHILD, str(path), str(int(number))], check=False)
    assert process.returncode in (1, -number)
    assert whereabouts_of(path) == Whereabouts("turn", 29, 2)
    assert path.stat().st_mode & 0o777 == 0o600


def test_every_place_has_words(tmp_path: Path) -> None:
    trail, words = Trail(tmp_path / "one"), []
    for place in ("outside", "turn", "evaluation", "exchange"):
        trail.note(place, 29, 2 if place in ("turn", "evaluation") else -1)  # type: ignore[arg-type]
        words.append(str(whereabouts_of(tmp_path / "one")))
    assert words == [
        "outside turns, after step 29",
        "in step 30 (turn of logical worker 2)",
        "in the evaluation after step 29 (turn of logical worker 2)",
        "in the exchange of step 30",
    ]


@pytest.mark.parametrize("content", [None, b"", b"\xff" * 24, b"\x00" * 23])
def test_what_is_not_there_or_torn_is_unknown(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "one").write_bytes(content)
    assert whereabouts_of(tmp_path / "one") is None


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"precious")
    os.symlink(tmp_path / "precious", tmp_path / "one")
    with pytest.raises(OSError, match="symbolic links"):
        Trail(tmp_path / "one")
    assert (tmp_path / "precious").read_bytes() == b"precious"

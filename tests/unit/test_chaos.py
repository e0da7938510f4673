"""Random stories: what is kept of a call that was broken off."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from isoscale.testing import chaos
from isoscale.testing.chaos import Outcome


def test_a_call_that_was_broken_off_goes_on_with_what_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "results.json"
    known = {
        3: Outcome(seed=3, data="stream", code="aa", verdict="equal", story=["kill member 0"]),
        1: Outcome(seed=1, data="loader", code="ab", verdict="hung", problem="for ever"),
    }
    chaos._write(path, {"loader": "d1", "stream": "d2"}, known)
    written = json.loads(path.read_text())
    assert [one["seed"] for one in written["outcomes"]] == [1, 3]
    assert (written["runs"], written["verdicts"], written["codes"]) == (2, {"hung": 1, "equal": 1}, {"ab": 1, "aa": 1})
    assert chaos._known(path) == known
    assert chaos._known(tmp_path / "none.json") == {}

    monkeypatch.setattr(chaos, "undisturbed", lambda *_: pytest.fail("nothing is left to run"))
    monkeypatch.setattr(sys, "argv", ["chaos", "--seeds", "1,3", "--json", str(path), "--resume"])
    with pytest.raises(SystemExit) as end:
        chaos.main()
    assert end.value.code == 1
    assert "2 known, 0 to run" in (said := capsys.readouterr().out)
    assert "1 of 2 equal; not: [1]" in said


def test_going_on_needs_a_file(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["chaos", "--resume"])
    with pytest.raises(SystemExit) as end:
        chaos.main()
    assert end.value.code == 2
    assert "--resume goes on with what --json FILE has" in capsys.readouterr().err

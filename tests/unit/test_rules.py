from __future__ import annotations

import contextlib
import inspect
from pathlib import Path

import pytest

import isoscale
from isoscale.core import rules
from isoscale.core.rules import Turn, user_location

NAME = Path(__file__).name


def line() -> int:
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


def call_from(filename: str) -> str:
    """The location as seen by a frame of `filename` that this file calls."""
    code = compile("location = user_location()", filename, "exec")
    names = {"user_location": user_location}
    exec(code, names)
    return names["location"]  # type: ignore[return-value]


def test_the_line_of_the_caller() -> None:
    assert user_location() == f"{NAME}:{line()}"


@pytest.mark.parametrize("inside", ["runtime/training/step.py", "runtime/job.py"])
def test_frames_of_isoscale_are_passed_over(inside: str) -> None:
    assert call_from(str(Path(isoscale.__file__).parent / inside)).startswith(f"{NAME}:")


@pytest.mark.parametrize("name", ["/x/site-packages/torch/nn.py", "<frozen runpy>", "<string>", contextlib.__file__])
def test_frames_of_libraries_are_passed_over(name: str) -> None:
    assert call_from(name).startswith(f"{NAME}:")


def test_recipes_are_users() -> None:
    assert call_from(str(Path(isoscale.__file__).parent / "recipes" / "digits.py")) == "digits.py:1"


def test_a_script_beside_the_package_is_the_users() -> None:
    package = Path(isoscale.__file__).parent
    assert call_from(f"{package}_scripts/train.py") == "train.py:1"
    assert call_from(str(package.parent / "train.py")) == "train.py:1"


def test_nothing_but_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules.sys, "_getframe", lambda depth: None)
    assert user_location() == "<unknown>:0"


def test_an_error_names_worker_line_and_remedy() -> None:
    error = Turn(logical_rank=2).error("a rule", "a remedy")
    assert str(error) == f"{NAME}:{line() - 1}: logical worker 2: a rule; a remedy"
    assert str(Turn().error("a rule", "a remedy", location="x.py:3")) == "x.py:3: outside turns: a rule; a remedy"


def test_a_turn_starts_outside_and_training() -> None:
    turn = Turn()
    assert (turn.logical_rank, turn.training, turn.accumulating) == (None, True, False)

from __future__ import annotations

import copy
import pickle
import traceback
from pathlib import Path

import pytest

from isoscale import errors
from isoscale.errors import (
    AuditError,
    CheckpointError,
    DeterminismError,
    ExecutorLostError,
    IsoscaleError,
    PositionError,
    StartError,
    TurnRuleError,
    UserCodeError,
    UserError,
)

EXAMPLES = [
    (IsoscaleError("told"), 1, "told"),
    (
        UserError(field="executors", value=5, problem="more than the 4 logical workers", remedy="give at most 4"),
        2,
        "executors=5: more than the 4 logical workers; give at most 4",
    ),
    (
        DeterminismError(
            field="devices",
            value="cpu*1+cpu-sse*1",
            problem="the kinds compute different bits",
            remedy="use --determinism heterogeneous",
            fingerprints={"cpu": "aa11", "cpu-sse": "bb22"},
        ),
        2,
        "devices=cpu*1+cpu-sse*1: the kinds compute different bits (cpu: aa11, cpu-sse: bb22); "
        "use --determinism heterogeneous",
    ),
    (
        TurnRuleError(
            rule="optimizer.step() inside a turn",
            logical_rank=3,
            location="train.py:12",
            remedy="call it after the inner loop",
        ),
        1,
        "train.py:12: logical worker 3: optimizer.step() inside a turn; call it after the inner loop",
    ),
    (
        StartError(what="cpu/3", reason="this device is gone"),
        1,
        "cpu/3: this device is gone",
    ),
    (
        UserCodeError(traceback_text="KeyError: 'a'\n", logical_rank=None, executor=1),
        1,
        "executor 1, outside turns: KeyError: 'a'",
    ),
    (
        PositionError(executor=0, position="epoch 1, step 8", other_executor=2, other_position="epoch 2, step 0"),
        1,
        "executor 0 stands at epoch 1, step 8, executor 2 at epoch 2, step 0; "
        "decide loops, breaks and learning rates from values that are equal on every executor",
    ),
    (
        AuditError(tensor="model.fc.weight", executors=[0, 2], remedy="keep all state with job.keep"),
        1,
        "model.fc.weight differs between executors 0, 2; keep all state with job.keep",
    ),
    (
        ExecutorLostError(executor=1, pid=4711, generation=2, reason="killed by signal 9"),
        1,
        "executor 1 (pid 4711, generation 2) was lost: killed by signal 9",
    ),
    (
        CheckpointError(path="out/checkpoints", problem="no whole checkpoint left", remedy="start without --resume"),
        2,
        "out/checkpoints: no whole checkpoint left; start without --resume",
    ),
]

each_example = pytest.mark.parametrize(
    ("error", "exit_code", "message"), EXAMPLES, ids=[type(error).__name__ for error, _, _ in EXAMPLES]
)


@each_example
def test_message_and_exit_code(error: IsoscaleError, exit_code: int, message: str) -> None:
    assert str(error) == message
    assert error.exit_code == exit_code


@each_example
@pytest.mark.parametrize("duplicate", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy])
def test_pickles_and_copies_whole(duplicate, error: IsoscaleError, exit_code: int, message: str) -> None:
    again = duplicate(error)
    assert type(again) is type(error)
    assert str(again) == message
    assert vars(again) == vars(error)


def test_every_error_has_an_example() -> None:
    assert {type(error).__name__ for error, _, _ in EXAMPLES} == set(errors.__all__)


def test_every_error_is_drawn_and_documented() -> None:
    for name in errors.__all__:
        assert name in (errors.__doc__ or "")
        assert getattr(errors, name).__doc__


def test_notes_survive_pickling() -> None:
    error = IsoscaleError("told")
    error.add_note("while resuming")
    assert pickle.loads(pickle.dumps(error)).__notes__ == ["while resuming"]


def test_pickled_subclass_needs_no_code_of_its_own() -> None:
    assert pickle.loads(pickle.dumps(_LocalError(number=3))).number == 3


def test_user_errors_are_value_errors() -> None:
    assert issubclass(DeterminismError, ValueError)
    assert not issubclass(TurnRuleError, ValueError)


@pytest.mark.parametrize(
    ("value", "shown"), [("a\nb", r"'a\nb'"), ("", "''"), (Path("a/b"), "a/b"), (None, "None"), ("é", "é")]
)
def test_user_error_shows_any_value_on_one_line(value: object, shown: str) -> None:
    assert str(UserError(field="x", value=value, problem="wrong", remedy="change it")) == f"x={shown}: wrong; change it"


def test_determinism_error_without_fingerprints() -> None:
    error = DeterminismError(field="kinds", value="cpu-mips", problem="unknown kind", remedy="give cpu")
    assert str(error) == "kinds=cpu-mips: unknown kind; give cpu"


def test_user_code_error_names_the_exception_not_its_later_lines() -> None:
    try:
        try:
            raise KeyError("first")
        except KeyError:
            raise ValueError("bad shape\n  File got in the way") from None
    except ValueError as error:
        error.add_note("a note")
        text = traceback.format_exc()
    error = UserCodeError(traceback_text=text, logical_rank=2, executor=0)
    assert str(error) == "executor 0, logical worker 2: ValueError: bad shape"
    assert error.traceback_text == text


@pytest.mark.parametrize("text", ["", "\n"])
def test_user_code_error_without_traceback(text: str) -> None:
    assert str(UserCodeError(traceback_text=text, logical_rank=None, executor=0)).endswith("no traceback")


class _LocalError(IsoscaleError):
    def __init__(self, *, number: int) -> None:
        self.number = number
        super().__init__(f"number {number}")

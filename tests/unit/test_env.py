from __future__ import annotations

import os
from pathlib import Path

import pytest

from isoscale import env
from isoscale.errors import UserError


def test_unset_and_empty_variables_are_absent() -> None:
    readers = [env.coordinator, env.token_file, env.executor, env.out, env.num_logical_workers, env.seed]
    names = [env.COORDINATOR, env.TOKEN_FILE, env.EXECUTOR, env.OUT, env.WORKERS, env.SEED]
    for read, name in zip(readers, names, strict=True):
        assert read({}) is None
        assert read({name: ""}) is None
    assert env.is_reference({}) is False
    assert env.is_reference({env.REFERENCE: ""}) is False


def test_good_values_are_typed() -> None:
    assert env.coordinator({env.COORDINATOR: "ws://127.0.0.1:8000"}) == "ws://127.0.0.1:8000"
    assert env.coordinator({env.COORDINATOR: "wss://[::1]:8000/job"}) == "wss://[::1]:8000/job"
    assert env.token_file({env.TOKEN_FILE: "run/token"}) == Path("run/token")
    assert env.executor({env.EXECUTOR: "0"}) == 0
    assert env.out({env.OUT: "run"}) == Path("run")
    assert env.num_logical_workers({env.WORKERS: "4"}) == 4
    assert env.seed({env.SEED: "4294967295"}) == 2**32 - 1
    assert env.is_reference({env.REFERENCE: "1"}) is True
    assert env.is_reference({env.REFERENCE: "0"}) is False


@pytest.mark.parametrize(
    ("read", "name", "value"),
    [
        (env.coordinator, env.COORDINATOR, "http://127.0.0.1:8000"),
        (env.coordinator, env.COORDINATOR, "ws://127.0.0.1"),
        (env.coordinator, env.COORDINATOR, "ws://127.0.0.1:99999"),
        (env.coordinator, env.COORDINATOR, "ws://:8000"),
        (env.executor, env.EXECUTOR, "-1"),
        (env.executor, env.EXECUTOR, "one"),
        (env.executor, env.EXECUTOR, " 1"),
        (env.executor, env.EXECUTOR, "1_0"),
        (env.num_logical_workers, env.WORKERS, "0"),
        (env.num_logical_workers, env.WORKERS, "4.0"),
        (env.seed, env.SEED, "-1"),
        (env.seed, env.SEED, "4294967296"),
        (env.seed, env.SEED, "9" * 5000),
        (env.is_reference, env.REFERENCE, "yes"),
    ],
)
def test_bad_value_names_variable_value_and_remedy(read, name: str, value: str) -> None:
    with pytest.raises(UserError) as caught:
        read({name: value})
    assert (caught.value.field, caught.value.value) == (name, value)
    assert "give" in caught.value.remedy


def test_reads_the_process_environment_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(env.SEED, "7")
    assert env.seed() == 7


def test_child_environment_inherits_all_but_our_identity() -> None:
    parent = {"PATH": "/bin", env.EXECUTOR: "0", env.SEED: "1"}
    assert env.child_environment({env.EXECUTOR: "3"}, parent) == {"PATH": "/bin", env.EXECUTOR: "3"}
    assert parent == {"PATH": "/bin", env.EXECUTOR: "0", env.SEED: "1"}


@pytest.mark.parametrize("chosen", [None, "pudb.set_trace"])
def test_what_breakpoint_does_is_the_user_s_choice(monkeypatch: pytest.MonkeyPatch, chosen: str | None) -> None:
    monkeypatch.setenv("PYTHONBREAKPOINT", chosen or "")
    if chosen is None:
        monkeypatch.delenv("PYTHONBREAKPOINT")
    with env.kept_breakpoint_hook():
        os.environ["PYTHONBREAKPOINT"] = "a.library.s.own"
    assert os.environ.get("PYTHONBREAKPOINT") == chosen

"""What isoscale's side of a Ray cluster does when Ray does not answer, or an actor dies: without a cluster."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from isoscale.backends import ray_demand
from isoscale.backends.delivery import Delivery
from isoscale.backends.ray_demand import Bundle, DemandActor
from isoscale.backends.ray_guard import PROGRAM
from isoscale.backends.seam import Launch
from isoscale.backends.system import born

ray = pytest.importorskip("ray")

_PATIENCE_S = 20.0


def until(done: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not done():
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.01)


def call(answer: Callable[[], Any]) -> SimpleNamespace:
    """A method of an actor; what it gives is for `ray.get`, which is replaced."""
    return SimpleNamespace(remote=lambda *given, **named: answer)


# ---- ending actors ----


@pytest.mark.parametrize(
    ("found", "answered", "is_left"),
    [
        (ValueError("no such actor"), None, False),
        (ray.exceptions.GetTimeoutError("the head is away"), None, True),
        (None, lambda: None, False),
        (None, ray.exceptions.ActorDiedError(), False),
        (None, ray.exceptions.ActorUnavailableError("the network", None), True),
        (None, ray.exceptions.GetTimeoutError("not yet"), True),
    ],
)
def test_a_device_is_free_only_when_its_actor_was_seen_dead(
    found: Exception | None, answered: Any, is_left: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from isoscale.backends.ray_found import end_actors

    def get_actor(name: str, namespace: str) -> Any:
        if found is not None:
            raise found
        return SimpleNamespace(kill=call(lambda: None), swept=call(answer))

    def answer() -> None:
        if isinstance(answered, Exception):
            raise answered

    monkeypatch.setattr(ray, "get_actor", get_actor)
    monkeypatch.setattr(ray, "wait", lambda references, **options: None)
    monkeypatch.setattr(ray, "get", lambda reference, timeout: reference())
    monkeypatch.setattr(ray, "kill", lambda actor, no_restart: None)
    assert end_actors(["isoscale/run/0-a"], 1.0) == ({"isoscale/run/0-a"} if is_left else set())


# ---- a spare ----


def test_a_spare_keeps_its_name_though_another_one_is_made_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its name a later coordinator finds the executor in it."""
    from isoscale.backends import ray_spare

    made: dict[str, Any] = {}

    class Remote:
        def options(self, *, name: str, **others: Any) -> Remote:
            self.name = name
            return self

        def remote(self) -> Any:
            made[self.name] = SimpleNamespace(pid=call(lambda: 1), stay=call(lambda: None), leave=call(lambda: None))
            return made[self.name]

    spare = ray_spare.Spare()

    def slow(reference: Any, timeout: float) -> int:
        spare.keep("n" * 56)
        return 1

    monkeypatch.setattr(ray, "remote", lambda actor: Remote())
    monkeypatch.setattr(ray, "get", slow)
    monkeypatch.setattr(ray_spare, "_REST_S", -1.0)
    spare.keep("n" * 56)
    taken = spare.take("n" * 56)
    assert len(made) == 2, "another one was made while this one was waited for"
    assert taken is not None
    assert made[taken[1]] is taken[0]


# ---- the guard ----


def guarded(told: object) -> subprocess.CompletedProcess[str]:
    """The guard of an actor that has told it this, and died."""
    command = [sys.executable, "-P", PROGRAM]
    return subprocess.run(command, input=json.dumps(told) + "\n", capture_output=True, text=True, timeout=_PATIENCE_S)


def test_what_an_executor_was_given_goes_with_its_actor(tmp_path: Path) -> None:
    delivery = Delivery()
    environment = {"ISOSCALE_TOKEN_FILE": str(tmp_path / "elsewhere")}
    launch = Launch(command=(), environment=environment, log=tmp_path / "log", files={"ISOSCALE_TOKEN_FILE": b"secret"})
    token = Path(delivery.deliver(launch).environment["ISOSCALE_TOKEN_FILE"])
    assert token.read_bytes() == b"secret"
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    try:
        guarded({"pid": child.pid, "born": born(child.pid), "marks": [], "given": delivery.place})
        assert child.wait(_PATIENCE_S) == -9
        until(lambda: not token.parent.exists(), "the end of what it was given")
    finally:
        child.kill()
        delivery.close()


def test_the_guard_of_an_actor_that_nobody_used_says_nothing() -> None:
    assert guarded(None).stderr == ""


# ---- an autoscaler ----


def test_an_autoscaler_is_told_when_nobody_wants_more_though_the_head_was_away(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    left = threading.Event()
    is_away = threading.Event()

    def request_resources(*, bundles: list[Any], bundle_label_selectors: list[Any]) -> None:
        if is_away.is_set():
            is_away.clear()
            raise RuntimeError("the head is away")
        told.append(len(bundles))

    monkeypatch.setattr("ray.autoscaler.sdk.request_resources", request_resources)
    monkeypatch.setattr(ray_demand, "_LOOK_S", 0.02)
    monkeypatch.setattr(ray_demand, "FORGET_S", 0.1)
    context = SimpleNamespace(current_actor=SimpleNamespace(leave=SimpleNamespace(remote=left.set)))
    monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
    actor = DemandActor()
    actor.ask("run", [Bundle((("CPU", 1.0),))])
    is_away.set()
    until(left.is_set, "the end of an actor that nobody needs")
    assert (told[0], told[-1]) == (1, 0)
    ended: list[bool] = []
    monkeypatch.setattr(ray.actor, "exit_actor", lambda: ended.append(True))
    actor.ask("run", [Bundle((("CPU", 1.0),))])
    actor.leave()
    assert not ended, "somebody has asked meanwhile"
    until(lambda: actor.leave() or ended, "the end")

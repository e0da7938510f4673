"""Who may be alive of those that an earlier coordinator has left."""

from __future__ import annotations

from typing import Any

from isoscale.runtime.coordinator.adoption import Survivors, survivors

HERE = "this machine"


def left(pid: int, **fields: Any) -> dict[str, Any]:
    return {"pid": pid, "born": 100 + pid, "machine": HERE, "kind": "cpu", "ready": True, **fields}


def test_processes_of_this_machine_are_alive_if_they_were_born_when_they_were() -> None:
    births = {1: 101, 2: 999, 3: 0}
    found = survivors({0: left(1), 1: left(2), 2: left(3)}, HERE, births.__getitem__)
    assert found == Survivors(ready={0: 1}), "2 is another process by now, 3 is none"
    assert found.local == {0: 1}


def test_one_that_has_not_said_a_word_is_known_by_its_kind() -> None:
    found = survivors({4: left(1, ready=False, kind="cpu-avx2")}, HERE, lambda pid: 101)
    assert found.starting == {4: (1, "cpu-avx2")}
    assert found.local == {4: 1}


def test_nobody_can_look_at_other_machines() -> None:
    def look(pid: int) -> int:
        raise AssertionError("a process number of another machine")

    elsewhere = left(1, machine="another")
    adopted = left(2, born=0)  # by its connection: it has process numbers of its own
    assert survivors({0: elsewhere, 1: adopted}, HERE, look) == Survivors(remote={0, 1})

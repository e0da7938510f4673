"""Every request that was accepted is answered, once."""

from __future__ import annotations

from typing import Any

import pytest

from isoscale.runtime.membership.instructions import Emit, Instruction
from isoscale.runtime.membership.requests import Requests, Standing


def standing(**changes: Any) -> Standing:
    fields: dict[str, Any] = {
        "members": (0, 1),
        "kinds": ("cpu", "cpu"),
        "settled": True,
        "target": "cpu*2",
        "wanted": ("cpu", "cpu"),
    }
    return Standing(**{**fields, **changes})


def accept(requests: Requests, sort: Any, **fields: Any) -> int:
    one, instructions = requests.accept(sort, **{"reason": "asked", "step": 5, "now": 0.0, **fields})
    assert isinstance(instructions[0], Emit)
    assert instructions[0].event == "request"
    assert set(instructions[0].fields) == {"id", "request", "target", "away", "reason"}
    return one.id


def answers(instructions: list[Instruction]) -> dict[int, str]:
    found = [one.fields for one in instructions if isinstance(one, Emit) and one.event == "answered"]
    return {fields["id"]: fields["outcome"] for fields in found}


def test_a_target_is_reached_when_its_generation_has_sealed() -> None:
    requests = Requests()
    one = accept(requests, "scale", target="cpu*2")
    assert requests.on_standing(standing(settled=False)) == []
    assert requests.on_standing(standing(kinds=("cpu",), members=(0,))) == []
    assert answers(requests.on_standing(standing())) == {one: "done"}
    assert requests.on_standing(standing()) == []


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [({"refused": "newcomers end"}, "given_up"), ({"target": "cpu*4", "wanted": ("cpu",) * 4}, "overtaken")],
)
def test_a_target_that_will_not_be_reached(changes: dict[str, Any], outcome: str) -> None:
    requests = Requests()
    one = accept(requests, "scale", target="cpu*2")
    assert answers(requests.on_standing(standing(**changes))) == {one: outcome}


def test_the_newest_target_counts_and_does_not_overtake_a_migration() -> None:
    requests = Requests()
    first, moved = accept(requests, "scale", target="cpu*3"), accept(requests, "migrate", away=(1,))
    second, instructions = requests.accept("scale", target="cpu*2", reason="asked", step=5, now=0.0)
    assert answers(instructions) == {first: "overtaken"}
    assert answers(requests.on_standing(standing())) == {second.id: "done"}
    assert answers(requests.on_standing(standing(members=(0, 2)))) == {moved: "done"}


def test_a_checkpoint_serves_those_who_asked_before_it() -> None:
    requests = Requests()
    early, late = accept(requests, "checkpoint", step=5), accept(requests, "checkpoint", step=8)
    assert answers(requests.on_checkpoint(4, "a.pt")) == {}
    assert answers(requests.on_checkpoint(6, "a.pt")) == {early: "done"}
    assert answers(requests.on_checkpoint(8, "b.pt")) == {late: "done"}


def test_whatever_is_open_at_the_end_is_answered() -> None:
    requests = Requests()
    ids = [accept(requests, "scale", target="cpu*4"), accept(requests, "checkpoint"), accept(requests, "stop")]
    assert answers(requests.answer_all("failed", "disk", "checkpoint")) == {ids[1]: "failed"}
    assert answers(requests.answer_all("ended", "it finished")) == {ids[0]: "ended", ids[2]: "ended"}
    assert requests.answer_all("ended", "it finished") == []
    assert [(one["id"], one["outcome"]) for one in requests.shown(1.0)] == [
        (ids[1], "failed"),
        (ids[0], "ended"),
        (ids[2], "ended"),
    ]


def test_ids_go_on_after_those_of_an_earlier_coordinator() -> None:
    requests = Requests(last=3)
    requests.adopt([{"id": 7, "request": "scale", "target": "cpu*2", "away": [1], "reason": "asked"}], now=0.0)
    assert accept(requests, "checkpoint") == 8
    assert requests.open_of("scale")[0].away == (1,)

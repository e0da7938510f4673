"""What a new coordinator makes of what it hears."""

from __future__ import annotations

from typing import Any

import pytest

from isoscale.protocol import messages as m
from isoscale.runtime.membership.takeover import Census, standing_of


def rejoin(executor: int, **fields: Any) -> m.Rejoin:
    hello = m.Hello(executor=executor, pid=executor, kind="cpu", fingerprint="f", kernels={}, factors={})
    usual = {"state": "member", "generation": 2, "members": (0, 1), "shares": (1, 1), "step": 7, "highest": 2}
    return m.Rejoin(hello=hello, **{"waiting": False, **usual, **fields})


def heard(*rejoins: m.Rejoin) -> Census:
    census = Census()
    for one in rejoins:
        census.count(one)
    return census


@pytest.mark.parametrize("backwards", [False, True])
def test_the_newest_generation_that_somebody_trains_in_counts(backwards: bool) -> None:
    words = [
        rejoin(0, generation=3, highest=3, members=(0, 2), shares=(1, 1), step=8, sealed=False),
        rejoin(1, highest=3),
        rejoin(2, state="held", generation=0, highest=3, members=(), shares=(), step=0),
    ]
    census = heard(*(reversed(words) if backwards else words))
    assert (census.generation, census.members, census.sealed, census.step) == (3, (0, 2), False, 8)
    assert census.uncertain == {1, 2}, "they know of a generation that they are not in"


@pytest.mark.parametrize("backwards", [False, True])
def test_one_that_has_seen_its_seal_speaks_for_the_generation(backwards: bool) -> None:
    words = [rejoin(0, sealed=True), rejoin(1, sealed=False)]
    assert heard(*(reversed(words) if backwards else words)).sealed


def test_who_waits_and_who_has_come_to_the_end_is_known() -> None:
    finished = m.Finished(executor=1, step=9, digest="d", stop_reason="")
    census = heard(rejoin(0, waiting=True), rejoin(1, state="finished", finished=finished))
    assert census.waits
    assert census.finished == {1: finished}


@pytest.mark.parametrize(("state", "standing"), [("warm", "warm"), ("held", "held"), ("leaving", "member")])
def test_those_who_leave_hold_the_state_as_members_do(state: str, standing: str) -> None:
    assert standing_of(rejoin(0, state=state)) == standing

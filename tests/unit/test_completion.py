"""The end of a job: who is waited for, and that all are not looked at for each one who comes."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from isoscale.protocol import messages as m
from isoscale.runtime.membership.completion import Completion


def finish(completion: Completion, executor: int) -> None:
    completion.finished[executor] = m.Finished(executor=executor, step=1, digest="d", stop_reason="")


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    members=st.lists(st.integers(0, 30), unique=True, max_size=8).map(tuple),
    acts=st.lists(
        st.tuples(st.sampled_from(["finish", "lose", "go", "come", "change"]), st.integers(0, 30)), max_size=40
    ),
)
def test_it_waits_for_members_that_count_and_have_not_come(
    members: tuple[int, ...], acts: list[tuple[str, int]]
) -> None:
    completion, gone = Completion(), set[int]()
    for act, executor in acts:
        match act:
            case "finish":
                finish(completion, executor)
            case "lose":
                completion.lose(executor)
            case "go":
                gone.add(executor)
            case "come":
                gone.discard(executor)
            case "change":
                members = (*members[1:], executor) if executor not in members else members[1:]
        awaited = [one for one in members if one not in completion.finished and one not in gone]
        assert completion.waits_for(members, lambda one: one not in gone) == bool(awaited)


@pytest.mark.parametrize("order", ["first to last", "every other"])
def test_all_are_looked_at_rarely(order: str) -> None:
    members, looks = tuple(range(1000)), 0

    def counts(executor: int) -> bool:
        nonlocal looks
        looks += 1
        return True

    completion = Completion()
    for executor in members if order == "first to last" else (*members[::2], *members[1::2]):
        assert completion.waits_for(members, counts)
        finish(completion, executor)
    assert not completion.waits_for(members, counts)
    assert looks <= 4 * len(members)

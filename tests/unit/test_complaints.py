"""Whom to leave out when executors cannot reach each other."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from isoscale.runtime.membership.reachability import Outcast, Reachability, strangers_of


def complaints(*pairs: tuple[int, int]) -> Reachability:
    made = Reachability()
    for one, other in pairs:
        made.complain(one, (other,))
    return made


def names(made: Reachability, members: tuple[int, ...]) -> list[int]:
    return [one.executor for one in made.outcasts(members)]


def test_nobody_is_left_out_without_a_complaint() -> None:
    assert names(complaints(), (0, 1, 2)) == []


def test_the_one_that_most_complain_about_goes() -> None:
    made = complaints((0, 1), (2, 1), (3, 1))
    assert names(made, (0, 1, 2, 3)) == [1]
    assert str(made.outcasts((0, 1, 2, 3))[0]) == "it and executors 0, 2, 3 cannot reach each other"


def test_one_that_complains_about_all_is_at_fault_itself() -> None:
    assert names(complaints((1, 0), (1, 2), (1, 3)), (0, 1, 2, 3)) == [1]


def test_of_two_the_one_that_came_last_goes() -> None:
    assert names(complaints((5, 2), (2, 5)), (5, 2)) == [2]
    assert str(complaints((5, 2)).outcasts((5, 2))[0]) == "it and executor 5 cannot reach each other"


def test_of_two_halves_one_is_left() -> None:
    assert sorted(names(complaints((0, 2), (0, 3), (1, 2), (1, 3)), (0, 1, 2, 3))) == [2, 3]


def test_complaints_about_others_than_the_members_do_not_count() -> None:
    assert names(complaints((0, 7), (0, 0)), (0, 1)) == []


def test_a_seal_proves_them_wrong() -> None:
    made = complaints((0, 1))
    made.clear()
    assert names(made, (0, 1)) == []


def test_newcomers_are_named_whoever_complains() -> None:
    assert strangers_of(0, (5, 1), newcomers={5}) == [Outcast(5, (0,))]
    assert strangers_of(5, (0, 1), newcomers={5}) == [Outcast(5, (0, 1))]
    assert strangers_of(0, (1,), newcomers={5}) == []


@given(st.sets(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=20))
def test_those_who_are_left_have_no_complaint_and_somebody_is_left(pairs: set[tuple[int, int]]) -> None:
    out = set(names(complaints(*pairs), tuple(range(7))))
    left = [e for e in range(7) if e not in out]
    assert left
    assert not [pair for pair in combinations(left, 2) if pair in pairs or pair[::-1] in pairs]

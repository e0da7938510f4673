"""The rule that moves logical workers: who is slow, for how long, and whether moving pays."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from isoscale.scheduling.planner import best_split, split_seconds
from isoscale.scheduling.straggler import StragglerRule

MEMBERS = (3, 5, 8, 9)


def times(*seconds: float) -> dict[int, float]:
    return dict(zip(MEMBERS, seconds, strict=True))


def test_a_straggler_loses_workers_after_ten_steps_and_not_before() -> None:
    rule = StragglerRule()
    slow = times(1.0, 1.0, 2.0, 1.0)
    assert [rule.observe(slow, 1, MEMBERS, (4, 4, 4, 4)) for _ in range(9)] == [None] * 9
    assert rule.observe(slow, 1, MEMBERS, (4, 4, 4, 4)) == (5, 5, 2, 4) == best_split(16, [1, 1, 2, 1])
    assert rule.slowest == (8, 2.0)


def test_one_good_step_starts_the_count_again() -> None:
    rule = StragglerRule(steps=10)
    slow, fine = times(1.0, 1.0, 2.0, 1.0), times(1.0, 1.0, 1.1, 1.0)
    assert rule.observe(slow, 9, MEMBERS, (4, 4, 4, 4)) is None
    assert rule.observe(fine, 1, MEMBERS, (4, 4, 4, 4)) is None
    assert rule.observe(slow, 9, MEMBERS, (4, 4, 4, 4)) is None
    assert rule.observe(slow, 1, MEMBERS, (4, 4, 4, 4)) is not None


def test_just_within_the_ratio_is_no_straggler() -> None:
    rule = StragglerRule(ratio=1.2)
    assert rule.observe(times(1.0, 1.0, 1.2, 1.0), 1000, MEMBERS, (40, 40, 40, 40)) is None
    assert rule.observe(times(1.0, 1.0, 1.21, 1.0), 1000, MEMBERS, (40, 40, 40, 40)) is not None


def test_a_recovered_device_gets_its_workers_back() -> None:
    rule = StragglerRule()
    shares = best_split(64, [1, 1, 1.3, 1])
    assert shares == (17, 17, 13, 17)
    assert rule.observe(times(1.0, 1.0, 1.3, 1.0), 100, MEMBERS, shares) is None
    assert rule.observe(times(1.0, 1.0, 1.0, 1.0), 10, MEMBERS, shares) == (16, 16, 16, 16)


def test_no_proposal_without_gain() -> None:
    """Two logical workers on two devices cannot be split otherwise, and five on four would gain nothing."""
    rule = StragglerRule()
    assert rule.observe({1: 1.0, 2: 3.0}, 50, (1, 2), (1, 1)) is None
    assert rule.observe(times(1, 1, 1, 1), 50, MEMBERS, (2, 1, 1, 1)) is None


def test_members_or_shares_that_change_start_the_count_anew() -> None:
    rule = StragglerRule()
    slow = times(1.0, 1.0, 2.0, 1.0)
    assert rule.observe(slow, 9, MEMBERS, (4, 4, 4, 4)) is None
    assert rule.observe(slow, 9, MEMBERS, (5, 4, 3, 4)) is None
    assert rule.observe(slow, 9, MEMBERS[:3], (6, 5, 5)) is None
    assert rule.observe(slow, 1, MEMBERS[:3], (6, 5, 5)) is not None


def test_incomplete_rounds_are_skipped_and_strangers_ignored() -> None:
    rule = StragglerRule()
    assert rule.observe({3: 1.0, 5: 9.0}, 100, MEMBERS, (4, 4, 4, 4)) is None
    assert rule.observe({}, 100, (), ()) is None
    strangers = {**times(1.0, 1.0, 1.0, 1.0), 77: 50.0}
    assert rule.observe(strangers, 100, MEMBERS, (4, 4, 4, 4)) is None
    assert rule.slowest == (-1, 1.0)


def test_the_split_follows_the_mean_over_the_last_steps() -> None:
    """One wild observation at the end must not decide: the window holds what made the streak."""
    rule = StragglerRule(steps=10)
    assert rule.observe(times(1, 1, 2, 1), 9, MEMBERS, (4, 4, 4, 4)) is None
    assert rule.observe(times(1, 1, 200, 1), 1, MEMBERS, (4, 4, 4, 4)) == best_split(16, [1, 1, 21.8, 1])


@given(st.lists(st.lists(st.floats(0.5, 3), min_size=4, max_size=4), min_size=1, max_size=30))
def test_whatever_is_proposed_is_whole_and_pays(rounds: list[list[float]]) -> None:
    rule = StragglerRule(steps=3)
    shares: tuple[int, ...] = (4, 4, 4, 4)
    for seconds in rounds:
        new = rule.observe(times(*seconds), 3, MEMBERS, shares)
        if new is not None:
            assert sum(new) == 16
            assert min(new) >= 1
            assert split_seconds(new, seconds) * rule.gain <= split_seconds(shares, seconds)
            shares = new

"""The rule that moves logical workers: who is slow, for how long, whether moving pays, and what was tried before."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import islice, repeat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isoscale.scheduling.planner import best_split, split_seconds
from isoscale.scheduling.straggler import Proposal, Round, StragglerRule

MEMBERS = (3, 5, 8, 9)
EVEN = (4, 4, 4, 4)


def seen(*seconds: float, steps: int = 1, rest_s: float = 0.0) -> Round:
    return Round(steps, seconds, rest_s)


class Job:
    """Does what the rule proposes, and counts."""

    def __init__(self, shares: Sequence[int], **options: float) -> None:
        self.rule = StragglerRule(**{"gain": 1.1, **options})  # type: ignore[arg-type]
        self.members, self.shares = tuple(range(len(shares))), tuple(shares)
        self.step = 0
        #: by step
        self.moves: list[tuple[int, tuple[int, ...]]] = []

    def play(self, times: Iterator[Sequence[float]], rounds: int, *, steps: int = 20, pause_s: float = 0.0) -> Job:
        for one in islice(times, rounds):
            self.step += steps
            here = [one[e] for e in self.members]
            found = self.rule.observe(Round(steps, tuple(here)), self.members, self.shares, pause_s=pause_s)
            if found is not None:
                self.moves.append((self.step, found.shares))
                self.members = tuple(e for e, share in zip(self.members, found.shares, strict=True) if share)
                self.shares = tuple(share for share in found.shares if share)
        return self


def noisy(draw: random.Random, *means: float, spread: float) -> Iterator[list[float]]:
    """White noise: every executor by itself in every round."""
    while True:
        yield [mean * (1 + spread * draw.uniform(-1, 1)) for mean in means]


# ---- a device that is slow ----


def test_a_straggler_loses_workers_after_ten_steps_and_not_before() -> None:
    rule = StragglerRule()
    slow = seen(1.0, 1.0, 2.0, 1.0)
    assert [rule.observe(slow, MEMBERS, EVEN) for _ in range(9)] == [None] * 9
    found = rule.observe(slow, MEMBERS, EVEN)
    assert found == Proposal(best_split(16, [1, 1, 2, 1]), 8, 2.0, pytest.approx(8 / 5))
    assert found is not None
    assert found.shares == (5, 5, 2, 4)


@pytest.mark.parametrize("quiet_rounds", [0, 1, 5, 40, 400])
@pytest.mark.parametrize("steps", [1, 5, 10, 30])
def test_one_that_becomes_slow_is_found_within_ten_steps_or_the_round_that_covers_them(
    quiet_rounds: int, steps: int
) -> None:
    job, draw = Job((2, 2)), random.Random(1)
    job.play(noisy(draw, 1.0, 1.0, spread=0.03), quiet_rounds, steps=steps)
    job.play(noisy(draw, 1.0, 1.9, spread=0.03), 30, steps=steps)
    ((step, shares),) = job.moves
    assert shares == (3, 1)
    assert 0 < step - quiet_rounds * steps <= max(10, steps)


def test_just_within_the_ratio_is_no_straggler() -> None:
    shares = (40, 40, 40, 40)
    assert Job(shares, gain=1.0).play(repeat([1.0, 1.0, 1.2, 1.0]), 100).moves == []
    assert Job(shares, gain=1.0).play(repeat([1.0, 1.0, 1.25, 1.0]), 100).moves != []


def test_a_recovered_device_gets_its_workers_back() -> None:
    job = Job(best_split(64, [1, 1, 1.5, 1]), gain=1.02)
    job.play(repeat([1.0, 1.0, 1.5, 1.0]), 100)
    assert job.moves == []
    assert job.play(repeat([1.0, 1.0, 1.0, 1.0]), 1).moves == [(2020, (16, 16, 16, 16))]


def test_slow_for_an_hour_fast_for_an_hour_is_followed_every_time() -> None:
    """Each move proves right before the next one undoes it, so none counts against the next."""
    job = Job((2, 2))
    for _ in range(5):
        job.play(repeat([1.0, 3.0]), 300)
        job.play(repeat([1.0, 1.0]), 300)
    assert [shares for _, shares in job.moves] == [(3, 1), (2, 2)] * 5
    assert [step % 6000 for step, _ in job.moves] == [20] * 10


def test_no_proposal_without_gain() -> None:
    """Five on four devices would gain nothing; and nobody is slow, so it does not matter who has two."""
    assert Job((2, 1, 1, 1)).play(repeat([1.0, 1.0, 1.0, 1.0]), 50).moves == []
    assert Job((2, 1, 1, 1), gain=1.0).play(repeat([1.15, 1.0, 1.0, 1.0]), 500).moves == []


def test_a_move_must_earn_its_pause() -> None:
    """(4, 4) -> (5, 3) saves 1.9 of 7.6 ms a step; what was so for 20 steps is expected for 400 more."""
    slow = [0.001, 0.0019]
    assert Job((4, 4)).play(repeat(slow), 1, pause_s=0.7).moves != []
    assert Job((4, 4)).play(repeat(slow), 1, pause_s=0.8).moves == []
    assert Job((4, 4)).play(repeat(slow), 2, pause_s=0.8).moves != [], "longer evidence, longer horizon"


def test_what_no_split_changes_counts_as_part_of_the_step() -> None:
    rule = StragglerRule(gain=1.1)
    assert rule.observe(seen(1.0, 1.9, steps=100, rest_s=10.0), (0, 1), (2, 2)) is None
    found = StragglerRule(gain=1.1).observe(seen(1.0, 1.9, steps=100, rest_s=1.0), (0, 1), (2, 2))
    assert found is not None
    assert found.gain == pytest.approx(4.8 / 4)


def test_members_that_change_start_anew_and_shares_that_change_restart_the_evidence() -> None:
    rule = StragglerRule()
    slow = seen(1.0, 1.0, 2.0, 1.0, steps=9)
    assert rule.observe(slow, MEMBERS, EVEN) is None
    assert rule.observe(slow, MEMBERS, (5, 4, 3, 4)) is None
    assert rule.observe(seen(1.0, 1.0, 2.0, steps=9), MEMBERS[:3], (6, 5, 5)) is None
    assert rule.observe(seen(1.0, 1.0, 2.0, steps=1), MEMBERS[:3], (6, 5, 5)) is not None


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("nan"), float("inf")])
def test_rounds_that_say_nothing_are_skipped(wrong: float) -> None:
    rule = StragglerRule()
    assert rule.observe(seen(1.0, 1.0, wrong, 1.0, steps=100), MEMBERS, EVEN) is None
    assert rule.observe(seen(1.0, 1.0, 2.0, 1.0, steps=0), MEMBERS, EVEN) is None
    assert rule.observe(seen(), (), ()) is None
    assert rule.observe(seen(1.0, 1.0, 2.0, 1.0, steps=10), MEMBERS, EVEN) is not None


def test_one_wild_round_does_not_decide() -> None:
    job = Job((2, 2)).play(repeat([1.0, 1.05]), 9, steps=1)
    assert job.play(iter([[1.0, 500.0]]), 1, steps=1).moves == []


def test_bad_settings_are_refused() -> None:
    for options in ({"ratio": 1.0}, {"steps": 0}, {"gain": 0.9}):
        with pytest.raises(ValueError, match="need ratio > 1"):
            StragglerRule(**options)  # type: ignore[arg-type]


# ---- a device that is too slow for a single worker ----


def test_one_that_keeps_others_waiting_with_a_single_worker_is_set_aside() -> None:
    job = Job((2, 1, 1)).play(repeat([1.0, 1.0, 5.0]), 100)
    assert job.moves == [(160, (2, 2, 0))], "at least eight times the evidence, and eight rounds"


def test_it_loses_what_it_can_first_and_is_set_aside_when_it_is_sure() -> None:
    job = Job((4, 4)).play(repeat([1.0, 20.0]), 100)
    assert job.moves == [(20, (7, 1)), (180, (8, 0))]


def test_nobody_is_set_aside_for_a_burst() -> None:
    job = Job((1, 1))
    for _ in range(20):
        job.play(repeat([1.0, 1.0]), 7)
        job.play(repeat([1.0, 6.0]), 3)
    assert job.moves == []


# ---- noise ----


def bursts(draw: random.Random, executors: int, *, share: float, rounds: float, size: float) -> Iterator[list[float]]:
    """Each executor is `size` times slower now and then, for so many rounds on average."""
    left = [0] * executors
    while True:
        for e in range(executors):
            if left[e] > 0:
                left[e] -= 1
            elif draw.random() < share / rounds:
                left[e] = 1 + int(draw.expovariate(1 / rounds))
        yield [(size if left[e] else 1.0) * (1 + 0.1 * draw.uniform(-1, 1)) for e in range(executors)]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("shares", [(2, 2), (4, 4), (2, 2, 2)])
def test_white_noise_moves_nothing(seed: int, shares: tuple[int, ...]) -> None:
    job = Job(shares).play(noisy(random.Random(seed), *[1.0] * len(shares), spread=0.1), 1500)
    assert job.moves == [], "30000 steps"


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("shares", [(2, 2), (4, 4), (2, 1, 1)])
def test_strong_white_noise_misleads_a_few_times_at_most(seed: int, shares: tuple[int, ...]) -> None:
    """A third faster or slower by chance, in every round anew, and one of three has two workers in any case."""
    job = Job(shares).play(noisy(random.Random(seed), *[1.0] * len(shares), spread=0.3), 1500)
    assert len(job.moves) <= 8, "30000 steps"
    assert sum(step > 15_000 for step, _ in job.moves) <= 2


@pytest.mark.parametrize("seed", range(4))
def test_bursts_move_workers_ever_more_rarely(seed: int) -> None:
    """Of a second or two, 2.5 times slower, 15 % of the time on each executor: indistinguishable from a slow device
    while they last, but the rule learns that they pass."""
    job = Job((2, 2)).play(bursts(random.Random(seed), 2, share=0.15, rounds=2, size=2.5), 3000)
    steps = [step for step, _ in job.moves]
    assert len(steps) <= 16, "60000 steps"
    assert sum(step > 10_000 for step in steps) <= 6
    assert len(set(steps)) == len(steps)


def test_a_slow_device_is_found_in_noise_too_and_keeps_its_few_workers() -> None:
    job = Job((2, 2)).play(noisy(random.Random(2), 1.0, 1.0, spread=0.25), 40)
    job.play(noisy(random.Random(3), 1.0, 2.5, spread=0.25), 400)
    assert [shares for _, shares in job.moves] == [(3, 1)]
    assert job.moves[0][0] <= 800 + 5 * 20


def test_what_came_and_went_once_does_not_mislead_again() -> None:
    """Slow for 20 steps again and again, and fast for 400 in between: it moves to and fro once."""
    job = Job((2, 2))
    for _ in range(10):
        job.play(repeat([1.0, 3.0]), 1)
        job.play(repeat([1.0, 1.0]), 20)
    assert job.moves == [(20, (3, 1)), (40, (2, 2))]
    job.play(repeat([1.0, 3.0]), 40)
    assert [shares for _, shares in job.moves[2:]] == [(3, 1)], "slow for good"


speeds = st.lists(st.floats(0.2, 5.0), min_size=2, max_size=5)


@settings(max_examples=40, deadline=None)
@given(speeds, st.integers(0, 12), st.floats(0.0, 0.5), st.integers(0, 99), st.integers(1, 40))
def test_stationary_speeds_come_to_rest(means: list[float], more: int, spread: float, seed: int, steps: int) -> None:
    """Whatever the speeds and however large the (bounded) noise: few moves, hardly any late, and then a good split."""
    workers = len(means) + more
    shares = best_split(workers, [1.0] * len(means))
    job = Job(shares).play(noisy(random.Random(seed), *means, spread=spread), 600, steps=steps)
    assert len(job.moves) <= 8 * len(means)
    assert sum(step > 300 * steps for step, _ in job.moves) <= 2
    if spread < 0.05:
        here = [means[e] for e in job.members]
        best = split_seconds(best_split(workers, here), here)
        assert split_seconds(job.shares, here) <= 1.25 * best


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.floats(0.01, 100), min_size=4, max_size=4), min_size=1, max_size=60))
def test_whatever_happens_proposals_are_whole_and_ever_rarer(rounds: list[list[float]]) -> None:
    job = Job(EVEN).play(iter(rounds), len(rounds), steps=10)
    assert all(sum(shares) == 16 and min(shares) >= 0 for _, shares in job.moves)
    assert sum(job.shares) == 16
    assert len(job.moves) <= 30


def test_the_same_rounds_give_the_same_answers() -> None:
    def told() -> list[tuple[int, tuple[int, ...]]]:
        return Job((3, 3)).play(bursts(random.Random(7), 2, share=0.3, rounds=3, size=3), 300).moves

    assert told() == told() != []

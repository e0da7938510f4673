"""Any history of placements, losses and newcomers gives the assignment that the rule states, each sample once."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from isoscale.data.stream import LogicalStream
from isoscale.data.stream_ledger import content_of, content_sum
from isoscale.data.stream_rule import Rule, deal, partition_order
from isoscale.errors import UserError
from isoscale.runtime.reference.stream import StreamPlan
from tests.unit.data.fleets import Fleet, ListSource


def plan_of(sizes: list[int], rule: Rule) -> StreamPlan:
    return StreamPlan(
        sizes,
        rule.num_logical_workers,
        rule.batch_size,
        seed=rule.seed,
        shuffle=rule.shuffle_partitions,
        buffer=rule.shuffle_buffer,
        tail=rule.tail,
        prefetch=rule.prefetch,
    )


def shares_of(n: int) -> st.SearchStrategy[list[int]]:
    """Any contiguous blocks of n workers."""
    cuts = st.sets(st.integers(1, max(1, n - 1)), max_size=n - 1) if n > 1 else st.just(set())
    return cuts.map(lambda c: [b - a for a, b in zip([0, *sorted(c)], [*sorted(c), n], strict=True)])


def rules(n: int) -> st.SearchStrategy[Rule]:
    return st.builds(
        Rule,
        num_logical_workers=st.just(n),
        batch_size=st.integers(1, 5),
        seed=st.integers(0, 3),
        shuffle_partitions=st.booleans(),
        shuffle_buffer=st.sampled_from([0, 1, 2, 7, 40]),
        tail=st.sampled_from(["partial", "drop", "carry"]),
        prefetch=st.sampled_from([0, 0, 1, 4]),
    )


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), n=st.integers(1, 5))
def test_any_history_gives_the_stated_assignment(data: st.DataObject, n: int) -> None:
    rule = data.draw(rules(n))
    sizes = data.draw(st.lists(st.integers(0, 14), min_size=1, max_size=12).filter(lambda s: sum(s) >= n))
    plan = plan_of(sizes, rule)
    fleet = Fleet(sizes, rule, data.draw(shares_of(n)), ahead=data.draw(st.sampled_from([0, 0, 1, 2, 5])))
    for epoch in range(2):
        fleet.begin(epoch)
        expected = plan.steps(epoch)
        for index, step in enumerate(expected):
            event = data.draw(st.sampled_from(["go on"] * 4 + ["switch", "lose one", "resume"]))
            if event == "switch":
                fleet.place(data.draw(shares_of(n)))
            elif event == "resume":
                fleet = fleet.resume(data.draw(shares_of(n)))
            assert fleet.advance() == "step", f"epoch {epoch} has {len(expected)} steps, not {index}"
            if event == "lose one":
                lost = data.draw(st.integers(0, len(fleet.streams) - 1)) if len(fleet.streams) > 1 else None
                fleet.broken_step(data.draw(st.integers(0, n)), data.draw(shares_of(n)), lost=lost)
            assert fleet.step() == step
        assert fleet.advance() == "end"
        check_counts(fleet, sizes, rule, expected)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), n=st.integers(1, 4))
def test_any_history_of_batch_sizes_gives_the_stated_assignment(data: st.DataObject, n: int) -> None:
    """Sizes change between steps, in the rest of an epoch too, while workers move; each sample is used once."""
    rule = data.draw(rules(n))
    partitions = data.draw(st.lists(st.integers(0, 14), min_size=1, max_size=9).filter(lambda s: sum(s) >= n))
    plan = plan_of(partitions, rule)
    ahead = data.draw(st.sampled_from([0, 0, 1, 3]))
    fleet, size = Fleet(partitions, rule, data.draw(shares_of(n)), ahead=ahead), rule.batch_size
    for epoch in range(2):
        fleet.begin(epoch)
        plan.begin(epoch)
        done: list[list[list[Any]]] = []
        while True:
            event = data.draw(st.sampled_from(["go on"] * 3 + ["resize"] * 2 + ["switch", "resume"]))
            if event == "switch":
                fleet.place(data.draw(shares_of(n)))
            elif event == "resume":
                fleet = fleet.resume(data.draw(shares_of(n)))
            elif event == "resize":
                size = data.draw(st.integers(1, 6))
                fleet.resize(size)
            step = plan.next(size)
            if step is None:
                break
            assert fleet.advance() == "step", f"step {len(done)} of epoch {epoch}"
            assert fleet.step() == step
            done.append(step)
            assert fleet.streams[0].num_used(in_step=False) == sum(len(b) for s in done for b in s)
        assert fleet.advance() == "end"
        check_counts(fleet, partitions, rule, done)


def check_counts(fleet: Fleet, sizes: list[int], rule: Rule, steps: list[list[list[Any]]]) -> None:
    used = Counter(sample for step in steps for batch in step for sample in batch)
    counts = [stream.counts() for stream in fleet.streams]
    assert all(one == counts[0] for one in counts)
    assert counts[0].samples == used.total()
    assert counts[0].content == content_sum(used.elements())
    assert counts[0].handed_out == counts[0].partitions == len(sizes)
    assert counts[0].rest == counts[0].carried_in + sum(sizes) - used.total()
    if rule.tail != "carry":
        assert max(used.values(), default=1) == 1
    if rule.tail == "partial":
        assert used.total() == sum(sizes)
        assert all(batch for step in steps for batch in step)


@given(st.integers(1, 4), st.lists(st.integers(0, 30), min_size=1, max_size=10), st.integers(0, 20))
@settings(max_examples=60, deadline=None)
def test_carried_samples_are_used_before_those_of_the_next_epoch(n: int, sizes: list[int], buffer: int) -> None:
    rule = Rule(num_logical_workers=n, batch_size=2, tail="carry", shuffle_buffer=buffer)
    fleet, used = Fleet(sizes, rule, [n]), Counter[Any]()
    for epoch in range(4):
        fleet.begin(epoch)
        while fleet.advance() == "step":
            used.update(sample for batch in fleet.step() for sample in batch)
        rest = fleet.streams[0].counts().rest
        assert used.total() + rest == (epoch + 1) * sum(sizes)  # nothing is lost, nothing comes twice
        assert all(count <= epoch + 1 for count in used.values())


@given(st.lists(st.integers(0, 50), min_size=1, max_size=9), st.integers(1, 9))
def test_a_rest_is_dealt_as_evenly_as_can_be(rest: list[int], batch_size: int) -> None:
    n, total = len(rest), sum(rest)
    bounds = deal(rest, Rule(num_logical_workers=n, batch_size=batch_size))
    sizes = [b - a for a, b in pairwise(bounds)]
    if total < n:
        assert bounds == []
        return
    assert sum(sizes) == total
    assert len(sizes) % n == 0
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) <= batch_size or (batch_size == 1 and max(sizes) == 2)
    assert len(sizes) // n <= -(-total // (n * batch_size))


def test_partitions_go_to_whoever_runs_dry_by_step_round_and_rank() -> None:
    rule = Rule(num_logical_workers=2, batch_size=2, shuffle_partitions=False)
    fleet = Fleet([1, 9, 1, 1, 4, 2], rule, [1, 1])
    fleet.begin(0)
    assert fleet.advance() == "step"
    # Worker 0 has one sample after the first round, worker 1 nine; so worker 0 alone is given 2, 3 in two rounds.
    assert [place.partitions for place in fleet.streams[0]._places] == [(0, 2, 3), (1,)]
    assert fleet.step() == [[(0, 0), (2, 0)], [(1, 0), (1, 1)]]
    fleet.advance()
    assert fleet.step() == [[(3, 0), (4, 0)], [(1, 2), (1, 3)]]


def test_epochs_have_orders_of_their_own() -> None:
    rule = Rule(num_logical_workers=1, batch_size=1, seed=3)
    orders = [partition_order(30, rule, epoch) for epoch in range(3)]
    assert len({tuple(order) for order in orders}) == 3
    assert all(sorted(order) == list(range(30)) for order in orders)
    in_order = Rule(num_logical_workers=1, batch_size=1, shuffle_partitions=False)
    assert partition_order(30, in_order, 2) == list(range(30))


def test_a_shuffle_buffer_shuffles_within_its_blocks_only() -> None:
    rule = Rule(num_logical_workers=1, batch_size=5, shuffle_partitions=False, shuffle_buffer=10)
    fleet = Fleet([40], rule, [1])
    fleet.begin(0)
    used: list[int] = []
    while fleet.advance() == "step":
        used += [i for _, i in fleet.step()[0]]
    assert used != sorted(used)
    for block in range(4):
        assert sorted(used[10 * block : 10 * block + 10]) == list(range(10 * block, 10 * block + 10))


@pytest.mark.parametrize("ahead", [0, 3])
def test_reading_another_workers_turn_changes_nothing(ahead: int) -> None:
    """As an audit does, on an executor where the worker does not live."""
    rule = Rule(num_logical_workers=2, batch_size=3, shuffle_buffer=4)
    fleet = Fleet([20, 20], rule, [1, 1], ahead=ahead)
    fleet.begin(0)
    while fleet.advance() == "step":
        elsewhere = fleet.batches[0].fetch(1, fleet.index, None, here=False)
        assert fleet.step()[1] == elsewhere


def test_batches_are_taken_ahead_but_none_that_a_partition_could_change() -> None:
    """Of 9 samples in batches of two, with one more to look ahead, four are certain; the fifth awaits a partition."""
    rule = Rule(num_logical_workers=1, batch_size=2, shuffle_partitions=False)
    fleet = Fleet([9, 9], rule, [1], ahead=10)
    fleet.begin(0)
    assert fleet.advance() == "step"
    fleet.step()
    assert len(fleet.streams[0]._taken[0]) == 3


def test_partitions_come_early_enough_for_what_is_made_ahead() -> None:
    rule = Rule(num_logical_workers=2, batch_size=2, shuffle_buffer=3, prefetch=4)
    fleet = Fleet([5] * 40, rule, [2], ahead=4)
    fleet.begin(0)
    while fleet.advance() == "step" and fleet.streams[0].counts().handed_out < 40:
        fleet.step()
        assert [len(fleet.streams[0]._taken[rank]) for rank in range(2)] == [3, 3]


def test_fewer_samples_than_workers_are_refused() -> None:
    fleet = Fleet([2], Rule(num_logical_workers=3, batch_size=2), [3])
    fleet.begin(0)
    with pytest.raises(UserError, match=r"2 samples.*3 logical workers"):
        fleet.advance()


def test_evaluation_takes_fewer_samples_than_workers() -> None:
    rule = Rule(num_logical_workers=3, batch_size=2, shuffle_partitions=False)
    stream = LogicalStream(ListSource([2]), rule, training=False)
    stream.begin(0)
    while (move := stream.next_move()) != "step":
        if move == "hand out":
            stream.hand_out()
        else:
            stream.count()
        stream.mark()
        for rank in range(3):
            stream.changes_of(rank)
        stream.end_round()
    assert [stream.fetch(rank, here=True) for rank in range(3)] == [[(0, 0)], [(0, 1)], []]


def test_no_samples_at_all_is_a_pass_without_steps() -> None:
    fleet = Fleet([0, 0], Rule(num_logical_workers=2, batch_size=2), [1, 1])
    fleet.begin(0)
    assert fleet.advance() == "end"


def test_other_files_are_refused_on_resume() -> None:
    rule = Rule(num_logical_workers=1, batch_size=1)
    saved, changed = LogicalStream(ListSource([3, 4]), rule), LogicalStream(ListSource([3, 5]), rule)
    saved.begin(0)
    with pytest.raises(UserError, match="other partitions"):
        changed.load_state(saved.state())


def test_the_ledger_sees_a_sample_used_twice_or_not_at_all() -> None:
    source = ListSource([4, 3])
    samples = [(p, i) for p, size in enumerate([4, 3]) for i in range(size)]
    whole = content_of(source)
    assert (whole.samples, whole.hash_sum) == (7, content_sum(reversed(samples)))
    assert content_sum(samples[:-1]) != whole.hash_sum
    assert content_sum([*samples[:-1], samples[0]]) != whole.hash_sum

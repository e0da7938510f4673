from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isoscale.batches import BatchChange, due, parse_batch_plan, parse_sizes, plan_text, recorded_changes
from isoscale.data.segments import Segments
from isoscale.errors import UserError


def test_a_plan_is_read_and_written() -> None:
    plan = parse_batch_plan(" 0:32, 400:64 ,500:16")
    assert plan == [BatchChange(0, 32), BatchChange(400, 64), BatchChange(500, 16)]
    assert parse_batch_plan(plan_text(plan)) == plan
    assert parse_batch_plan("0:32,400:64", until=400) == [BatchChange(0, 32)]
    assert parse_batch_plan(None) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0:32,0:64", "step 0 does not come after 0"),
        ("5:32,4:64", "ascending"),
        ("32", "'32' is not STEP:SIZE"),
        ("0:", "is not STEP:SIZE"),
        ("0:0", "'0' is too small"),
        ("-1:4", "'-1' is too small"),
        ("0:4,x:8", "'x' is not a whole number"),
        ("", "is not STEP:SIZE"),
        ("0:1" + ",0:1" * 20_000, "too many entries"),
    ],
)
def test_what_is_no_plan_is_refused_by_name(text: str, said: str) -> None:
    with pytest.raises(UserError, match=r"--batch-plan") as error:
        parse_batch_plan(text)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("sizes", "said"),
    [("16", "sequence"), ((16, 0), "positive"), ((16, True), "positive"), ((8, 16), "32 is not among"), ((), "among")],
)
def test_sizes_are_checked(sizes: object, said: str) -> None:
    with pytest.raises(UserError, match="batch_sizes") as error:
        parse_sizes(sizes, 32, "job.loader(batch_sizes=...)")
    assert said in str(error.value)
    assert parse_sizes([64, 16, 32, 16], 32, "") == (16, 32, 64)


@given(st.lists(st.integers(0, 40), unique=True), st.integers(1, 9))
def test_every_entry_comes_into_force_at_most_once_and_the_last_one_counts(steps: list[int], stride: int) -> None:
    plan = [BatchChange(step, i + 1) for i, step in enumerate(sorted(steps))]
    considered, seen = -1, []
    for step in range(0, 60, stride):
        entry = due(plan, considered, step)
        considered = step
        if entry is not None:
            seen.append(entry)
            assert entry == [e for e in plan if e.step <= step][-1]
    assert seen == sorted(seen, key=lambda e: e.step)
    assert len(set(seen)) == len(seen)
    assert not plan or seen[-1] == plan[-1]


def test_changes_are_read_back_from_a_log_once_each_with_measured_factors() -> None:
    def batch(step: int, to: int, **more: object) -> dict[str, object]:
        return {"event": "batch", "step": step, "from": 1, "to": to, "factor": 2.0, **more}

    events = [
        batch(5, 8),
        {"event": "step", "step": 6},
        batch(9, 16, measured=True, factor=1.7320508075688772),
        {"event": "restart", "step": 0, "reached": 12},
        batch(5, 8),
        batch(12, 4),
    ]
    assert recorded_changes(events) == [BatchChange(5, 8), BatchChange(9, 16, 1.7320508075688772), BatchChange(12, 4)]


@given(
    st.integers(1, 120),
    st.integers(1, 17),
    st.booleans(),
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 17)), max_size=6),
)
def test_a_list_is_read_once_and_in_order_whatever_sizes_come(
    samples: int, size: int, drop_last: bool, changes: list[tuple[int, int]]
) -> None:
    """Each batch begins where the one before ended, and only what `drop_last` drops is left."""
    segments = Segments(samples, size, drop_last=drop_last)
    at = index = 0
    todo = list(changes)
    wait = todo[0][0] if todo else None
    while True:
        if wait == 0:
            new = todo.pop(0)[1]
            if not segments.has_left(index, new):
                break
            segments.cut(index, new)
            size, wait = new, todo[0][0] if todo else None
        if index >= segments.num_steps:
            break
        assert segments.offset_of(index) == at
        assert segments.size_of(index) == size
        count = min(size, samples - at)
        assert count == size or not drop_last
        at, index = at + count, index + 1
        wait = None if wait is None else wait - 1
    if not drop_last and wait != 0:
        assert at == samples
    other = Segments(1, 1, drop_last=drop_last)
    other.load(segments.state())
    assert [other.offset_of(i) for i in range(index)] == [segments.offset_of(i) for i in range(index)]

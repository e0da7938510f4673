from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isoscale.core.reduction.buckets import Bucket, BucketCaps, Layout, first_layout, rebuilt_layout

MIB = 2**20
DTYPES = [torch.float32, torch.float64, torch.bfloat16]


@st.composite
def parameters(draw: st.DrawFn) -> list[torch.Tensor]:
    shapes = st.lists(st.integers(1, 40), min_size=0, max_size=3)
    return [torch.empty(draw(shapes), dtype=draw(st.sampled_from(DTYPES))) for _ in range(draw(st.integers(1, 12)))]


def check(layout: Layout, params: list[torch.Tensor]) -> None:
    assert sorted(i for bucket in layout.buckets for i in bucket.params) == list(range(len(params)))
    for bucket in layout.buckets:
        assert bucket.params
        assert len({params[i].dtype for i in bucket.params}) == 1
        ends = [offset + params[i].numel() for i, offset in zip(bucket.params, bucket.offsets, strict=True)]
        assert list(bucket.offsets) == [0, *ends[:-1]]
        assert bucket.numel == ends[-1]


@settings(max_examples=60, deadline=None)
@given(params=parameters(), cap=st.integers(1, 20_000), find_unused=st.booleans(), data=st.data())
def test_every_parameter_lies_once_and_without_gaps(
    params: list[torch.Tensor], cap: int, find_unused: bool, data: st.DataObject
) -> None:
    caps = BucketCaps(cap, 3 * cap)
    check(first_layout(params, caps, find_unused=find_unused), params)
    order = data.draw(st.permutations(range(len(params))))
    rebuilt = rebuilt_layout(params, order, caps)
    check(rebuilt, params)
    assert rebuilt.final
    assert Layout.from_state(rebuilt.to_state(), params) == rebuilt


def test_before_the_first_backward_one_bucket_holds_all_in_registration_order() -> None:
    params = [torch.empty(3 * MIB), torch.empty(5), torch.empty(40 * MIB // 4)]
    layout = first_layout(params, BucketCaps.from_mb(None), find_unused=False)
    assert layout == Layout((Bucket((0, 1, 2), (0, 3 * MIB, 3 * MIB + 5), 13 * MIB + 5),), final=False)


def test_one_bucket_per_dtype() -> None:
    params = [torch.empty(4), torch.empty(4, dtype=torch.float64), torch.empty(2)]
    layout = first_layout(params, BucketCaps.from_mb(None), find_unused=False)
    assert {bucket.params for bucket in layout.buckets} == {(0, 2), (1,)}


def test_a_search_for_unused_parameters_fixes_the_layout_at_once() -> None:
    params = [torch.empty(MIB // 4), torch.empty(MIB), torch.empty(8)]
    layout = first_layout(params, BucketCaps.from_mb(None), find_unused=True)
    assert layout.final
    # The first MiB is full after the first parameter; the list is reversed.
    assert [bucket.params for bucket in layout.buckets] == [(1, 2), (0,)]


def test_rebuilding_follows_the_order_of_readiness() -> None:
    params = [torch.empty(8), torch.empty(MIB), torch.empty(8)]
    layout = rebuilt_layout(params, [2, 1, 0], BucketCaps.from_mb(None))
    assert [bucket.params for bucket in layout.buckets] == [(2, 1), (0,)]


@pytest.mark.parametrize(
    ("given_mb", "first", "rest"),
    [(None, MIB, 25 * MIB), (1, MIB, MIB), (0.5, MIB // 2, MIB // 2), (40, 40 * MIB, 40 * MIB)],
)
def test_a_given_cap_replaces_the_first_limit_too(given_mb: float | None, first: int, rest: int) -> None:
    assert BucketCaps.from_mb(given_mb) == BucketCaps(first, rest)


def test_state_is_plain() -> None:
    params = [torch.empty(2), torch.empty(3)]
    assert rebuilt_layout(params, [1, 0], BucketCaps.from_mb(None)).to_state() == {"buckets": [[1, 0]], "final": True}

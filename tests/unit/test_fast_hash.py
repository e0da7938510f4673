from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from isoscale.core.encoding.fast_hash import fast_digest
from tests.unit.test_codec import random_bits, trees

NAN = math.nan


def test_it_is_xxh3_over_header_and_bytes() -> None:
    tensor = torch.tensor([1.0, -2.0])
    header = b"\x94\x03\xa7float32\x91\x02\x90"
    assert fast_digest(tensor) == xxhash.xxh3_128_hexdigest(header + tensor.numpy().tobytes())


@pytest.mark.filterwarnings("ignore:ComplexHalf:UserWarning")
@settings(deadline=None)
@given(trees)
def test_every_tree_has_a_digest_and_only_one(tree: Any) -> None:
    assert len(fast_digest(tree)) == 32
    assert fast_digest(tree) == fast_digest(tree)


@settings(deadline=None)
@given(st.dictionaries(st.integers() | st.text(), st.integers()), st.randoms())
def test_order_of_keys_does_not_count(tree: dict[Any, Any], random: Any) -> None:
    items = list(tree.items())
    random.shuffle(items)
    assert fast_digest(dict(items)) == fast_digest(tree)


def test_strides_do_not_count() -> None:
    tensor = torch.randn(2, 3, 4, 5)
    assert fast_digest(tensor) == fast_digest(tensor.to(memory_format=torch.channels_last))
    assert fast_digest(tensor[:, ::2]) == fast_digest(tensor[:, ::2].contiguous())


@settings(deadline=None)
@given(st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.complex128, torch.float8_e4m3fn]), st.data())
def test_one_bit_counts(dtype: torch.dtype, data: st.DataObject) -> None:
    tensor = random_bits(dtype, (3, 5))
    flipped = tensor.clone()
    row = flipped.view(-1).view(torch.uint8)
    row[data.draw(st.integers(0, row.numel() - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert fast_digest([tensor]) != fast_digest([flipped])


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (torch.zeros(2, 3), torch.zeros(3, 2)),
        (torch.zeros(1, dtype=torch.int32), torch.zeros(1)),
        ([torch.zeros(2), torch.zeros(1)], [torch.zeros(1), torch.zeros(2)]),
        ([torch.zeros(0), torch.zeros(1)], [torch.zeros(1)]),
        (0.0, -0.0),
        (1, 1.0),
        (1, True),
        ("a", b"a"),
        ([1], (1,)),
        ({1: 2}, {"1": 2}),
        ({"a": {"b": 1}}, {"a.b": 1}),
        (2**70, 2**70 + 1),
        (NAN, -NAN),
        ({}, []),
    ],
)
def test_what_differs_has_another_digest(a: Any, b: Any) -> None:
    assert fast_digest(a) != fast_digest(b)


def test_what_has_no_bytes_is_refused_with_its_place() -> None:
    with pytest.raises(TypeError, match=r"state\['f'\]"):
        fast_digest({"f": print})

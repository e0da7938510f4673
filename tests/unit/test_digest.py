from __future__ import annotations

import hashlib
import math

import pytest
import torch

from isoscale.core.encoding.digest import digest, flat_state, tensor_digest


def test_digest_is_the_documented_hash() -> None:
    weight, momentum = torch.tensor([[1.0, -2.0]]), torch.tensor([3], dtype=torch.int64)
    total = hashlib.sha256()
    total.update(b"w|torch.float32|(1, 2)|" + weight.numpy().tobytes())
    total.update(b"state.0.m|torch.int64|(1,)|" + momentum.numpy().tobytes())
    assert digest({"net": {"w": weight}}, {"sgd": {"state": {0: {"m": momentum}}, "lr": 0.1}}) == total.hexdigest()


def test_order_of_insertion_does_not_count() -> None:
    a, b = torch.randn(2), torch.randn(3)
    assert digest({"m": {"a": a, "b": b}}, {}) == digest({"m": {"b": b, "a": a}}, {})


def test_a_single_models_name_does_not_count_but_those_of_several_do() -> None:
    one, two = {"w": torch.ones(1)}, {"w": torch.zeros(1)}
    assert digest({"A": one}, {}) == digest({"B": one}, {})
    assert digest({"A": one, "B": two}, {}) != digest({"A": two, "B": one}, {})


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (torch.tensor([0.0]), torch.tensor([-0.0])),
        (torch.tensor([1.0]), torch.tensor([math.nextafter(1.0, 2.0)], dtype=torch.float64)),
        (torch.zeros(2, 3), torch.zeros(3, 2)),
        (torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.float32)),
        (torch.tensor([math.nan]), -torch.tensor([math.nan])),
    ],
)
def test_one_bit_of_difference_is_another_digest(a: torch.Tensor, b: torch.Tensor) -> None:
    assert tensor_digest(a) != tensor_digest(b)


def test_values_count_not_strides() -> None:
    tensor = torch.randn(3, 4)
    assert tensor_digest(tensor) == tensor_digest(tensor.t().contiguous().t())


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.float16, torch.complex64, torch.uint8])
@pytest.mark.parametrize("shape", [(), (0,), (3,)])
def test_every_dtype_and_shape_has_a_digest(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    assert len(tensor_digest(torch.zeros(shape, dtype=dtype))) == 64


def test_models_come_before_optimizers() -> None:
    state = {"w": torch.ones(1)}
    assert digest({"a": state}, {"b": {"x": torch.zeros(1)}}) != digest({"a": {"x": torch.zeros(1)}}, {"b": state})


def test_flat_state_names_every_leaf() -> None:
    state = {"a": {"b": 1}, 3: [2, (4,)], "empty": {}}
    assert list(flat_state(state)) == [("a.b", 1), ("3.0", 2), ("3.1.0", 4)]
    assert list(flat_state(7)) == [("", 7)]

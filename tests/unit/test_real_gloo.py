"""The fact on which all rests: gloo's all-reduce is the ring that `core.reduction.orders` writes down."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from isoscale.core.reduction.orders import ring_sum, tree_sum
from tests.forked import Forked
from tests.unit.gloo_rank import DTYPES, SPECIAL_SIZE, addend, cases
from tests.unit.simulated import bits, same_bits

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What three real processes got, in one start: sums and DDP averages over two and over three of them."""
    directory = tmp_path_factory.mktemp("gloo")
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    script = Path(__file__).with_name("gloo_rank.py")
    processes = [
        Forked(script, str(rank), str(directory), log=directory / f"rank-{rank}.log", environment=environment)
        for rank in range(3)
    ]
    try:
        codes = [process.wait(90) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert codes == [0, 0, 0], [process.output for process in processes]
    return [torch.load(directory / f"rank-{rank}.pt", weights_only=True) for rank in range(3)]


@pytest.mark.parametrize("n", [2, 3])
def test_all_reduce_is_the_ring(ranks: list[Any], n: int) -> None:
    for size, dtype in cases():
        ours = ring_sum([addend(rank, size, dtype) for rank in range(n)])
        for rank in range(n):
            theirs = ranks[rank][0][n, size, str(dtype)]
            # Of a NaN only that it is one: its payload is the vector unit's choice, not the order's.
            both_nan = ours.isnan() & theirs.isnan()
            assert size == SPECIAL_SIZE or not both_nan.any()
            assert ((bits(ours) == bits(theirs)) | both_nan).all(), f"{n} ranks, {size} elements of {dtype}"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [2, 3])
def test_ddp_multiplies_by_the_reciprocal_and_then_sums(ranks: list[Any], n: int, dtype: torch.dtype) -> None:
    ours = ring_sum([addend(rank, 100, dtype) * (1 / n) for rank in range(n)])
    for rank in range(n):
        assert same_bits(ranks[rank][1][n, str(dtype)], ours)


@pytest.mark.parametrize(
    "other",
    [tree_sum, lambda addends: ring_sum([*addends[1:], addends[0]]), lambda addends: ring_sum(addends[::-1])],
    ids=["tree", "rotated", "reversed"],
)
def test_the_values_tell_orders_apart(other: Callable[[list[torch.Tensor]], torch.Tensor]) -> None:
    addends = [addend(rank, 4097, torch.float32) for rank in range(3)]
    assert not same_bits(ring_sum(addends), other(addends))

from __future__ import annotations

import numpy as np
import pytest
import torch

from isoscale.core.totals import Tally, ValueSpec, add_totals, combine
from isoscale.errors import UserError


def test_a_mean_goes_over_logical_workers_in_float64() -> None:
    tally = Tally()
    for rank, loss in enumerate([0.1, 0.2, 0.7]):
        tally.log(rank, {"loss": torch.tensor(loss, requires_grad=True)})
    combined = combine(tally.values())
    values = [torch.tensor(v).double().item() for v in (0.1, 0.2, 0.7)]
    assert combined.means == {"loss": (values[0] + values[1] + values[2]) / 3}
    assert combined.by_rank == {"loss": dict(enumerate(values))}


def test_several_values_of_one_turn_are_averaged_first() -> None:
    tally = Tally()
    tally.log(0, {"loss": 1.0})
    tally.log(0, {"loss": 2.0})
    tally.log(1, {"loss": 4})
    assert combine(tally.values()).means == {"loss": (1.5 + 4.0) / 2}


def test_the_order_of_arrival_does_not_count() -> None:
    values, means = [1e16, 1.0, -1e16, 3.0], []
    for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
        tally = Tally()
        for rank in order:
            tally.log(rank, {"x": values[rank]})
            tally.sum(rank, {"y": values[rank]})
        combined = combine(tally.values())
        means.append((combined.means["x"], combined.sums["y"]))
    assert means[0] == means[1]
    assert means[0][1] == ((1e16 + 1.0) - 1e16) + 3.0


def test_integers_are_exact() -> None:
    tally = Tally()
    tally.sum(0, {"n": 2**60})
    tally.sum(1, {"n": torch.tensor(1, dtype=torch.uint8)})
    tally.sum(1, {"n": True})
    assert combine(tally.values()).sums == {"n": 2**60 + 2}


def test_small_floats_are_widened_before_they_are_added() -> None:
    tally = Tally()
    tally.sum(0, {"x": torch.tensor([60000.0], dtype=torch.float16)})
    tally.sum(0, {"x": torch.tensor([60000.0], dtype=torch.float16)})
    total = combine(tally.values()).sums["x"]
    assert isinstance(total, torch.Tensor)
    assert (total.dtype, total.tolist()) == (torch.float64, [2 * 60000.0])


def test_a_sum_is_a_copy_of_what_was_given() -> None:
    tally, counter = Tally(), torch.tensor([1, 2])
    tally.sum(0, {"n": counter})
    counter.zero_()
    assert combine(tally.values()).sums["n"].tolist() == [1, 2]  # type: ignore[union-attr]


@pytest.mark.parametrize("value", [np.float32(2.5), np.int64(3), np.bool_(True)])
def test_numpy_scalars_are_numbers(value: np.generic) -> None:
    tally = Tally()
    tally.sum(0, {"x": value})
    assert combine(tally.values()).sums["x"] == value.item()


def test_what_is_no_number_is_refused_by_name() -> None:
    with pytest.raises(UserError, match=r"step\.sum\(names=\.\.\.\)=list"):
        Tally().sum(0, {"names": ["a"]})


def test_specs_sort_and_know_their_size() -> None:
    tally = Tally()
    tally.sum(0, {"b": torch.zeros(2, 3), "a": 1})
    tally.log(0, {"a": 1.0})
    assert sorted(tally.values()) == [ValueSpec("a", "int"), ValueSpec("a", "mean"), ValueSpec("b", "float", (2, 3))]
    assert [spec.numel for spec in sorted(tally.values())] == [1, 1, 6]


def test_combining_leaves_the_values_alone() -> None:
    tally = Tally()
    tally.sum(0, {"x": 1.0})
    tally.sum(1, {"x": 2.0})
    values = tally.values()
    assert combine(values).sums == combine(values).sums == {"x": 3.0}


def test_running_totals() -> None:
    totals: dict[str, int | float | torch.Tensor] = {}
    first = torch.tensor([1.0])
    add_totals(totals, {"n": 1, "x": first})
    add_totals(totals, {"n": 2, "x": torch.tensor([2.0])})
    assert totals["n"] == 3
    assert totals["x"].tolist() == [3.0]  # type: ignore[union-attr]
    assert first.tolist() == [1.0]


def test_a_mean_of_many_is_what_additions_of_tensors_one_by_one_give() -> None:
    generator = torch.Generator().manual_seed(3)
    exponents = torch.randint(-320, 300, (999,), generator=generator).double()
    values = torch.randn(999, dtype=torch.float64, generator=generator) * 10.0**exponents
    values = torch.cat([values, torch.tensor([-0.0, 5e-324])])[torch.randperm(1001, generator=generator)]
    total = values[0].clone()
    for value in values[1:]:
        total += value
    tally = Tally()
    for rank, value in enumerate(values.tolist()):
        tally.log(rank, {"x": value})
    combined = combine(tally.values())
    assert combined.means["x"].hex() == (total.item() / 1001).hex()
    assert [combined.by_rank["x"][rank].hex() for rank in range(1001)] == [v.hex() for v in values.tolist()]


def test_what_one_turn_gave_outlives_the_tensors_that_it_logged() -> None:
    tally, running = Tally(), torch.tensor(3.0)
    tally.log(1, {"loss": running})
    tally.log(1, {"loss": 5.0})
    tally.sum(1, {"seen": 2})
    tally.gather(1, {"names": "one"})
    tally.log(0, {"loss": 7.0})
    part, again = tally.of(1), Tally()
    running.fill_(100.0)
    again.gather(0, {"names": "none"})
    again.sum(0, {"seen": 1})
    again.log(0, {"loss": 7.0})
    again.add(part)
    combined = combine(again.values())
    assert (combined.by_rank, combined.sums) == ({"loss": {0: 7.0, 1: 4.0}}, {"seen": 3})
    assert again.gathered == {"names": {0: ["none"], 1: ["one"]}}

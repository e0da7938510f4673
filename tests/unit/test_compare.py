"""Comparing two runs, blaming a rank and finding the first difference of two traces: all pure."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from isoscale.errors import UserError
from isoscale.runtime.reference.outcome import Outcome
from isoscale.runtime.tools.compare import Side, compare, same_bits
from isoscale.runtime.tools.explain import Record, first_difference, sentence, what_was_equal
from isoscale.runtime.tools.replay import RunLog, check_request, compare_loss, read_log
from isoscale.runtime.tools.verify import Exit, blame, reference_spec
from isoscale.types import JobSpec


def side(**changes: Any) -> Side:
    values = [{"loss": {0: (0.5).hex(), 1: (0.25).hex()}}, {"loss": {0: (0.4).hex(), 1: math.nan.hex()}}]
    state = {
        "model": {"weight": torch.tensor([[1.0, 2.0], [3.0, math.nan]]), "bias": torch.zeros(2)},
        "optimizer": {"state": {0: {"momentum_buffer": torch.ones(2, 2)}}, "param_groups": [{"lr": 0.1}]},
        "step": 2,
    }
    return replace(Side(step=2, digest="d", values=values, state=state), **changes)


def test_equal_runs_are_equal_nan_included() -> None:
    report = compare(side(), side())
    assert report.equal
    assert [(check.what.split()[0], check.count) for check in report.checks] == [
        ("steps", 2),
        ("logged", 4),
        ("tensors", 2),
        ("tensors", 1),
        ("plain", 1),
    ]


def test_one_bit_of_a_tensor_is_named_with_its_place_and_values() -> None:
    other = side()
    other.state["model"]["weight"][1, 0] = torch.nextafter(torch.tensor(3.0), torch.tensor(4.0))
    report = compare(side(), other)
    first = report.checks[2].first
    assert not report.equal
    assert first is not None
    assert first.where == "model.weight[1, 0] (1 of 4 elements)"
    assert (first.elastic, first.reference) == ("3", "3.00000024")


def test_minus_zero_is_not_zero_and_dtypes_and_shapes_count() -> None:
    assert not same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert not same_bits(torch.zeros(2), torch.zeros(2, dtype=torch.float64))
    assert not same_bits(torch.zeros(2), torch.zeros(1, 2))
    assert same_bits(torch.ones(4, 3).t(), torch.ones(3, 4))


def test_the_first_logged_value_that_differs_is_named() -> None:
    values = [side().values[0], {"loss": {0: (0.4).hex()}}]
    report = compare(side(), side(values=values))
    first = report.checks[1].first
    assert first is not None
    assert first.where == "step 2, logical worker 1: loss"
    assert first.reference == "not logged"


def test_steps_kept_values_and_missing_names_are_compared() -> None:
    state = {**side().state, "state": {"best": 1.0}}
    state["optimizer"] = {**state["optimizer"], "param_groups": [{"lr": 0.1 + 2**-56}]}
    report = compare(side(), side(state=state, step=3))
    assert report.checks[0].differing == 1
    assert report.checks[4].differing == 2
    assert report.checks[4].first is not None
    assert report.checks[4].first.where == "optimizer.param_groups.0.lr"


def test_an_unequal_digest_alone_is_a_difference() -> None:
    assert not compare(side(), side(digest="e")).equal


def test_blame_goes_to_the_silent_rank_then_to_the_oldest_error() -> None:
    fine = Exit(rank=0, reason="exit code 0", outcome=Outcome(ok=True))
    late = Exit(rank=1, reason="exit code 1", outcome=Outcome(ok=False, t=2.0))
    early = Exit(rank=2, reason="exit code 1", outcome=Outcome(ok=False, t=1.0))
    silent = Exit(rank=3, reason="killed by SIGKILL", outcome=None)
    assert blame([fine]) is None
    assert blame([fine, late, early]) is early
    assert blame([late, silent, early]) is silent


def test_the_reference_goes_at_most_one_step_further() -> None:
    spec = JobSpec(workers=2, out="v")
    assert reference_spec(spec, 7).until == 8
    assert reference_spec(replace(spec, until=5), 7).until == 5


def record(place: str = "turn", rank: int = 0, kind: str = "forward", name: str = "op", **rest: Any) -> Record:
    return Record(**{"step": 1, "place": place, "rank": rank, "kind": kind, "name": name, "digest": "a", **rest})


def test_traces_are_compared_in_the_order_of_places_not_of_files() -> None:
    before, first, second = record("before", -1, "all", ""), record(rank=0), record(rank=1, module="drop (Noise)")
    other = [replace(second, digest="b"), first, before]
    assert first_difference([before, first, second], [second, first, before]) is None
    finding = first_difference([before, first, second], other)
    assert finding is not None
    assert sentence(finding) == "step 1, logical worker 1: forward operator op in module drop (Noise) gives other bits"
    assert what_was_equal(finding) == "the state before the step, the turns of the logical workers before it"


@pytest.mark.parametrize(
    ("elastic", "reference", "text"),
    [
        (record("before", -1, "tensor", "w"), {"digest": "b"}, "before the first step: tensor w differs"),
        (record("before", -1, "tensor", "w", step=4), {"digest": "b"}, "outside turns after step 3: tensor w differs"),
        (
            record("after", -1, "value", "lr", shown="0.1"),
            {"digest": "b", "shown": "0.2"},
            "outside turns after step 1: value lr differs (elastic 0.1, reference 0.2)",
        ),
        (record(kind="batch", name=""), {"digest": "b"}, "step 1, logical worker 0: gets another batch"),
        (
            record(kind="gradient", name="w"),
            {"digest": "b"},
            "step 1, logical worker 0: the local gradient of w differs",
        ),
        (
            record(),
            {"name": "other"},
            "step 1, logical worker 0: the elastic run has forward operator op outside any module where the reference "
            "has forward operator other outside any module",
        ),
        (record("end", -1, "tensor", "w"), {"digest": "b"}, "outside turns after the last step: tensor w differs"),
    ],
)
def test_sentences(elastic: Record, reference: dict[str, Any], text: str) -> None:
    finding = first_difference([elastic], [replace(elastic, **reference)])
    assert finding is not None
    assert sentence(finding) == text


def test_an_operator_that_only_one_side_has_is_named() -> None:
    finding = first_difference([record(), record(name="more")], [record()])
    assert finding is not None
    assert "only the elastic run has forward operator more" in sentence(finding)


def test_losses_are_compared_by_bits_and_nan_equals_nan() -> None:
    assert compare_loss(1, math.nan, math.nan) is None
    assert compare_loss(1, None, None) is None
    assert compare_loss(1, 0.0, -0.0) is not None
    assert compare_loss(1, None, 0.5) is not None


def test_a_request_beyond_the_log_is_refused(tmp_path: Path) -> None:
    log = RunLog(spec=JobSpec(workers=2), kind="cpu", losses={1: 0.5}, audits={}, finished=None)
    check_request(log, 1, 1)
    for step, rank in [(0, None), (2, None), (1, 2), (1, -1)]:
        with pytest.raises(UserError):
            check_request(log, step, rank)
    (tmp_path / "summary.json").write_text("{")
    with pytest.raises(UserError, match=r"summary\.json cannot be read"):
        read_log(tmp_path)

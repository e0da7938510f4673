from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from isoscale.core.encoding.digest import digest
from isoscale.core.reduction.exchange import LocalExchange
from isoscale.core.rules import Turn
from isoscale.core.tracked import TrackedModel
from isoscale.errors import UserError
from isoscale.runtime.training.state import JobState, atomic_save, plain


def state_with(*modules: nn.Module) -> JobState:
    state = JobState()
    for module in modules:
        name = state.new_model_name(module)
        model = TrackedModel(
            name,
            module,
            Turn(),
            LocalExchange(1),
            order="ddp",
            find_unused_parameters=False,
            broadcast_buffers=True,
            bucket_cap_mb=None,
        )
        state.models[name] = model
    return state


def test_models_are_named_after_their_class() -> None:
    assert list(state_with(nn.Linear(1, 1), nn.Linear(1, 1), nn.BatchNorm1d(1)).models) == [
        "Linear",
        "Linear-2",
        "BatchNorm1d",
    ]


def test_final_holds_one_model_bare_and_several_by_name() -> None:
    net = nn.Linear(2, 1)
    state = state_with(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)
    state.keep("optimizer", optimizer)
    final = state.final(7)
    assert set(final) == {"model", "optimizer", "step"}
    assert final["step"] == 7
    assert torch.equal(final["model"]["weight"], net.weight)
    assert "models" in state_with(nn.Linear(1, 1), nn.Linear(1, 1)).final(0)
    state.values["best"] = 0.5
    assert state.final(7)["state"] == {"best": 0.5}


def test_final_is_a_copy() -> None:
    net = nn.Linear(1, 1)
    final = state_with(net).final(0)
    with torch.no_grad():
        net.weight.fill_(9.0)
    assert final["model"]["weight"].item() != 9.0


@pytest.mark.parametrize("name", ["model", "models", "step", "state", "taken"])
def test_names_are_kept_once(name: str) -> None:
    state = JobState()
    state.keep("taken", nn.Linear(1, 1))
    with pytest.raises(UserError, match=name):
        state.keep(name, nn.Linear(1, 1))


def test_what_has_no_state_cannot_be_kept() -> None:
    with pytest.raises(UserError, match=r"state_dict.*job\.state"):
        JobState().keep("best", 3.0)


def test_the_digest_covers_models_and_optimizers_only() -> None:
    net = nn.Linear(2, 1)
    state = state_with(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)
    state.keep("optimizer", optimizer)
    state.keep("schedule", torch.optim.lr_scheduler.StepLR(optimizer, 3))
    assert state.digest() == digest({"x": net.state_dict()}, {"y": optimizer.state_dict()})
    before = state.digest()
    state.values["best"] = torch.ones(1)
    assert state.digest() == before
    net.weight.grad = net.bias.grad = None
    net.weight.grad = torch.ones_like(net.weight)
    optimizer.step()
    assert state.digest() != before


def test_audited_names_every_leaf() -> None:
    state = state_with(nn.Linear(1, 1))
    state.values["best"] = {"loss": 0.5}
    names = dict(state.audited())
    assert set(names) == {"Linear.weight", "Linear.bias", "job.state.best.loss"}
    assert names["job.state.best.loss"] == "0.5"


def test_learning_rates_of_all_groups() -> None:
    net = nn.Linear(1, 1)
    state = state_with(net)
    state.keep("optimizer", torch.optim.SGD([{"params": [net.weight], "lr": 0.1}, {"params": [net.bias]}], lr=0.2))
    assert state.learning_rates() == [0.1, 0.2]


def test_tensors_are_those_of_models_and_kept_things() -> None:
    state = state_with(nn.BatchNorm1d(2))
    other = nn.Linear(1, 1)
    state.keep("ema", other)
    found = {t.data_ptr() for t in state.tensors()}
    assert found >= {t.data_ptr() for t in [*state.models["BatchNorm1d"].module.buffers(), *other.parameters()]}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (OrderedDict(a=1), {"a": 1}),
        ((1, [2.0, "x", None, b"y", True]), (1, [2.0, "x", None, b"y", True])),
        ({3}, [3]),
        (np.int64(3), 3),
        (np.float32(0.5), 0.5),
    ],
)
def test_plain_values(value: Any, expected: Any) -> None:
    made = plain(value, "x")
    assert made == expected
    assert type(made) is type(expected)


def test_what_needs_code_is_refused_by_path() -> None:
    with pytest.raises(UserError, match=r"job\.state\.a\.1=object"):
        plain({"a": [1, object()]}, "job.state")


def test_plain_keeps_strides() -> None:
    tensor = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    assert plain(tensor, "x").stride() == tensor.stride()


def test_a_file_is_whole_or_absent(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "final.pt"
    atomic_save({"a": torch.ones(2)}, path)
    assert torch.load(path, weights_only=True)["a"].tolist() == [1.0, 1.0]
    with pytest.raises(AttributeError):
        atomic_save(lambda: None, path)
    assert torch.load(path, weights_only=True)["a"].tolist() == [1.0, 1.0]
    assert [p.name for p in path.parent.iterdir()] == ["final.pt"]

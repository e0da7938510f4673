"""The reference gives a script its own module back: nothing that the script can ask for tells that DDP runs it."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from isoscale.runtime.reference.model import stock_ddp


class Net(nn.Module):
    limit = 3

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU())
        self.head = nn.Linear(4, 2)
        self.register_buffer("seen", torch.zeros(1))
        self.calls: list[str] = []

    def forward(self, x: torch.Tensor, *, double: bool = False) -> torch.Tensor:
        self.calls.append("forward")
        y: torch.Tensor = self.head(self.body(x))
        return 2 * y if double else y

    def twice(self, x: torch.Tensor) -> Any:
        return self(x), self(x)


@pytest.fixture(autouse=True)
def one_process(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def surface(module: nn.Module) -> dict[str, Any]:
    """Everything public that can be had without an argument, as plain values."""
    found: dict[str, Any] = {"class": module.__class__, "text": repr(module), "dir": dir(module)}
    walks = [name for name in dir(module) if name.startswith("named_") or name in ("children", "modules", "parameters")]
    assert {"named_children", "named_modules", "named_buffers", "named_parameters"} <= set(walks)
    for name in walks:
        found[name] = [str(type(one[1] if isinstance(one, tuple) else one)) for one in getattr(module, name)()]
        if name.startswith("named_"):
            found[f"{name} names"] = [one[0] for one in getattr(module, name)()]
    found["state"] = {key: value.tolist() for key, value in module.state_dict().items()}
    found["attributes"] = sorted(key for key in vars(module) if not key.startswith("_"))
    found["isinstance"] = [isinstance(module, kind) for kind in (Net, nn.Module, nn.Sequential)]
    found["modules"] = [isinstance(one, Net) for one in module.modules()]
    return found


def test_the_public_surface_is_the_modules() -> None:
    torch.manual_seed(0)
    bare = Net()
    model, ddp = stock_ddp(copy.deepcopy(bare))
    assert surface(model) == surface(bare)
    assert ddp.module is model
    model.limit = 5
    assert (model.limit, bare.limit, type(model).limit) == (5, 3, 3)
    assert model.get_submodule("body.0") is model.body[0]
    assert model.train() is model
    assert not model.eval().body.training


def test_calling_it_calls_ddp_once_and_its_hooks_once() -> None:
    model, ddp = stock_ddp(Net())
    called: list[str] = []
    ddp.register_forward_pre_hook(lambda *args: called.append("ddp"))
    model.register_forward_pre_hook(lambda *args: called.append("module"))
    model(torch.ones(4, 3), double=True).sum().backward()
    assert called == ["ddp", "module"]
    assert model.calls == ["forward"]
    assert model.head.weight.grad is not None
    model.eval()
    with torch.no_grad():
        model.twice(torch.ones(4, 3))
    assert called[2:] == ["ddp", "module"] * 2


def test_after_an_error_in_forward_it_is_called_by_ddp_again() -> None:
    model, ddp = stock_ddp(Net())
    called: list[str] = []
    ddp.register_forward_pre_hook(lambda *args: called.append("ddp"))
    with pytest.raises(RuntimeError):
        model(torch.ones(4, 5))
    model(torch.ones(4, 3))
    assert called == ["ddp", "ddp"]


@pytest.mark.parametrize("how", ["deepcopy", "pickle", "torch.save"])
def test_a_copy_is_a_module_that_nobody_runs(how: str) -> None:
    model, ddp = stock_ddp(Net())
    called: list[str] = []
    ddp.register_forward_pre_hook(lambda *args: called.append("ddp"))
    if how == "deepcopy":
        other = copy.deepcopy(model)
    elif how == "pickle":
        other = pickle.loads(pickle.dumps(model))
    else:
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        other = torch.load(file, weights_only=False)
    assert type(other) is Net
    other(torch.ones(4, 3))
    assert called == []
    model(torch.ones(4, 3))
    assert called == ["ddp"]


def test_parts_of_a_sequence_are_sequences() -> None:
    model, _ = stock_ddp(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
    assert len(model) == 3
    assert type(model[:2]) is nn.Sequential
    assert [type(one).__name__ for one in model] == ["Linear", "ReLU", "Linear"]

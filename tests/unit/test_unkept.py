from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from isoscale.core.unkept import AttributeWatch, VariableWatch, script_variables


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.calls = 0
        self.history: list[float] = []
        self.table = {"a": 1}
        self.last = torch.zeros(1)
        self.seen: set[int] = set()
        self.other = object()


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda net: setattr(net, "calls", 1), "calls"),
        (lambda net: net.history.append(1.0), "history"),
        (lambda net: net.table.update(a=2), "table"),
        (lambda net: net.table.update(b=2), "table"),
        (lambda net: net.last.add_(1), "last"),
        (lambda net: setattr(net, "last", torch.zeros(1)), "last"),
        (lambda net: net.seen.add(3), "seen"),
        (lambda net: setattr(net, "other", object()), "other"),
        (lambda net: setattr(net, "new", 1), "new"),
        (lambda net: setattr(net.layer, "calls", 1), "layer.calls"),
    ],
)
def test_a_changed_attribute_is_named(change: Callable[[Net], Any], name: str) -> None:
    net = Net()
    watch = AttributeWatch(net)
    change(net)
    assert watch.changed() == name


@pytest.mark.parametrize(
    "change",
    [
        lambda net: None,
        lambda net: net.train(False),
        lambda net: net.layer.weight.data.add_(1),
        lambda net: net.register_buffer("b", torch.ones(1)),
        lambda net: net.register_forward_hook(lambda *args: None),
        lambda net: net.layer(torch.ones(1, 2)).sum().backward(),
    ],
)
def test_parameters_buffers_hooks_and_mode_are_no_attributes(change: Callable[[Net], Any]) -> None:
    net = Net()
    watch = AttributeWatch(net)
    change(net)
    assert watch.changed() is None


def optimizer_with_state(param: torch.Tensor) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD([param], lr=0.1, momentum=0.9)
    param.grad = torch.ones_like(param)
    optimizer.step()
    return optimizer


def test_variables_that_change_in_place_are_found() -> None:
    param = nn.Parameter(torch.ones(2))
    variables = {
        "net": Net(),
        "average": [torch.zeros(1)],
        "sums": {"x": torch.zeros(1)},
        "sgd": optimizer_with_state(param),
    }
    changes: dict[str, Callable[[], Any]] = {
        "net": lambda: variables["net"].layer.weight.data.add_(1),
        "average": lambda: variables["average"][0].add_(1),
        "sums": lambda: variables["sums"]["x"].add_(1),
        "sgd": lambda: variables["sgd"].step(),
    }
    for name, change in changes.items():
        watch = VariableWatch(variables, [param])
        assert watch.changed(variables, [param]) is None
        with torch.no_grad():
            if name == "net":
                variables["net"].layer.weight.add_(1)
            else:
                change()
        assert watch.changed(variables, [param]) == name


def test_what_is_kept_may_change() -> None:
    net = Net()
    kept = [*net.parameters(), *net.buffers()]
    watch = VariableWatch({"net": net}, kept)
    with torch.no_grad():
        net.layer.weight.add_(1)
    assert watch.changed({"net": net}, kept) is None


def test_what_is_bound_anew_is_a_temporary() -> None:
    watch = VariableWatch({"batch": [torch.zeros(1)]}, [])
    assert watch.changed({"batch": [torch.ones(1)]}, []) is None
    assert watch.changed({}, []) is None


def test_a_list_that_only_grows_is_a_record() -> None:
    losses = [torch.zeros(1)]
    watch = VariableWatch({"losses": losses}, [])
    losses.append(torch.ones(1))
    assert watch.changed({"losses": losses}, []) is None
    losses[0] = torch.ones(1)
    assert watch.changed({"losses": losses}, []) == "losses"


def test_numbers_and_strings_are_not_watched() -> None:
    watch = VariableWatch({"n": 1, "s": "x"}, [])
    assert watch.changed({"n": 2, "s": "y"}, []) is None


def test_variables_of_the_script_reach_out_to_the_training_function() -> None:
    def train() -> dict[str, Any]:
        outer, both = 1, "outer"

        def inner() -> dict[str, Any]:
            both = "inner"  # noqa: F841
            return script_variables(sys._getframe(), train.__code__)

        variables = inner()
        assert (outer, both) == (1, "outer")
        return variables

    variables = train()
    assert (variables["outer"], variables["both"]) == (1, "inner")


def test_frames_of_other_files_are_passed_over() -> None:
    def train() -> dict[str, Any]:
        mine = 1  # noqa: F841
        names: dict[str, Any] = {"script_variables": script_variables, "sys": sys, "code": train.__code__}
        exec(compile("theirs = 2\nfound = script_variables(sys._getframe(), code)", "library.py", "exec"), names)
        return names["found"]  # type: ignore[no-any-return]

    found = train()
    assert found["mine"] == 1
    assert "theirs" not in found


def test_without_the_training_function_nothing_is_looked_at() -> None:
    assert script_variables(sys._getframe(), None) == {}
    assert script_variables(None, None) == {}

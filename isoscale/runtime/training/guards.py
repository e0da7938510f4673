"""What a process of a job must not do behind the job's back, caught where it happens.

`optimizer.step()` inside a turn, `backward()` outside of one, collectives of the user's and Hugging Face's Accelerator
are intercepted for as long as a job runs in the process. The interception is undone afterwards, so that a notebook
stays usable.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn

import torch.autograd
import torch.distributed
import torch.distributed.distributed_c10d as c10d
from torch.optim.optimizer import register_optimizer_step_pre_hook

from isoscale.core.engine import StepEngine

__all__ = ["guarded"]

#: what every Accelerator, and Hugging Face's Trainer by it, makes first
_ACCELERATE = "accelerate.state"


@contextmanager
def guarded(engine: StepEngine) -> Iterator[None]:
    def refuse(*args: object, **kwargs: object) -> NoReturn:
        if engine.turn.logical_rank is not None:
            raise engine.turn.error(
                "a torch.distributed call inside a turn would meet other logical workers of the same process",
                "report numbers with step.sum or step.log; read step.totals after the inner loop",
            )
        raise engine.turn.error(
            "torch.distributed has no default group in a job: the number of processes is not the script's business",
            "use step.sum, loader.totals and job.is_main",
        )

    def refuse_accelerator(*args: object, **kwargs: object) -> NoReturn:
        raise engine.turn.error(
            "an Accelerator, or a Trainer that makes one, takes every executor for the main process of a job of one",
            "use job.model, job.loader, job.is_main and job.num_logical_workers in its place (docs/porting.md)",
        )

    def backward(*args: Any, **kwargs: Any) -> None:
        original(*args, **kwargs)
        engine.after_backward()

    original = torch.autograd.backward
    hook = register_optimizer_step_pre_hook(lambda optimizer, args, kwargs: engine.before_optimizer_step())
    with ExitStack() as undo:
        undo.callback(hook.remove)
        # `Tensor.backward` looks it up there.
        _replace(undo, torch.autograd, "backward", backward)
        # Functions look the default group up in their own module; `init_process_group` is also exported by name.
        for module, name in (
            (c10d, "_get_default_group"),
            (c10d, "init_process_group"),
            (torch.distributed, "init_process_group"),
        ):
            _replace(undo, module, name, refuse)
        _watch_accelerate(undo, refuse_accelerator)
        yield


def _replace(undo: ExitStack, owner: Any, name: str, value: object) -> None:
    undo.callback(setattr, owner, name, getattr(owner, name))
    setattr(owner, name, value)


def _watch_accelerate(undo: ExitStack, refuse: Callable[..., NoReturn]) -> None:
    """Now, or as soon as somebody imports it."""
    module = sys.modules.get(_ACCELERATE)
    if module is not None:
        if module.PartialState._shared_state:
            refuse()
        _replace(undo, module.PartialState, "__init__", refuse)
        return
    finder = _OnImport(_ACCELERATE, lambda made: _replace(undo, made.PartialState, "__init__", refuse))
    sys.meta_path.insert(0, finder)
    undo.callback(sys.meta_path.remove, finder)


class _OnImport:
    """As the first of `sys.meta_path`: finds what the others find, and looks at one module once it has run."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._then = then
        self._looking = False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._name or self._looking:
            return None
        self._looking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._looking = False
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            run = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                self._then(module)

            loader.exec_module = exec_module
        return spec

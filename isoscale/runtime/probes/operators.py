"""Sees every operator of one turn: forward operators with their module, backward nodes, gradients of parameters.

For `verify --explain`. Forward operators come through a dispatch mode, module paths through global module hooks,
backward nodes through hooks on the graph, set when `backward` is called. Views and uninitialised memory are passed
over, and so is what isoscale and DDP do on their own account: only what both sides must have in common is reported.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch._ops import OpOverload
from torch.autograd.graph import Node
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.hooks import RemovableHandle

from isoscale.core.encoding.digest import flat_state

__all__ = ["OperatorTrace", "bits"]

#: kind ("forward", "backward", "gradient"), name, module, digest
Emit = Callable[[str, str, str, str], None]

_TORCH = str(Path(torch.__file__).parent)
_PACKAGE = str(Path(__file__).resolve().parents[2])
_RECIPES = str(Path(_PACKAGE) / "recipes")
#: memory that nobody has written yet, and numbers read out of tensors that were seen before
_SKIPPED = ("aten.empty", "aten.new_empty", "aten._local_scalar_dense", "aten.lift_fresh")


def bits(value: object) -> str:
    """A digest of everything in `value`: bits of tensors, the text of the rest."""
    total = hashlib.sha256()
    for path, leaf in flat_state(value):
        total.update(f"{path}|".encode())
        total.update(_leaf_bits(leaf))
    return total.hexdigest()[:16]


class OperatorTrace:
    """Active between `start` and `stop`, for one turn. `modules` are the job's models by name."""

    def __init__(self, emit: Emit, modules: Mapping[str, torch.nn.Module]) -> None:
        self._emit = emit
        self._labels: dict[int, str] = {}
        self._params: dict[int, str] = {}
        for model, module in modules.items():
            prefix = f"{model}." if len(modules) > 1 else ""
            for path, child in module.named_modules():
                self._labels[id(child)] = f"{prefix}{path} ({type(child).__name__})" if path else type(child).__name__
            self._params |= {id(p): f"{prefix}{path}" for path, p in module.named_parameters()}
        self._stack: list[tuple[torch.nn.Module, list[Node | None]]] = []
        self._owner: dict[Node, str] = {}
        self._in_backward = False
        self._exits = ExitStack()

    def start(self) -> None:
        for handle in (
            register_module_forward_pre_hook(self._enter_module),
            register_module_forward_hook(self._leave_module, always_call=True),
        ):
            self._exits.callback(handle.remove)
        self._exits.enter_context(self._backward_watched())
        self._exits.enter_context(_Dispatch(self._on_operator))

    def stop(self) -> None:
        self._exits.close()
        self._stack.clear()
        self._owner.clear()

    # ---- forward ----

    def _on_operator(self, name: str, out: object) -> None:
        top = self._stack[-1][0] if self._stack else None
        if self._in_backward or isinstance(top, DistributedDataParallel) or _is_ours(sys._getframe(2)):
            return
        self._emit("forward", name, self._label(), bits(out))

    def _label(self) -> str:
        if not self._stack:
            return ""
        module = self._stack[-1][0]
        return self._labels.get(id(module), type(module).__name__)

    def _enter_module(self, module: torch.nn.Module, args: object) -> None:
        inputs = [leaf.grad_fn for _, leaf in flat_state(args) if isinstance(leaf, torch.Tensor)]
        self._stack.append((module, inputs))

    def _leave_module(self, module: torch.nn.Module, args: object, out: object) -> None:
        if not self._stack or self._stack[-1][0] is not module:
            return
        label, inputs = self._label(), self._stack.pop()[1]
        if isinstance(module, DistributedDataParallel) or self._in_backward:
            return
        # Nodes that no inner module has claimed, back to where this module's inputs came from.
        roots = [leaf.grad_fn for _, leaf in flat_state(out) if isinstance(leaf, torch.Tensor)]
        for node in _graph(roots, stop=lambda node: node in self._owner or any(node is i for i in inputs)):
            self._owner[node] = label

    # ---- backward ----

    @contextmanager
    def _backward_watched(self) -> Iterator[None]:
        original = torch.autograd.backward

        def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
            with ExitStack() as hooks:
                for node in _graph([root.grad_fn for root in roots], stop=lambda node: False):
                    handle = self._hook(node)
                    if handle is not None:
                        hooks.callback(handle.remove)
                self._in_backward = True
                try:
                    original(tensors, *args, **kwargs)
                finally:
                    self._in_backward = False

        torch.autograd.backward = backward
        try:
            yield
        finally:
            torch.autograd.backward = original

    def _hook(self, node: Node) -> RemovableHandle | None:
        name, module = node.name(), self._owner.get(node, "")
        if "DDPSink" in name:
            return None
        if hasattr(node, "variable"):
            param = self._params.get(id(node.variable), "a tensor that is no parameter of the model")
            return node.register_prehook(lambda grads: self._emit("gradient", param, "", bits(grads)))
        return node.register_hook(lambda grads, _: self._emit("backward", name, module, bits(grads)))


class _Dispatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, on_operator: Callable[[str, object], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._on_operator = on_operator

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None
    ) -> object:
        out = func(*args, **(kwargs or {}))
        name = str(func)
        if not name.startswith(_SKIPPED) and not _is_view(func):
            self._on_operator(name, out)
        return out


def _is_view(func: OpOverload) -> bool:
    returns = func._schema.returns
    return bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)


def _is_ours(frame: FrameType | None) -> bool:
    """Was the operator called by isoscale itself (`step.log`, checks), as opposed to the script?"""
    while frame is not None and frame.f_code.co_filename.startswith((_TORCH, __file__)):
        frame = frame.f_back
    name = frame.f_code.co_filename if frame is not None else ""
    return name.startswith(_PACKAGE) and not name.startswith(_RECIPES)


def _graph(roots: Sequence[Node | None], *, stop: Callable[[Node], bool]) -> list[Node]:
    """Every node reachable from `roots`, in the order found; those at which to stop are left out."""
    found: dict[Node, None] = {}
    waiting = [root for root in roots if root is not None]
    while waiting:
        node = waiting.pop()
        if node in found or stop(node):
            continue
        found[node] = None
        waiting += [following for following, _ in node.next_functions if following is not None]
    return list(found)


def _leaf_bits(leaf: object) -> bytes:
    if not isinstance(leaf, torch.Tensor):
        text = repr(leaf)
        return (type(leaf).__name__ if " at 0x" in text else text).encode()
    head = f"{leaf.dtype}|{tuple(leaf.shape)}|".encode()
    try:
        flat = leaf.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
        return head + (flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
    except (RuntimeError, TypeError, NotImplementedError):
        return head  # sparse, quantised and the like: shape and dtype only

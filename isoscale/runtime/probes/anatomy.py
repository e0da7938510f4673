"""Looks into a job from inside its executor: what its models are made of and what their modules compute.

For `isoscale check`. A probe that watches the first turn to learn with what each module is called; when training is
over, every module that was called runs once more on its own, forward and backward, on values that are the same bits
everywhere. So the digests of two kinds differ for a module if and only if its kernels (in these shapes) do. Modules
that look alike are run once. Parameters, buffers and results of the job stay as they are.

At level `off` the first step runs under torch's warnings about operators that have no deterministic form instead.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import torch
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from isoscale.core.numerics import determinism
from isoscale.core.numerics.fingerprint import combine_digests, exact_values, kernel_digests
from isoscale.core.streams import rng
from isoscale.runtime.probes.operators import bits
from isoscale.runtime.probes.verdict import NONDETERMINISTIC, Anatomy, HiddenState, ModuleFact

if TYPE_CHECKING:
    from isoscale.runtime.training.loop import TrainingLoop

__all__ = ["dissect_job", "hidden_state", "measure"]

_GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
_TORCH_OWN = frozenset({"_parameters", "_buffers", "_modules", "_flat_weights"})


def dissect_job(loop: TrainingLoop) -> None:
    """Let an executor's job write `out`/anatomy.json when it ends."""
    loop.attach(_Dissector(loop))


@dataclass(frozen=True, slots=True)
class _Shape:
    """Stands for a floating-point input: its values do not matter."""

    sizes: tuple[int, ...]
    dtype: torch.dtype
    channels_last: bool
    device: torch.device


@dataclass(slots=True)
class _Call:
    """How a module was called: arguments as a tree, precision, mode."""

    args: object
    kwargs: object
    autocast: torch.dtype | None
    training: bool


@dataclass(slots=True)
class _Dissector:
    loop: TrainingLoop
    calls: dict[str, _Call] = field(default_factory=dict)
    setup: str = ""
    factors: dict[str, str] = field(default_factory=dict)
    nondeterministic: dict[str, None] = field(default_factory=dict)
    _hooks: ExitStack = field(default_factory=ExitStack)
    _first_step: ExitStack = field(default_factory=ExitStack)
    _warned: list[warnings.WarningMessage] | None = None

    @property
    def _is_off(self) -> bool:
        return self.loop.spec.determinism == "off"

    # ---- probe ----

    def before_step(self, step: int) -> None:
        if step != 1:
            return
        self.setup = bits(dict(self.loop.state.audited()))
        self.factors = determinism.factors().to_dict()
        if self._is_off:
            torch.use_deterministic_algorithms(True, warn_only=True)
            self._first_step.callback(torch.use_deterministic_algorithms, False)
            self._warned = self._first_step.enter_context(warnings.catch_warnings(record=True))
            warnings.simplefilter("always")

    def turn_begins(self, logical_rank: int, batch: object) -> None:
        if self.calls:
            return
        for path, module in _modules(self.loop):
            hook = module.register_forward_pre_hook(self._watch(path), with_kwargs=True)
            self._hooks.callback(hook.remove)

    def turn_ends(self, logical_rank: int) -> None:
        self._hooks.close()

    def reduced(self, step: int) -> None:
        pass

    def after_step(self, step: int) -> None:
        self._first_step.close()
        for warning in self._warned or ():
            found = NONDETERMINISTIC.search(str(warning.message))
            if found:
                self.nondeterministic[found[1]] = None
        self._warned = None

    def ended(self, step: int) -> None:
        self.after_step(step)
        kernels = kernel_digests(self.loop.device)
        anatomy = Anatomy(
            factors=self.factors,
            kernels=kernels,
            fingerprint=combine_digests(kernels),
            setup=self.setup,
            modules=list(self._facts()),
            hidden=list(hidden_state(_modules(self.loop))),
            nondeterministic=list(self.nondeterministic),
        )
        (self.loop.out / "anatomy.json").write_bytes(msgspec.json.encode(anatomy))

    def _watch(self, path: str) -> Callable[[torch.nn.Module, object, object], None]:
        def hook(module: torch.nn.Module, args: object, kwargs: object) -> None:
            if path not in self.calls:
                autocast = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
                kept_args, kept_kwargs = tree_map(_remembered, (args, kwargs))
                self.calls[path] = _Call(kept_args, kept_kwargs, autocast, module.training)

        return hook

    def _facts(self) -> Iterator[ModuleFact]:
        known: dict[str, str] = {}
        counted: set[int] = set()
        for path, module in _modules(self.loop):
            call = self.calls.get(path)
            digest = ""
            if call is not None and not self._is_off:
                sizes = [(name, t.shape, t.dtype) for name, t in module.state_dict().items() if torch.is_tensor(t)]
                alike = repr((type(module), module, sizes, call.training, call.autocast, call.args, call.kwargs))
                if alike not in known:
                    known[alike] = measure(module, call)
                digest = known[alike]
            own = {id(p): p.numel() for p in module.parameters(recurse=False) if id(p) not in counted}
            counted |= set(own)
            yield ModuleFact(
                path=path,
                type=type(module).__name__,
                parameters=sum(own.values()),
                called=call is not None,
                digest=digest,
            )


def measure(module: torch.nn.Module, call: _Call) -> str:
    """The digest of a module's outputs, gradients and new buffers on fixed values; "" if it does not run alone."""
    salt = iter(range(1, 1_000_000))
    was_training = {child: child.training for child in module.modules()}

    def fixed(leaf: _Shape | torch.Tensor) -> torch.Tensor:
        if isinstance(leaf, torch.Tensor):
            return leaf.clone()
        values = exact_values(torch.device("cpu"), *leaf.sizes, salt=next(salt)).to(leaf.device, leaf.dtype)
        if leaf.channels_last:
            values = values.contiguous(memory_format=torch.channels_last)
        return values.requires_grad_()

    try:
        rng.seed_all(0)
        leaves, rebuild = tree_flatten((call.args, call.kwargs))
        inputs = [fixed(leaf) if isinstance(leaf, _Shape | torch.Tensor) else leaf for leaf in leaves]
        # Forward may work in place, which torch forbids on leaves that want a gradient.
        given = [x.clone() if isinstance(x, torch.Tensor) and x.requires_grad else x for x in inputs]
        args, kwargs = tree_unflatten(given, rebuild)
        parameters = {name: fixed(_form(p)) for name, p in module.named_parameters()}
        # Positive: running variances are among them.
        buffers = {name: _positive(fixed(_form(b))) for name, b in module.named_buffers()}
        module.train(call.training)
        with ExitStack() as stack:
            stack.enter_context(torch.enable_grad())
            stack.enter_context(torch.autocast("cpu", dtype=call.autocast, enabled=call.autocast is not None))
            out = torch.func.functional_call(module, {**parameters, **buffers}, args, kwargs)
        outputs = [leaf for leaf in tree_flatten(out)[0] if isinstance(leaf, torch.Tensor)]
        roots = [leaf for leaf in outputs if leaf.requires_grad]
        wanted = [x for x in (*inputs, *parameters.values()) if isinstance(x, torch.Tensor) and x.requires_grad]
        gradients: tuple[torch.Tensor | None, ...] = ()
        if roots and wanted:
            seeds = [fixed(_form(root)).detach() for root in roots]
            gradients = torch.autograd.grad(roots, wanted, seeds, allow_unused=True)
        return bits([outputs, list(gradients), list(buffers.values())])
    except Exception:  # a module may refuse to run without its surroundings; that is no fault of the job's
        return ""
    finally:
        for child, mode in was_training.items():
            child.training = mode


def hidden_state(modules: Iterator[tuple[str, torch.nn.Module]]) -> Iterator[HiddenState]:
    """Attributes that hold tensors or random generators but are neither parameters nor buffers."""
    for path, module in modules:
        for name, value in vars(module).items():
            if name in _TORCH_OWN or isinstance(value, torch.nn.Module):
                continue
            held = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else [value]
            kinds = sorted({type(v).__name__ for v in held if isinstance(v, (torch.Tensor, *_GENERATORS))})
            if kinds:
                yield HiddenState(where=f"{path}.{name}", holds=", ".join(kinds))


def _modules(loop: TrainingLoop) -> Iterator[tuple[str, torch.nn.Module]]:
    """Every module of the job's models once, by its path; paths begin with the model's name."""
    for name, model in loop.state.models.items():
        for path, module in model.module.named_modules():
            yield f"{name}.{path}" if path else name, module


def _remembered(leaf: object) -> object:
    """What to keep of an argument."""
    return _form(leaf) if isinstance(leaf, torch.Tensor) else leaf


def _form(leaf: torch.Tensor) -> _Shape | torch.Tensor:
    """Of floating-point tensors the form, of others the values."""
    if not leaf.is_floating_point():
        return leaf.detach().clone()
    is_channels_last = (
        leaf.dim() == 4 and leaf.is_contiguous(memory_format=torch.channels_last) and not leaf.is_contiguous()
    )
    return _Shape(tuple(leaf.shape), leaf.dtype, is_channels_last, leaf.device)


def _positive(buffer: torch.Tensor) -> torch.Tensor:
    return buffer.detach().abs() if buffer.is_floating_point() else buffer

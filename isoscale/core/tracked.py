"""One model of a job: what `DistributedDataParallel` is to a stock script.

Watches forward and backward through hooks, enforces the rules of a turn, takes the gradients of each
turn and puts the average of all logical workers back into `.grad`. The module itself stays the
user's own. Summation is `core.reduction.sync`'s, buffers are `core.buffers`'.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from isoscale.core.buffers import BufferSet
from isoscale.core.encoding.fast_hash import fast_digest
from isoscale.core.reduction.buckets import BucketCaps
from isoscale.core.reduction.exchange import Exchange
from isoscale.core.reduction.sync import GradientSync
from isoscale.core.rules import Turn, user_location
from isoscale.core.turn_end import ModelEnd, versions
from isoscale.errors import UserError
from isoscale.types import Order

__all__ = ["TrackedModel"]


class TrackedModel:
    def __init__(
        self,
        name: str,
        module: torch.nn.Module,
        turn: Turn,
        exchange: Exchange,
        *,
        order: Order,
        find_unused_parameters: bool,
        broadcast_buffers: bool,
        bucket_cap_mb: float | None,
        keeps_own_buffers: bool = False,
    ) -> None:
        _refuse(module)
        self.name = name
        self.module = module
        self.find_unused = find_unused_parameters
        trainable = [(n, p) for n, p in module.named_parameters() if p.requires_grad]
        if not trainable:
            raise UserError(
                field="job.model",
                value=type(module).__name__,
                problem="no parameter requires a gradient",
                remedy="use the module as it is, without job.model",
            )
        self.param_names = [n for n, _ in trainable]
        self.params = [p for _, p in trainable]
        self.buffers = BufferSet(module, broadcast=broadcast_buffers, keeps_own=keeps_own_buffers)
        self.sync = GradientSync(
            self.params,
            BucketCaps.from_mb(bucket_cap_mb),
            find_unused=find_unused_parameters,
            order=order,
            exchange=exchange,
        )
        self._turn = turn
        self._all_params = list(module.parameters())
        self._trainable = [p.requires_grad for p in self._all_params]
        #: parameter indices in the order in which logical worker 0's gradients became ready, once known
        self.ready_order: list[int] | None = None
        #: local logical ranks that took part in this step, with the parameters each used (if those are asked for)
        self.used: dict[int, list[bool]] = {}
        self._ready: list[int] = []
        #: the same of the turn that was over last, until the next one begins
        self._ended: Sequence[int] = ()
        self._synced_forwards = 0
        #: a backward under step.accumulate() came after a forward outside of it
        self._accumulated_late = False
        #: line of a backward outside training turns
        self._stray_backward: str | None = None
        self._overlap: Callable[[int, torch.Tensor], None] | None = None
        self._holders: list[torch.Tensor | None] = []
        self._base: list[torch.Tensor | None] = []
        self._has_base = False
        #: no turn has touched `.grad` since the step began
        self._as_begun = False
        self._watching = False
        #: what backward left, and its version counters. The tensors themselves, not their ids: a dead gradient's id may
        #: be given to its successor
        self._left: list[torch.Tensor | None] = []
        self._versions: list[int] = []
        self._hooks: list[Any] = [
            p.register_post_accumulate_grad_hook(partial(self._on_gradient, i))  # type: ignore[no-untyped-call]
            for i, p in enumerate(self.params)
        ]
        self._hooks.append(module.register_forward_pre_hook(_ForwardHook(self)))
        self._reset_turn()

    # ---- a step, called by the engine ----

    def begin_step(self) -> None:
        if [p.requires_grad for p in self._all_params] != self._trainable:
            changed = [
                n
                for (n, p), old in zip(self.module.named_parameters(), self._trainable, strict=True)
                if p.requires_grad != old
            ]
            raise self._turn.error(
                f"the set of trainable parameters changed after job.model (first: {changed[0]})",
                "freeze before job.model; to train less later, give those parameters a learning rate of zero",
            )
        self._take_buffers(training=True)
        self._base = [p.grad for p in self.params]
        self._has_base = any(grad is not None for grad in self._base)
        self._as_begun = True
        self._holders = []
        self.used = {}
        self.sync.begin_step()

    def begin_evaluation(self) -> None:
        self._take_buffers(training=False)

    def open_turn(self, logical_rank: int, *, launch_if: Callable[[], bool] | None) -> None:
        """`launch_if` is given for the last local turn: buckets may leave during its backward if it says so."""
        self.buffers.open_turn(logical_rank)
        self._reset_turn()
        self._holders, self._ended = [], ()  # the turn before this one's gradients are not needed any more
        if not self._as_begun or self._has_base:
            for param, base in zip(self.params, self._base, strict=True):
                # The last step's gradients, where the user did not clear them, are part of every turn's start.
                param.grad = None if base is None else base.clone(memory_format=torch.preserve_format)
        self._as_begun = False
        if launch_if is not None and self.sync.arm(logical_rank, launch_if):
            self._overlap = self.sync.ready

    def close_turn(self, logical_rank: int) -> bool:
        """Check the turn and take its gradients. False if the model took no part in it."""
        self.buffers.close_turn(logical_rank)
        overlapped, self._overlap = self._overlap is not None, None
        if not self._ready and not self._accumulated:
            if self._synced_forwards == 0:
                return False
            raise self._turn.error("the turn ended without backward()", "call loss.backward() in every turn")
        grads = [p.grad for p in self.params]
        self._check_turn(grads)
        if logical_rank == 0 and self.ready_order is None:
            self.ready_order = list(self._ready)
        ready = set(self._ready) if self.find_unused else ()
        self.used[logical_rank] = [i in ready for i in range(len(self.params))] if self.find_unused else []
        self._holders = grads
        if overlapped and self.find_unused:
            unreached = (i for i in range(len(self.params)) if i not in ready)
            self.sync.complete({i: _contribution(grads[i], self.params[i]) for i in unreached})
        elif not overlapped:
            self.sync.take(logical_rank, [_contribution(g, p) for g, p in zip(grads, self.params, strict=True)])
        self._ended = self._ready
        self._reset_turn()
        return True

    def end(self) -> ModelEnd:
        """What the turn that was over last left, before the next one begins."""
        return ModelEnd(self._ended, self._holders, versions(self._holders), self.buffers.written())

    def put_end(self, end: ModelEnd) -> None:
        """The turn that is open ends as an earlier attempt at it did: what hooks saw then is made up for."""
        self.buffers.put(end.buffers)
        if not end.ready:
            return
        for param, grad in zip(self.params, end.gradients, strict=True):
            param.grad = grad
        self._ready, self._synced_forwards = list(end.ready), 1
        self._left, self._versions = list(end.gradients), list(end.versions)
        if self._overlap is not None:
            for i in end.ready:
                grad = end.gradients[i]
                assert grad is not None
                self._overlap(i, grad)

    def gradient_digest(self) -> str:
        """Of the turn that has just ended."""
        return fast_digest([p.grad for p in self.params if p.grad is not None])

    def discard_turn(self) -> None:
        """The turn was run only to be compared."""
        self._overlap = None
        self._reset_turn()

    def publish(self, results: list[torch.Tensor], used_by_any: list[bool] | None) -> None:
        """The step is sealed: put the averages into `.grad`. `used_by_any` is None where every parameter must be."""
        targets, values = [], []
        for i, param in enumerate(self.params):
            base, holder = self._base[i], self._holders[i]
            if used_by_any is not None and not used_by_any[i]:
                param.grad = base
                continue
            if base is None and holder is not None and holder is not results[i]:
                lent = self.sync.lend(i, holder)
                if lent is not None:
                    param.grad = lent
                    continue
            target = base if base is not None else holder
            if target is None:
                target = torch.empty_like(results[i], memory_format=torch.preserve_format)
            param.grad = target
            if target is not results[i]:
                targets.append(target)
                values.append(results[i])
        if targets:
            torch._foreach_copy_(targets, values)
        self._base, self._holders = [], []

    def abandon(self) -> None:
        """The step took no part of this model: leave `.grad` as the step found it."""
        for param, base in zip(self.params, self._base, strict=True):
            param.grad = base
        self._base = []

    def rewind(self) -> None:
        """The step will be done again: gradients and buffers are again as it found them."""
        if self._base:
            self.abandon()
        if self.ready_order is not None and not self.sync.layout.final:
            self.ready_order = None
        self.buffers.rewind()
        self._overlap = None
        self._reset_turn()

    def close(self) -> None:
        """Let go of the module: it is the user's again, without hooks."""
        for hook in self._hooks:
            hook.remove()

    # ---- hooks, called by torch ----

    def _before_forward(self, module: torch.nn.Module, args: Any) -> None:
        turn = self._turn
        if turn.logical_rank is None:
            return
        moving = len(self.buffers) > 0 and self.buffers.broadcast
        if not torch.is_grad_enabled():
            if moving and module.training:
                raise turn.error(
                    "a train-mode forward under no_grad changes buffers that stock DDP would not exchange",
                    "call model.eval() before it, or use job.model(..., broadcast_buffers=False)",
                )
            if moving and self._synced_forwards:
                raise turn.error(_SECOND_FORWARD, _SECOND_FORWARD_REMEDY)
        elif turn.training:
            if moving and self._synced_forwards:
                raise turn.error(_SECOND_FORWARD, _SECOND_FORWARD_REMEDY)
            if not turn.accumulating:
                self._synced_forwards += 1

    def _on_gradient(self, index: int, param: torch.Tensor) -> None:
        if not self._watching:
            self._first_gradient()
        if self._turn.accumulating:
            self._accumulated = True
            self._accumulated_late |= self._synced_forwards > 0
            return
        self._ready.append(index)
        if self._overlap is not None:
            grad = param.grad
            assert grad is not None
            self._overlap(index, grad)

    def _first_gradient(self) -> None:
        """Of a backward. A turn neither begins nor ends before the last one."""
        self._watching = True
        torch.autograd.Variable._execution_engine.queue_callback(self._after_backward)
        if self._turn.logical_rank is None or not self._turn.training:
            self._stray_backward = self._stray_backward or user_location()

    def _after_backward(self) -> None:
        self._watching = False
        self._left = [p.grad for p in self.params]
        self._versions = versions(self._left)

    # ---- rules ----

    def backward_outside(self) -> str | None:
        """The line of a backward that reached this model outside a training turn."""
        return self._stray_backward

    def _check_turn(self, grads: list[torch.Tensor | None]) -> None:
        turn = self._turn
        if self._accumulated_late:
            raise turn.error(
                "backward() under step.accumulate() came after a forward outside of it; stock DDP would average too "
                "early or not at all",
                "put forward and backward() of all but the last pass under 'with step.accumulate():', then do the last",
            )
        if not self._ready:
            raise turn.error(
                "the turn ended with backward() under step.accumulate() only; stock DDP would leave it unsynchronised",
                "call the last backward() of the turn outside step.accumulate()",
            )
        if self._synced_forwards == 0:
            raise turn.error(
                f"backward() reached {self._label()} through a graph that was not built by calling the model",
                "call model(...), not model.some_method(...); move the method's work into forward",
            )
        counted = set(self._ready)
        if len(counted) < len(self._ready):
            raise turn.error(
                "backward() ran more than once in the turn",
                "mark all but the last with 'with step.accumulate():', or add the losses and call backward once",
            )
        if len(counted) < len(self.params) and not self.find_unused:
            missing = [self.param_names[i] for i in range(len(self.params)) if i not in counted]
            raise turn.error(
                f"{len(missing)} parameters of {self._label()} got no gradient (first: {missing[0]})",
                "use all parameters in the loss, or job.model(..., find_unused_parameters=True)",
            )
        if not all(map(operator.is_, grads, self._left)) or versions(grads) != self._versions:
            marks = zip(grads, self._left, versions(grads), self._versions, strict=True)
            places = (i for i, (now, then, *versions) in enumerate(marks) if now is not then or len({*versions}) > 1)
            first = self.param_names[next(places)]
            raise turn.error(
                f".grad of {first} was altered in the turn after backward()",
                "clip, scale or zero gradients after the inner loop, where they are averaged",
            )

    def _take_buffers(self, *, training: bool) -> None:
        if self.buffers.begin_step(training=training) and not self.buffers.broadcast:
            raise self._turn.error(
                "a buffer changed outside turns while broadcast_buffers=False gives every logical worker its own",
                "change buffers in forward only, or use broadcast_buffers=True",
            )

    def _label(self) -> str:
        return type(self.module).__name__

    def _reset_turn(self) -> None:
        self._ready = []
        self._accumulated = False
        self._accumulated_late = False
        self._stray_backward = None
        self._synced_forwards = 0
        self._watching = False
        self._left, self._versions = [], []


class _ForwardHook:
    """Lives in the module, so it is copied and pickled with it; a copy (an EMA, say) is tracked by nobody."""

    def __init__(self, tracked: TrackedModel) -> None:
        self._tracked = tracked

    def __call__(self, module: torch.nn.Module, args: Any) -> None:
        self._tracked._before_forward(module, args)

    def __reduce__(self) -> tuple[Any, ...]:
        return _NoHook, ()


class _NoHook:
    def __call__(self, module: torch.nn.Module, args: Any) -> None:
        pass


_SECOND_FORWARD = (
    "before a second forward in the turn stock DDP would broadcast the buffers that logical worker 0's first one left, "
    "and a turn cannot wait for another"
)
_SECOND_FORWARD_REMEDY = (
    "call the model once per turn on the concatenated input, mark earlier forwards with step.accumulate(), "
    "or use job.model(..., broadcast_buffers=False)"
)


def _contribution(grad: torch.Tensor | None, param: torch.Tensor) -> torch.Tensor:
    if grad is None:
        # Stock DDP adds zeros for a worker that did not use the parameter.
        return torch.zeros_like(param, memory_format=torch.preserve_format)
    return grad


def _refuse(module: torch.nn.Module) -> None:
    if hasattr(module, "_orig_mod"):
        raise UserError(
            field="job.model",
            value=type(module).__name__,
            problem="a compiled module has other names for its parameters (_orig_mod.)",
            remedy="give job.model the module, and compile what it returns: model = job.model(net); model.compile()",
        )
    for name, child in module.named_modules():
        if isinstance(child, torch.nn.SyncBatchNorm):
            raise UserError(
                field="job.model(module)",
                value=f"{type(module).__name__}.{name}" if name else type(module).__name__,
                problem="SyncBatchNorm talks to other processes in the middle of a turn",
                remedy="use BatchNorm (each logical worker its own statistics, as DDP has) or GroupNorm",
            )
        if isinstance(child, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and child.sparse:
            raise UserError(
                field="job.model(module)",
                value=f"{type(module).__name__}.{name}" if name else type(module).__name__,
                problem="sparse gradients have no place in DDP's dense buckets",
                remedy="build the embedding with sparse=False",
            )
        if isinstance(child, torch.nn.parallel.DistributedDataParallel):
            raise UserError(
                field="job.model(module)",
                value=name or "DistributedDataParallel",
                problem="the module is wrapped in DDP already",
                remedy="give job.model the bare module; the averaging is done by the step",
            )

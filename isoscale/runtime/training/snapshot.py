"""A whole job as nested dicts of tensors and plain values, and back: what newcomers and checkpoints get.

Taken and loaded only between steps, at `next()` of a training loader. It knows nothing of executors, so it
fits any number of them. The upper level reads like `final.pt` (model, kept objects, step); what else is
needed to go on (contexts, streams, bucket layouts, gradients that were not cleared, the place in the
script) is under "isoscale". Loading overwrites in place what the script has built.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from isoscale.core.encoding.digest import flat_state
from isoscale.core.reduction.buckets import Layout
from isoscale.core.tracked import TrackedModel
from isoscale.errors import AuditError, UserError
from isoscale.runtime.training.state import plain

if TYPE_CHECKING:
    from isoscale.runtime.training.loader import Loader
    from isoscale.runtime.training.loop import TrainingLoop

__all__ = ["FORMAT", "epoch_of", "is_place_of", "load_snapshot", "take_snapshot"]

FORMAT = 2


def take_snapshot(loop: TrainingLoop, loader: Loader, *, copy: bool) -> dict[str, Any]:
    """Everything at this place. Without `copy` tensors are the job's own: use it before the job goes on."""
    engine, contexts = loop.engine, loop.engine.contexts
    snapshot = loop.state.final(loop.step, copy=copy)
    snapshot["isoscale"] = {
        "format": FORMAT,
        "workers": loop.spec.workers,
        "models": {model.name: _model_state(model, copy=copy) for model in engine.models},
        "contexts": {rank: contexts.state_of(rank) for rank in range(loop.spec.workers)},
        "streams": contexts.job_streams(),
        "seals": engine.seals,
        "vector": engine.last_vector,
        "position": {
            "loader": loader.name,
            "index": loader.index,
            "pass": loader.pass_in_epoch,
            "epoch": loop.epoch,
            "totals": plain(loader.totals, "loader.totals"),
        },
        "loaders": {name: one.batches.state() for name, one in loop.all_loaders.items()},
    }
    return snapshot


def epoch_of(snapshot: dict[str, Any]) -> int:
    return int(snapshot["isoscale"]["position"]["epoch"])


def is_place_of(snapshot: dict[str, Any], loader: Loader) -> bool:
    """Was it taken in this pass of this loader?"""
    position = snapshot["isoscale"]["position"]
    return bool(position["loader"] == loader.name and position["pass"] == loader.pass_in_epoch)


def load_snapshot(loop: TrainingLoop, loader: Loader, snapshot: dict[str, Any]) -> None:
    """Make the job what it was when the snapshot was taken. Called with the script at that very place."""
    engine, contexts, inner = loop.engine, loop.engine.contexts, snapshot["isoscale"]
    _check(loop, snapshot)
    states = snapshot.get("models") or {engine.models[0].name: snapshot["model"]} if engine.models else {}
    for model in engine.models:
        _load_model(model, states[model.name], inner["models"][model.name])
    for name, thing in loop.state.kept.items():
        _load_kept(name, thing, snapshot[name])
    loop.state.values.clear()
    loop.state.values.update(plain(snapshot.get("state", {}), "job.state"))
    for rank, context in inner["contexts"].items():
        contexts.load_state_of(rank, context)
    contexts.load_job_streams(inner["streams"])
    position = inner["position"]
    loop.step, loop.epoch = int(snapshot["step"]), int(position["epoch"])
    engine.seals, engine.last_vector = int(inner["seals"]), inner["vector"]
    for name, state in inner["loaders"].items():
        loop.all_loaders[name].batches.load_state(state)
    loader.index, loader.pass_in_epoch = int(position["index"]), int(position["pass"])
    loader.totals = dict(position["totals"])


def _model_state(model: TrackedModel, *, copy: bool) -> dict[str, Any]:
    """What a model has beyond its state_dict: buffers that are not saved with it, and gradients left from a step."""
    grads = {i: p.grad for i, p in enumerate(model.params) if p.grad is not None}
    if copy:
        grads = {i: g.detach().clone(memory_format=torch.preserve_format) for i, g in grads.items()}
    return {
        "layout": model.sync.layout.to_state(),
        "buffers": [b.detach().clone() for b in model.buffers.current()],
        "own": {rank: list(tensors) for rank, tensors in model.buffers.own.items()},
        "grads": grads,
    }


def _load_model(model: TrackedModel, state: dict[str, Any], more: dict[str, Any]) -> None:
    # Buffers first, by place: one may have got another shape since it was registered, or is not in the state_dict.
    model.buffers.load(more["buffers"], more["own"])
    model.module.load_state_dict(state)
    model.buffers.load(more["buffers"], more["own"])
    for i, param in enumerate(model.params):
        grad = more["grads"].get(i)
        param.grad = None if grad is None else grad.to(param.device)
    model.sync.use(Layout.from_state(more["layout"], model.params))
    _compare(model.name, model.module.state_dict(), state)


def _load_kept(name: str, thing: Any, state: Any) -> None:
    # The loader may keep parts of what it is given, and they must not be shared with anybody.
    thing.load_state_dict(plain(state, name))
    if isinstance(thing, torch.optim.Optimizer):
        _restore_optimizer_dtypes(thing, state)
    _compare(name, thing.state_dict(), state)


def _restore_optimizer_dtypes(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """`Optimizer.load_state_dict` casts state to its parameter's dtype; what was float32 must stay so."""
    params = [param for group in optimizer.param_groups for param in group["params"]]
    for index, saved in state["state"].items():
        for key, value in saved.items():
            held = optimizer.state[params[index]].get(key)
            if isinstance(value, torch.Tensor) and isinstance(held, torch.Tensor) and held.dtype != value.dtype:
                optimizer.state[params[index]][key] = value.clone().to(held.device)


def _compare(name: str, mine: Any, theirs: Any) -> None:
    """What was loaded must be what was sent, bit for bit."""
    loaded, sent = dict(flat_state(mine)), dict(flat_state(theirs))
    different: Iterator[str] = (
        path
        for path in dict.fromkeys([*sent, *loaded])
        if path not in loaded or path not in sent or not _same(loaded[path], sent[path])
    )
    first = next(different, None)
    if first is not None:
        raise AuditError(
            tensor=f"{name}.{first}",
            executors=(),
            problem="is not what was saved after load_state_dict() of it",
            remedy="make state_dict() and load_state_dict() of what is kept give back the same bits",
        )


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        if a.shape != b.shape or a.dtype != b.dtype:
            return False
        mine, theirs = (t.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for t in (a, b))
        return torch.equal(mine, theirs)
    if hasattr(a, "item") and not isinstance(a, torch.Tensor):
        a = a.item()
    return bool(a == b) or (a != a and b != b)


def _check(loop: TrainingLoop, snapshot: dict[str, Any]) -> None:
    """The script that loads must have built what the script that saved had built."""
    inner = snapshot["isoscale"]
    saved = {
        "job.model": set(inner["models"]),
        "job.keep": set(snapshot) - {"model", "models", "state", "step", "isoscale"},
        "job.loader": set(inner["loaders"]),
    }
    here = {
        "job.model": {model.name for model in loop.engine.models},
        "job.keep": set(loop.state.kept),
        "job.loader": set(loop.all_loaders),
    }
    for call, names in saved.items():
        if names != here[call]:
            raise UserError(
                field=call,
                value=", ".join(sorted(here[call])) or "nothing",
                problem=f"the saved state has {', '.join(sorted(names)) or 'nothing'}",
                remedy="build the same models, kept objects and loaders in every run of the script",
            )

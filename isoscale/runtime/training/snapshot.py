"""A whole job as nested dicts of tensors and plain values, and back: what newcomers and checkpoints get.

Taken and loaded only between steps, at `next()` of a training loader. It knows nothing of executors, so it
fits any number of them. The upper level reads like `final.pt` (model, kept objects, step); what else is
needed to go on (contexts, streams, bucket layouts, gradients that were not cleared, the place in the
script) is under "isoscale". Loading overwrites in place what the script has built.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict, cast

import torch

from isoscale.core.encoding.digest import flat_state
from isoscale.core.encoding.header import bits
from isoscale.core.reduction.buckets import Layout
from isoscale.core.totals import Total
from isoscale.core.tracked import TrackedModel
from isoscale.errors import AuditError, UserError
from isoscale.runtime.training.state import Stateful, Tree, plain

if TYPE_CHECKING:
    from isoscale.runtime.training.loader import Loader
    from isoscale.runtime.training.loop import TrainingLoop

__all__ = ["epoch_of", "is_place_of", "load_snapshot", "models_of", "position_of", "take_back", "take_snapshot"]

_FORMAT = 2


#: the place in the script: which batch of which pass of which loader, with the pass's totals so far
Position = TypedDict("Position", {"loader": str, "index": int, "pass": int, "epoch": int, "totals": dict[str, Total]})


class _ModelRest(TypedDict):
    """What a model has beyond its state_dict."""

    layout: Tree
    buffers: list[torch.Tensor]
    own: dict[int, list[torch.Tensor]]
    #: left from a step, by number of the parameter
    grads: dict[int, torch.Tensor]


class _Rest(TypedDict):
    """What it takes to go on, beyond what final.pt has."""

    format: int
    workers: int
    models: dict[str, _ModelRest]
    #: by logical rank
    contexts: dict[int, Tree]
    streams: Tree
    seals: int
    vector: torch.Tensor | None
    position: Position
    #: by name
    loaders: dict[str, Tree]
    #: by loader, samples that were read in earlier passes
    samples: NotRequired[dict[str, int]]
    #: of a job whose batch size may change, and of one whose noise scale is measured
    batches: NotRequired[Tree]
    noise: NotRequired[list[float | int]]
    #: that the script carries in variables of its own, None for readings of clocks; not in older checkpoints
    numbers: NotRequired[dict[str, int | float | None]]
    #: digest of the code that had them: other code may begin with other numbers
    code: NotRequired[str]


def take_snapshot(loop: TrainingLoop, loader: Loader, *, copy: bool) -> Tree:
    """Everything at this place. Without `copy` tensors are the job's own: use it before the job goes on."""
    engine, contexts = loop.engine, loop.engine.contexts
    snapshot = loop.state.final(loop.step, copy=copy)
    rest: _Rest = {
        "format": _FORMAT,
        "workers": loop.spec.workers,
        "models": {model.name: _rest_of(model, copy=copy) for model in engine.models},
        "contexts": {rank: contexts.state_of(rank) for rank in range(loop.spec.workers)},
        "streams": contexts.job_streams(),
        "seals": engine.seals,
        "vector": engine.last_vector,
        "position": {
            "loader": loader.name,
            "index": loader.index,
            "pass": loader.pass_in_epoch,
            "epoch": loop.epoch,
            "totals": cast("dict[str, Total]", plain(loader.totals, "loader.totals")),
        },
        "loaders": {name: one.batches.state() for name, one in loop.all_loaders.items()},
        "samples": {name: one.samples_of_passes for name, one in loop.training_loaders.items()},
    }
    if loop.batches is not None:
        rest["batches"] = loop.batches.to_state()
    if loop.noise is not None:
        rest["noise"] = loop.noise.scale.state()
    if (numbers := loop.numbers.sent()) is not None:
        rest["numbers"], rest["code"] = numbers, loop.spec.code
    snapshot["isoscale"] = rest
    return snapshot


def position_of(snapshot: Tree) -> Position:
    return _rest(snapshot)["position"]


def epoch_of(snapshot: Tree) -> int:
    return int(position_of(snapshot)["epoch"])


def is_place_of(snapshot: Tree, loader: Loader) -> bool:
    """Was it taken in this pass of this loader?"""
    position = position_of(snapshot)
    return bool(position["loader"] == loader.name and position["pass"] == loader.pass_in_epoch)


def models_of(snapshot: Tree, only: str) -> dict[str, Tree]:
    """State dicts by name. The only model of a job is saved without its name, and gets the name `only`."""
    many = cast("dict[str, Tree] | None", snapshot.get("models"))
    return many or {only: cast("Tree", snapshot["model"])}


def load_snapshot(loop: TrainingLoop, loader: Loader, snapshot: Tree) -> None:
    """Make the job what it was when the snapshot was taken. Called with the script at that very place."""
    engine, contexts, rest = loop.engine, loop.engine.contexts, _rest(snapshot)
    _check(loop, snapshot)
    take_back(loop, snapshot)
    for rank, context in rest["contexts"].items():
        contexts.load_state_of(rank, context)
    position = rest["position"]
    loop.step, loop.epoch = int(cast("int", snapshot["step"])), int(position["epoch"])
    engine.seals, engine.last_vector = int(rest["seals"]), rest["vector"]
    for name, state in rest["loaders"].items():
        loop.all_loaders[name].batches.load_state(state)
    loader.index, loader.pass_in_epoch = int(position["index"]), int(position["pass"])
    loader.totals = dict(position["totals"])
    if "numbers" in rest and rest.get("code") == loop.spec.code:
        loop.numbers.received(rest["numbers"])
    for name, samples in rest.get("samples", {}).items():
        loop.training_loaders[name].samples_of_passes = samples
    if loop.batches is not None and "batches" in rest:
        loop.batches.load_state(rest["batches"])
    if loop.noise is not None and "noise" in rest:
        loop.noise.scale.load(rest["noise"])


def take_back(loop: TrainingLoop, snapshot: Tree) -> None:
    """Whatever code outside turns has changed is again what it was: models, what is kept, the job-wide streams."""
    engine, rest = loop.engine, _rest(snapshot)
    states = models_of(snapshot, engine.models[0].name) if engine.models else {}
    for model in engine.models:
        _load_model(model, states[model.name], rest["models"][model.name])
    for name, thing in loop.state.kept.items():
        _load_kept(name, thing, snapshot[name])
    loop.state.values.clear()
    loop.state.values.update(plain(cast("Tree", snapshot.get("state", {})), "job.state"))
    engine.contexts.load_job_streams(rest["streams"])


def _rest(snapshot: Tree) -> _Rest:
    return cast("_Rest", snapshot["isoscale"])


def _rest_of(model: TrackedModel, *, copy: bool) -> _ModelRest:
    grads = {i: p.grad for i, p in enumerate(model.params) if p.grad is not None}
    if copy:
        grads = {i: g.detach().clone(memory_format=torch.preserve_format) for i, g in grads.items()}
    return {
        "layout": model.sync.layout.to_state(),
        "buffers": [b.detach().clone() for b in model.buffers.current()],
        "own": {rank: list(tensors) for rank, tensors in model.buffers.own.items()},
        "grads": grads,
    }


def _load_model(model: TrackedModel, state: Tree, rest: _ModelRest) -> None:
    # Buffers first, by place: one may have got another shape since it was registered, or is not in the state_dict.
    model.buffers.load(rest["buffers"], rest["own"])
    model.module.load_state_dict(state)
    model.buffers.load(rest["buffers"], rest["own"])
    for i, param in enumerate(model.params):
        grad = rest["grads"].get(i)
        param.grad = None if grad is None else grad.to(param.device)
    model.sync.use(Layout.from_state(rest["layout"], model.params))
    _compare(model.name, model.module.state_dict(), state)


def _load_kept(name: str, thing: Stateful, state: object) -> None:
    # The loader may keep parts of what it is given, and they must not be shared with anybody.
    thing.load_state_dict(plain(state, name))
    if isinstance(thing, torch.optim.Optimizer):
        _restore_optimizer_dtypes(thing, cast("dict[str, Any]", state))
    _compare(name, thing.state_dict(), state)


def _restore_optimizer_dtypes(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """`Optimizer.load_state_dict` casts state to its parameter's dtype; what was float32 must stay so."""
    params = [param for group in optimizer.param_groups for param in group["params"]]
    for index, saved in state["state"].items():
        for key, value in saved.items():
            held = optimizer.state[params[index]].get(key)
            if isinstance(value, torch.Tensor) and isinstance(held, torch.Tensor) and held.dtype != value.dtype:
                optimizer.state[params[index]][key] = value.clone().to(held.device)


def _compare(name: str, mine: object, theirs: object) -> None:
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


def _same(a: object, b: object) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        if a.shape != b.shape or a.dtype != b.dtype:
            return False
        rows = (bits(t).cpu().contiguous().view(-1) for t in (a, b))
        # As numbers of their own size they are compared several times as fast as byte by byte.
        mine, theirs = (row.view(torch.int64) if row.is_complex() else row for row in rows)
        return torch.equal(mine, theirs)
    if hasattr(a, "item") and not isinstance(a, torch.Tensor):
        a = a.item()
    return bool(a == b) or (a != a and b != b)


def _check(loop: TrainingLoop, snapshot: Tree) -> None:
    """The script that loads must have built what the script that saved had built."""
    rest = _rest(snapshot)
    saved = {
        "job.model": set(rest["models"]),
        "job.keep": set(snapshot) - {"model", "models", "state", "step", "isoscale"},
        "job.loader": set(rest["loaders"]),
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

"""A job that goes on from a snapshot does to the last bit what the one it was taken from does."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from isoscale.core.encoding import codec
from isoscale.core.encoding.digest import flat_state
from isoscale.core.reduction.exchange import LocalExchange
from isoscale.core.streams import rng
from isoscale.errors import AuditError, UserError
from isoscale.runtime.training.execute import execute
from isoscale.runtime.training.job import Job
from isoscale.runtime.training.loader import Loader
from isoscale.runtime.training.loop import TrainingLoop
from isoscale.runtime.training.snapshot import epoch_of, is_place_of, load_snapshot, take_snapshot
from isoscale.types import JobSpec
from tests.unit.simulated import same_bits

DATA = TensorDataset(torch.randn(24, 3, generator=torch.Generator().manual_seed(0)), torch.arange(24) % 2)


@pytest.fixture(autouse=True)
def leave_streams() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with rng.isolated():
        yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


class Quiet:
    """A sink that takes everything."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: None


class Watching:
    """Takes a snapshot at a step, or lands with one, and remembers everything at the end."""

    def __init__(self, at: int = -1, staged: dict[str, Any] | None = None) -> None:
        self.at, self.staged = at, staged
        self.taken: dict[str, Any] | None = None

    def hold(self, loop: TrainingLoop) -> int | None:
        return None if self.staged is None else epoch_of(self.staged)

    def arrive(self, loop: TrainingLoop, loader: Loader) -> None:
        if self.staged is not None:
            if not is_place_of(self.staged, loader):
                loader.end_pass()
                return
            load_snapshot(loop, loader, self.staged)
            self.staged = None
        if loop.step == self.at and self.taken is None:
            # As it travels: through the codec, which copies.
            self.taken = codec.unpack(codec.pack(take_snapshot(loop, loader, copy=False)))

    def ready(self, loop: TrainingLoop) -> bool:
        return False

    def sealed(self, loop: TrainingLoop, sealed: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


def everything(loop: TrainingLoop, totals: list[Any]) -> dict[str, Any]:
    engine = loop.engine
    tree = {
        "final": loop.state.final(loop.step),
        "contexts": {rank: engine.contexts.state_of(rank) for rank in range(loop.spec.workers)},
        "streams": engine.contexts.job_streams(),
        "totals": totals,
        "models": [
            {
                "grads": [p.grad for p in model.params],
                "strides": [None if p.grad is None else p.grad.stride() for p in model.params],
                "buffers": model.buffers.current(),
                "own": model.buffers.own,
                "layout": str(model.sync.layout),
            }
            for model in engine.models
        ],
    }
    return dict(flat_state(tree))


def go(train: Callable[[Job], list[Any]], watching: Watching) -> dict[str, Any]:
    loop = TrainingLoop(JobSpec(workers=2, seed=3), LocalExchange(2), Quiet())
    loop.elastic = watching
    kept: list[Any] = []
    rng.seed_all(3)
    execute(loop, lambda job: kept.extend(train(job)))
    return everything(loop, kept)


def assert_same(mine: dict[str, Any], reference: dict[str, Any]) -> None:
    assert list(mine) == list(reference)
    for path, value in mine.items():
        other = reference[path]
        same = same_bits(value, other) if isinstance(value, torch.Tensor) else repr(value) == repr(other)
        assert same, f"{path}: {str(value)[:80]} is not {str(other)[:80]}"


def half_with_float_state(job: Job) -> list[Any]:
    """An optimizer with float32 state for bfloat16 parameters, which `Optimizer.load_state_dict` would cast."""
    model = job.model(nn.Linear(3, 2).to(torch.bfloat16))
    optimizer = job.keep("optimizer", _FloatMomentum(model.parameters()))
    loader = job.loader(DATA, batch_size=3, shuffle=True)
    for _ in job.epochs(3):
        for step in loader:
            for x, y in step:
                F.cross_entropy(model(x.to(torch.bfloat16)).float(), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert all(s["momentum"].dtype == torch.float32 for s in optimizer.state.values())
    return []


class _FloatMomentum(torch.optim.Optimizer):
    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                momentum = state.setdefault("momentum", torch.zeros_like(p, dtype=torch.float32))
                momentum.mul_(0.9).add_(p.grad.float())
                p.sub_((group["lr"] * momentum).to(p.dtype))


def images_with_everything(job: Job) -> list[Any]:
    """channels_last, gradients that are never cleared, dropout, schedules, things of every worker's own, job.state."""
    conv = nn.Sequential(nn.Conv2d(1, 4, 2), nn.BatchNorm2d(4), nn.Dropout(0.2), nn.Flatten(), nn.Linear(8, 2))
    model = job.model(conv.to(memory_format=torch.channels_last))
    optimizer = job.keep("optimizer", torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
    schedule = job.keep("schedule", torch.optim.lr_scheduler.StepLR(optimizer, 2))
    noise = job.keep_per_worker("noise", lambda rank: torch.Generator().manual_seed(rank))
    memory = job.keep_per_worker("memory", dict)
    loader = job.loader(DATA, batch_size=3, shuffle=True)
    totals = []
    job.state.setdefault("best", [])
    for epoch in job.epochs(3):
        for step in loader:
            for x, y in step:
                image = F.pad(x, (0, 3)).view(-1, 1, 2, 3) + torch.rand((), generator=noise) + random.random()
                loss = F.cross_entropy(model(image), y)
                loss.backward()
                memory["seen"] = memory.get("seen", 0.0) + np.random.rand()
                step.sum(loss=loss.detach(), seen=len(y), memory=memory["seen"])
            optimizer.step()  # .grad stays
            job.state["last"] = {"loss": step.totals["loss"], "step": job.step}
            torch.rand(2)
        schedule.step()
        job.state["best"].append((epoch, loader.totals["loss"], loader.totals["seen"]))
        totals.append(dict(loader.totals))
    return totals[-1:]


def two_models(job: Job) -> list[Any]:
    """Buffers of every worker's own, buffers that no state_dict holds, parameters that some turns do not use."""

    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.used, self.rest = nn.BatchNorm1d(3), nn.Linear(3, 2), nn.Linear(3, 2)
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64), persistent=False)
            self.register_buffer("grown", torch.zeros(1), persistent=False)

        def forward(self, x: torch.Tensor, rest: bool = True) -> torch.Tensor:
            self.calls += 1
            self.grown = torch.zeros(int(self.calls) % 3 + 1) + x.detach().sum()
            x = self.norm(x)
            return self.used(x) + (self.rest(x) if rest else 0)

    one = job.model(Part(), broadcast_buffers=False)
    two = job.model(Part(), find_unused_parameters=True)
    optimizer = job.keep("optimizer", torch.optim.Adam([*one.parameters(), *two.parameters()]))
    loader = job.loader(DATA, batch_size=3)
    for _ in job.epochs(2):
        for step in loader:
            for x, y in step:
                rest = job._loop.engine.turn.logical_rank == 0 and job.step % 2 == 0
                F.cross_entropy(one(x) + two(x, rest), y).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=job.step % 2 == 0)
    return []


# A newcomer that lands at the end of an epoch steps its schedule before its optimizer.
@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler:UserWarning")
@pytest.mark.parametrize("train", [half_with_float_state, images_with_everything, two_models])
@pytest.mark.parametrize("at", [0, 3, 4, 6])
def test_a_job_goes_on_from_a_snapshot(train: Callable[[Job], list[Any]], at: int) -> None:
    first = Watching(at)
    reference = go(train, first)
    assert first.taken is not None
    assert_same(go(train, Watching(staged=first.taken)), reference)


def test_a_snapshot_with_copies_is_not_touched_by_what_comes_after() -> None:
    class Copying(Watching):
        def arrive(self, loop: TrainingLoop, loader: Loader) -> None:
            if loop.step == 3 and self.taken is None:
                self.taken = take_snapshot(loop, loader, copy=True)
                self.packed = codec.pack(self.taken)

    watching = Copying()
    go(images_with_everything, watching)
    assert watching.taken is not None
    assert torch.equal(codec.pack(watching.taken), watching.packed)


def test_a_script_that_builds_other_things_is_refused() -> None:
    first = Watching(3)
    go(half_with_float_state, first)
    with pytest.raises(UserError, match="the saved state has"):
        go(two_models, Watching(staged=first.taken))


def test_what_does_not_load_what_it_saved_is_named() -> None:
    class Forgetful:
        value = 0

        def state_dict(self) -> dict[str, int]:
            self.value += 1
            return {"value": self.value}

        def load_state_dict(self, state: dict[str, int]) -> None:
            pass

    def train(job: Job) -> list[Any]:
        job.keep("forgetful", Forgetful())
        return half_with_float_state(job)

    first = Watching(3)
    go(train, first)
    with pytest.raises(AuditError, match="forgetful"):
        go(train, Watching(staged=first.taken))


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.float32, torch.float64, torch.complex128], ids=str)
def test_bits_are_compared_and_not_values(dtype: torch.dtype) -> None:
    """Of zeros with another sign, and of what is not a number; `torch.equal` would tell neither rightly."""

    class Keeper:
        value = torch.zeros(3, dtype=dtype)

        def state_dict(self) -> dict[str, torch.Tensor]:
            return {"value": self.value}

        def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
            self.value = state["value"] if self.is_faithful else self.other

        is_faithful = True
        other = torch.zeros(3, dtype=dtype)

    def train(job: Job) -> list[Any]:
        job.keep("keeper", keeper)
        return half_with_float_state(job)

    keeper = Keeper()
    other = torch.zeros(3, dtype=dtype)
    bytes_ = other.view(torch.uint8)
    bytes_[-1] = 1 if dtype is torch.bool else 0x80
    if dtype is not torch.bool:
        keeper.value = torch.full((3,), float("nan")).to(dtype)
    first = Watching(3)
    go(train, first)
    go(train, Watching(staged=first.taken))
    Keeper.value = torch.zeros(3, dtype=dtype)
    keeper = Keeper()
    first = Watching(3)
    go(train, first)
    keeper.is_faithful, keeper.other = False, other
    with pytest.raises(AuditError, match="keeper"):
        go(train, Watching(staged=first.taken))

"""A recipe's own training function, one step at a time: under isoscale, and as plain gradient accumulation.

`Paced` runs a training function in a thread that rests between two training steps, so that several trainings of one
process can take turns. `PlainJob` stands in for `isoscale.Job`: the same script then takes k batches from a stock
DataLoader, accumulates their gradients (each backward pass begins with 1/k, as `(loss / k).backward()` does) and steps
the optimizer. It knows no logical workers: no random streams, no buffers, no exchange.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from benchmarks.lib.sides import Quiet
from isoscale.core.reduction.exchange import LocalExchange
from isoscale.core.streams import rng
from isoscale.recipes.catalogue import Recipe, path_of
from isoscale.runtime.training.guards import guarded
from isoscale.runtime.training.job import Job
from isoscale.runtime.training.loop import TrainingLoop
from isoscale.types import JobSpec

Train = Callable[[Any], None]
#: epochs without end: how many steps are done is the measurement's business
_EPOCHS = "1000"
#: what takes long to read and is the same for every training in this process
_SLOW = {
    "isoscale.recipes.data.images": ("mnist_5k",),
    "isoscale.recipes.data.text": ("moby_dick", "words", "characters"),
}


def training_function(recipe: Recipe, arguments: Sequence[str] = ()) -> Train:
    """`train` of the recipe's script, whose command line is `arguments`."""
    sys.argv = [str(path_of(recipe)), *arguments, "--epochs", _EPOCHS]
    for module, names in _SLOW.items():
        loaded = importlib.import_module(module)
        for name in names:
            setattr(loaded, name, functools.cache(getattr(loaded, name)))
    spec = importlib.util.spec_from_file_location(f"recipe_{recipe.name}", Path(path_of(recipe)))
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = script
    spec.loader.exec_module(script)
    train: Train = script.train
    return train


class _ClosedError(BaseException):
    """Ends a training function from outside. Not an Exception, which a script might catch."""


class Paced:
    """A training in a thread of its own. Every call does one training step; the first one sets up, too."""

    def __init__(self, run: Callable[[Paced], None]) -> None:
        self._go, self._rest = threading.Semaphore(0), threading.Semaphore(0)
        self._error: BaseException | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._body, args=(run,), daemon=True)
        self._thread.start()

    def __call__(self) -> None:
        self._go.release()
        self._rest.acquire()
        if self._error is not None:
            raise RuntimeError("the training function ended") from self._error

    def close(self) -> None:
        self._closing = True
        self._go.release()
        self._thread.join()

    def rest(self) -> None:
        """In the thread, between two steps: let others go on until the next call."""
        self._rest.release()
        self._go.acquire()
        if self._closing:
            raise _ClosedError

    def _body(self, run: Callable[[Paced], None]) -> None:
        self._go.acquire()
        try:
            if not self._closing:
                run(self)
                raise RuntimeError("it came to its end")
        except _ClosedError:
            pass
        except BaseException as error:
            self._error = error
            self._rest.release()


class Silent(Quiet):
    def logged(self, **facts: Any) -> None:
        pass


def under_isoscale(train: Train, k: int) -> Paced:
    """All k logical workers in this process, in the order of stock DDP."""

    def run(paced: Paced) -> None:
        loop = TrainingLoop(JobSpec(workers=k), LocalExchange(k), Silent())
        job = Job(loop)
        rng.seed_all(0)
        make_loader = job.loader
        guards = contextlib.ExitStack()

        def loader(*args: Any, train: bool = True, **options: Any) -> Any:
            made = make_loader(*args, train=train, **options)
            return _Resting(made, paced, guards, lambda: guarded(loop.engine)) if train else made

        job.loader = loader  # type: ignore[method-assign]
        with guards:
            train(job)

    return Paced(run)


class _Resting:
    """A loader whose pass rests before every step. Guards hold while the job is at work, and not for others."""

    def __init__(self, loader: Any, paced: Paced, guards: contextlib.ExitStack, guard: Callable[[], Any]) -> None:
        self._loader, self._paced, self._guards, self._guard = loader, paced, guards, guard
        self._begun = False

    def __iter__(self) -> Iterator[Any]:
        for step in self._loader:
            if self._begun:
                self._guards.close()
                self._paced.rest()
            self._begun = True
            self._guards.enter_context(self._guard())
            yield step

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def accumulating(train: Train, k: int) -> Paced:
    """Gradient accumulation of k micro-batches in plain PyTorch."""

    def run(paced: Paced) -> None:
        rng.seed_all(0)
        train(PlainJob(k, paced.rest))

    return Paced(run)


class PlainJob:
    """As much of `isoscale.Job` as recipes use, without anything behind it."""

    def __init__(self, k: int, rest: Callable[[], None]) -> None:
        self.num_logical_workers = k
        self.rest = rest
        self.state: dict[str, Any] = {}
        self.step = self.epoch = 0
        self.turn = 0
        self.is_main = True
        self.device = torch.device("cpu")

    def model(self, module: torch.nn.Module, **options: Any) -> torch.nn.Module:
        return module

    def keep(self, name: str, thing: Any) -> Any:
        return thing

    def keep_per_worker(self, name: str, factory: Callable[..., Any]) -> Any:
        """One per micro-batch."""
        takes_rank = bool(factory.__code__.co_argcount) if hasattr(factory, "__code__") else False
        return _Present(self, [factory(rank) if takes_rank else factory() for rank in range(self.num_logical_workers)])

    def loader(
        self, dataset: Any, *, batch_size: int = 1, shuffle: bool = False, train: bool = True, **options: Any
    ) -> PlainLoader:
        return PlainLoader(self, DataLoader(dataset, batch_size, shuffle=shuffle, **options), train=train)

    def epochs(self, count: int) -> Iterator[int]:
        for self.epoch in range(count):
            yield self.epoch

    steps = epochs

    def log(self, **values: Any) -> None:
        pass

    def save(self, name: str, thing: Any) -> None:
        pass

    def stop(self, reason: str = "") -> None:
        pass


class _Present:
    """Stands for the object of the micro-batch that is at hand."""

    def __init__(self, job: PlainJob, things: list[Any]) -> None:
        self._job, self._things = job, things

    def __getitem__(self, key: Any) -> Any:
        return self._things[self._job.turn][key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._things[self._job.turn][key] = value

    def __getattr__(self, name: str) -> Any:
        return getattr(self._things[self._job.turn], name)


class PlainLoader:
    def __init__(self, job: PlainJob, batches: DataLoader[Any], *, train: bool) -> None:
        self._job, self._batches, self._train = job, batches, train
        self.totals: dict[str, Any] = {}

    def __len__(self) -> int:
        return max(1, len(self._batches) // self._job.num_logical_workers)

    def __iter__(self) -> Iterator[PlainStep]:
        self.totals = {}
        batches = iter(self._batches)
        for _ in range(len(self)):
            if self._train and self._job.step:
                self._job.rest()
            yield PlainStep(self._job, batches, self.totals, train=self._train)
            self._job.step += self._train


class PlainStep:
    def __init__(self, job: PlainJob, batches: Iterator[Any], sums: dict[str, Any], *, train: bool) -> None:
        self._job, self._batches, self._sums, self._train = job, batches, sums, train
        self.totals: dict[str, Any] = {}
        self.means: dict[str, float] = {}

    def __iter__(self) -> Iterator[Any]:
        k = self._job.num_logical_workers
        with _shares(k) if self._train else contextlib.nullcontext():
            for self._job.turn in range(k):
                batch = next(self._batches, None)
                if batch is None:
                    return
                yield batch

    def log(self, **values: Any) -> None:
        for name, value in values.items():
            number = value.detach().item() if isinstance(value, torch.Tensor) else value
            self.means[name] = self.means.get(name, 0.0) + number / self._job.num_logical_workers

    def sum(self, **values: Any) -> None:
        for name, value in values.items():
            for sums in (self.totals, self._sums):
                sums[name] = sums[name] + value if name in sums else value

    @contextlib.contextmanager
    def accumulate(self) -> Iterator[None]:
        yield


@contextlib.contextmanager
def _shares(k: int) -> Iterator[None]:
    """Backward passes of the script begin with 1/k."""
    original = torch.Tensor.backward

    def backward(self: torch.Tensor, gradient: Any = None, **options: Any) -> None:
        original(self, torch.full_like(self, 1 / k) if gradient is None else gradient, **options)

    torch.Tensor.backward = backward  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        torch.Tensor.backward = original  # type: ignore[method-assign]

"""The reference: the same script under stock DistributedDataParallel, one process per logical worker.

This is what `verify` compares with, so it is deliberately a second implementation of the API, written
with torch's own parts (DDP, DistributedSampler, DataLoader, all_gather_object) and nothing of the
elastic path: no contexts, no buckets, no ordered sums. It is short because N processes need no tricks.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import json
import os
import random
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn, TextIO

import msgspec
import numpy as np
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, GradBucket
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, default_collate
from torch.utils.data.distributed import DistributedSampler

from isoscale import env
from isoscale.core import determinism
from isoscale.core.digest import digest
from isoscale.errors import IsoscaleError
from isoscale.runtime.probe import Probe
from isoscale.runtime.reference_stream import StreamPlan, read_all
from isoscale.runtime.state import plain
from isoscale.runtime.stream import checked_source
from isoscale.types import JobSpec

__all__ = ["ReferenceJob", "run_reference"]

_PARENT_POLL_S = 1.0


def run_reference(train: Callable[[Any], None]) -> NoReturn:
    """Entry point of one rank: reads the job from the directory that `verify` prepared. Ends the process.

    Leaves `rank-<r>.outcome.json` behind: how it ended and, on failure, when and with what traceback.
    """
    out, rank = env.out(), env.executor()
    assert out is not None
    assert rank is not None
    _end_with_parent()
    code = 0
    try:
        spec = msgspec.json.decode((out / "spec.json").read_bytes(), type=JobSpec)
        # The switches of torch and nothing else: what the job's executors have, a stock script has to have too.
        determinism.apply(spec.determinism, spec.threads, spec.profile)
        store = FileStore(str(out / "store"), spec.workers)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=spec.workers)
        job = ReferenceJob(spec, out, rank)
        if spec.trace is not None:
            from isoscale.runtime.trace import trace_reference

            trace_reference(job)
        job.run(train)
        dist.barrier()
        outcome: dict[str, Any] = {"ok": True, "step": job.step, "digest": job.digest()}
        dist.destroy_process_group()
    except BaseException as error:
        code, outcome = 1, {"ok": False, "t": time.time(), **_story(error)}
    temporary = out / f".rank-{rank}.tmp"
    temporary.write_text(json.dumps(outcome))
    temporary.replace(out / f"rank-{rank}.outcome.json")
    sys.stdout.flush()
    sys.stderr.flush()
    # A failed rank must not wait for the others in gloo's or a loader's clean-up.
    os._exit(code)


def _story(error: BaseException) -> dict[str, str]:
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__ and trace.tb_next is not None:
        trace = trace.tb_next  # how the training function came to be called is not the user's concern
    summary = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
    if isinstance(error, IsoscaleError):
        return {"summary": str(error), "traceback": ""}
    if isinstance(error, SystemExit) and not error.code:
        return {"summary": "the script called sys.exit() before training was done", "traceback": ""}
    return {"summary": summary, "traceback": "".join(traceback.format_exception(type(error), error, trace))}


def _end_with_parent() -> None:
    """End this process if `verify` is killed: nobody else would."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_POLL_S)
        os._exit(1)

    threading.Thread(target=watch, name="parent watch", daemon=True).start()


class _Model(DistributedDataParallel):
    """DDP that a script cannot tell from its module: attributes pass through, names have no prefix."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._is_built = True

    def __setattr__(self, name: str, value: Any) -> None:
        own = self.__dict__
        if "_is_built" in own and name not in own and not hasattr(type(self), name) and hasattr(self.module, name):
            setattr(self.module, name, value)
        else:
            super().__setattr__(name, value)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self.module, memo)

    def __getitem__(self, key: Any) -> Any:
        return self.module[key]

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.module.load_state_dict(*args, **kwargs)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Any:
        return self.module.named_parameters(*args, **kwargs)

    def named_buffers(self, *args: Any, **kwargs: Any) -> Any:
        return self.module.named_buffers(*args, **kwargs)


class ReferenceJob:
    """The job API for one DDP rank. `logical_rank` is the rank."""

    def __init__(self, spec: JobSpec, out: Path, rank: int) -> None:
        self._spec = spec
        self._rank = rank
        self._streams: Any = None
        self._models: dict[str, _Model] = {}
        self._kept: dict[str, Any] = {}
        self._limit = 0
        self._stop = False
        self._turn_stop = False
        self._in_turn = False
        #: logged values of every step of this rank, as float hex; written as they come once the job runs
        self.records: list[dict[str, str]] = []
        self._file: TextIO | None = None
        self._probe: Probe | None = None
        self.state: dict[str, Any] = {}
        self.step = 0
        self.epoch = 0
        self.out = out
        self.is_main = rank == 0
        self.num_logical_workers = spec.workers
        self.device = torch.device("cpu")

    def run(self, train: Callable[[Any], None]) -> None:
        _seed(self._spec.seed)
        with (self.out / f"rank-{self._rank}.jsonl").open("w") as self._file:
            train(self)
        if self._probe is not None:
            self._probe.ended(self.step)
        if self.is_main:
            torch.save(plain(self.result(), "result"), self.out / "final.pt")

    def result(self) -> dict[str, Any]:
        models = {name: dict(model.state_dict()) for name, model in self._models.items()}
        out: dict[str, Any] = {"model": next(iter(models.values()))} if len(models) == 1 else {"models": models}
        out |= {name: thing.state_dict() for name, thing in self._kept.items()}
        if self.state:
            out["state"] = self.state
        return out | {"step": self.step}

    def digest(self) -> str:
        optimizers = {n: t.state_dict() for n, t in self._kept.items() if isinstance(t, torch.optim.Optimizer)}
        return digest({name: model.state_dict() for name, model in self._models.items()}, optimizers)

    def _record(self, values: dict[str, str]) -> None:
        self.records.append(values)
        if self._file is not None:
            self._file.write(json.dumps(values) + "\n")
            self._file.flush()

    # ---- set-up ----

    def model(self, module: torch.nn.Module, **options: Any) -> Any:
        model = _Model(module, **options)
        if self._spec.order == "tree":
            model.register_comm_hook(None, lambda state, bucket: _tree_hook(bucket))
        base = type(module).__name__
        taken = sum(name.split("-")[0] == base for name in self._models)
        self._models[f"{base}-{taken + 1}" if taken else base] = model
        return model

    def keep(self, name: str, thing: Any) -> Any:
        self._kept[name] = thing
        return thing

    def keep_per_worker(self, name: str, factory: Callable[..., Any]) -> Any:
        before = _get_streams()
        required = [p for p in inspect.signature(factory).parameters.values() if p.default is p.empty]
        made = factory(self._rank) if required else factory()
        _set_streams(before)
        return made

    def loader(
        self, dataset: Any, *, batch_size: int = 1, shuffle: bool = False, train: bool = True, **options: Any
    ) -> _Loader:
        n = self._spec.workers
        if "batch_sampler" in options:
            options["batch_sampler"] = options["batch_sampler"](self._rank, n)
            return _Loader(self, DataLoader(dataset, **options), train, 0)
        if "sampler" in options:
            options["sampler"] = options["sampler"](self._rank, n)
            return _Loader(self, DataLoader(dataset, batch_size, **options), train, 0)
        sampler: Any = range(self._rank, len(dataset), n)
        if train:
            sampler = DistributedSampler(dataset, n, self._rank, shuffle, seed=self._spec.seed)
        return _Loader(self, DataLoader(dataset, batch_size, sampler=sampler, **options), train, -(-len(dataset) // n))

    def stream(
        self, source: Any, *, batch_size: int = 1, transform: Any = None, collate_fn: Any = default_collate, **rule: Any
    ) -> _Loader:
        return _StreamLoader(self, source, batch_size, transform, collate_fn, rule)

    # ---- progress ----

    def epochs(self, count: int) -> Iterator[int]:
        for self.epoch in range(count):
            if self._ended():
                return
            yield self.epoch

    def steps(self, count: int) -> Iterator[int]:
        self._limit, epoch = count, 0
        while not self._ended():
            self.epoch = epoch
            yield epoch
            epoch += 1

    def stop(self, reason: str = "") -> None:
        if self._in_turn:
            self._turn_stop = True
        else:
            self._stop = True

    def log(self, **values: Any) -> None:
        pass

    def save(self, name: str, thing: Any) -> None:
        if self.is_main:
            torch.save(thing, self.out / name)

    def _ended(self) -> bool:
        return self._stop or any(self.step >= limit for limit in (self._limit, self._spec.until) if limit)

    @contextlib.contextmanager
    def _own_streams(self) -> Iterator[None]:
        """Inside, this rank's random streams; outside, the ones that all ranks share."""
        shared = _get_streams()
        if self._streams is None:
            _seed(self._spec.seed + self._rank)
        else:
            _set_streams(self._streams)
        try:
            yield
        finally:
            self._streams = _get_streams()
            _set_streams(shared)


class _Loader:
    def __init__(self, job: ReferenceJob, loader: Any, train: bool, smallest: int) -> None:
        self._job = job
        self._loader = loader
        self._train = train
        self._smallest = smallest
        self.totals: dict[str, Any] = {}

    def __len__(self) -> int:
        if self._train:
            return len(self._loader)
        assert self._loader.batch_size is not None
        return int(-(-self._smallest // self._loader.batch_size))

    def _begin(self) -> tuple[Iterator[Any], int]:
        """A pass: its batches, and how many steps it has."""
        orders: list[Any] = [self._loader.sampler, self._loader.batch_sampler] if self._train else []
        for order in orders:
            if hasattr(order, "set_epoch"):
                order.set_epoch(self._job.epoch)
        return iter(self._loader), len(self)

    def __iter__(self) -> Iterator[_Step]:
        job = self._job
        with job._own_streams():
            batches, num_steps = self._begin()
        self.totals = {}
        for _ in range(num_steps):
            if self._train and job._ended():
                break
            probe = job._probe if self._train else None
            if probe is not None:
                probe.before_step(job.step + 1)
            step = _Step(job, batches, self._train)
            yield step
            if probe is not None:
                probe.after_step(job.step)
            for name, value in step.totals.items():
                self.totals[name] = self.totals[name] + value if name in self.totals else value


class _StreamLoader(_Loader):
    def __init__(
        self, job: ReferenceJob, source: Any, batch_size: int, transform: Any, collate: Any, rule: dict[str, Any]
    ) -> None:
        train = rule.get("train", True)
        super().__init__(job, None, train, 0)
        names = ("num_workers", "prefetch_factor", "worker_init_fn", "timeout")
        self._processes: dict[str, Any] = {name: value for name, value in rule.items() if name in names}
        checked = checked_source(source)
        stored = read_all(checked)
        self._samples, self._collate = _StreamSamples(checked, stored, transform), collate
        self._plan = StreamPlan(
            [len(samples) for samples in stored],
            job.num_logical_workers,
            batch_size,
            seed=job._spec.seed,
            shuffle=rule.get("shuffle_partitions", train),
            buffer=rule.get("shuffle_buffer", 0),
            tail=rule.get("tail", "partial"),
            prefetch=self._processes.get("num_workers", 0) * (self._processes.get("prefetch_factor") or 2),
        )

    def _begin(self) -> tuple[Iterator[Any], int]:
        steps = self._plan.steps(self._job.epoch)
        own = [step[self._job._rank] for step in steps if step[self._job._rank]]
        if self._processes.get("num_workers"):
            # What a stock DataLoader makes of these batches; `iter()` draws its base seed.
            loader = DataLoader(self._samples, batch_sampler=own, collate_fn=self._collate, **self._processes)
            return iter(loader), len(steps)
        return (self._collate(self._samples.__getitems__(places)) for places in own), len(steps)


class _StreamSamples(Dataset[Any]):
    """All samples of a source, by partition and place in it."""

    def __init__(self, source: Any, stored: list[list[Any]], transform: Any) -> None:
        self._source, self._stored, self._transform = source, stored, transform

    def __getitem__(self, place: tuple[int, int]) -> Any:
        return self.__getitems__([place])[0]

    def __getitems__(self, places: list[tuple[int, int]]) -> list[Any]:
        samples = self._source.decode([self._stored[partition][i] for partition, i in places])
        return list(samples) if self._transform is None else [self._transform(s) for s in samples]


class _Step:
    def __init__(self, job: ReferenceJob, batches: Iterator[Any], train: bool) -> None:
        self._job = job
        self._batches = batches
        self._train = train
        self._logged: dict[str, list[float]] = {}
        self._summed: dict[str, torch.Tensor] = {}
        self.totals: dict[str, Any] = {}
        self.means: dict[str, float] = {}

    def __iter__(self) -> Iterator[Any]:
        job, nothing = self._job, object()
        probe = job._probe if self._train else None
        with job._own_streams():
            batch = next(self._batches, nothing)
            job._in_turn = True
            if batch is not nothing:
                if probe is not None:
                    probe.turn_begins(job._rank, batch)
                yield batch
                if probe is not None:
                    probe.turn_ends(job._rank)
            else:
                for model in job._models.values():
                    # The other ranks broadcast buffers in their first evaluation forward: take part.
                    if model.will_sync_module_buffers():  # type: ignore[no-untyped-call]
                        model._sync_buffers()  # type: ignore[no-untyped-call]
                        model.require_forward_param_sync = False
            job._in_turn = False
        self._combine()
        if self._train:
            job.step += 1
            job._record({name: _mean(values).hex() for name, values in self._logged.items()})
            if probe is not None:
                probe.reduced(job.step)

    def log(self, **values: Any) -> None:
        for name, value in values.items():
            number = float(value.detach() if isinstance(value, torch.Tensor) else value)
            self._logged.setdefault(name, []).append(number)

    def sum(self, **values: Any) -> None:
        for name, value in values.items():
            tensor = torch.as_tensor(value, dtype=torch.float64 if isinstance(value, float) else None).detach()
            wide = tensor.to(torch.float64 if tensor.is_floating_point() else torch.int64, copy=True)
            self._summed[name] = self._summed[name] + wide if name in self._summed else wide

    @contextlib.contextmanager
    def accumulate(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for model in self._job._models.values():
                stack.enter_context(model.no_sync())
            yield

    def _combine(self) -> None:
        job = self._job
        mine = ({name: _mean(v) for name, v in self._logged.items()}, self._summed, job._turn_stop)
        every: list[Any] = [None] * job.num_logical_workers
        dist.all_gather_object(every, mine)
        job._turn_stop = False
        job._stop = job._stop or any(stop for _, _, stop in every)
        for name in sorted({name for logged, _, _ in every for name in logged}):
            self.means[name] = _mean([logged[name] for logged, _, _ in every if name in logged])
        for name in sorted({name for _, summed, _ in every for name in summed}):
            values = [summed[name] for _, summed, _ in every if name in summed]
            total = values[0]
            for value in values[1:]:
                total = total + value
            self.totals[name] = total if total.dim() else total.item()


def _tree_hook(bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """`--order tree` for stock DDP: everybody's bucket, summed by halves, then scaled."""
    # The order's sums keep denormals even if the script flushes them in its own kernels, as gloo's threads do.
    flushes = (torch.full((1,), 1e-40) * 1.0).item() == 0.0
    torch.set_flush_denormal(False)
    buffer, n = bucket.buffer(), dist.get_world_size()
    if buffer.dtype == torch.float16:
        buffer = buffer * (1.0 / n)
    every = [torch.empty_like(buffer) for _ in range(n)]
    dist.all_gather(every, buffer)

    def total(first: int, last: int) -> torch.Tensor:
        if last - first == 1:
            return every[first]
        half = 1
        while half * 2 < last - first:
            half *= 2
        return total(first, first + half) + total(first + half, last)

    result = total(0, n)
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(result if buffer.dtype == torch.float16 else result * (1.0 / n))
    torch.set_flush_denormal(flushes)
    return future


def _mean(values: list[float]) -> float:
    total = values[0]
    for value in values[1:]:
        total += value
    return total / len(values)


def _seed(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def _get_streams() -> tuple[Any, Any, torch.Tensor]:
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def _set_streams(streams: tuple[Any, Any, torch.Tensor]) -> None:
    random.setstate(streams[0])
    np.random.set_state(streams[1])
    torch.set_rng_state(streams[2])

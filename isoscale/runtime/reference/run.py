"""The reference: the same script under stock DistributedDataParallel, one process per logical worker.

This is what `verify` compares with, so it is deliberately a second implementation of the API, written
with torch's own parts (DDP, DistributedSampler, DataLoader, all_gather_object) and nothing of the
elastic path: no contexts, no buckets, no ordered sums. It is short because N processes need no tricks.
Here are the entry point and the API; `rank` is what a rank has, `model`, `loader` and `step` are what the API hands to
a script.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, Unpack, cast

import msgspec
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from isoscale import env
from isoscale.core.numerics import determinism
from isoscale.errors import IsoscaleError
from isoscale.runtime.reference.live import LiveStockLoader, LiveStreamLoader
from isoscale.runtime.reference.loader import StockLoader, StreamLoader, TurnLoader
from isoscale.runtime.reference.model import stock_ddp, tree_hook
from isoscale.runtime.reference.outcome import Outcome, outcome_path
from isoscale.runtime.reference.rank import Rank, get_streams, seed_streams, set_streams
from isoscale.runtime.training.on_main import OnMain
from isoscale.runtime.training.state import plain, stateful
from isoscale.types import JobSpec

if TYPE_CHECKING:
    from isoscale.runtime.training.job import Job
    from isoscale.runtime.training.stream import StreamOptions

__all__ = ["ReferenceJob", "reference_session", "run_reference"]

Thing = TypeVar("Thing")
Module = TypeVar("Module", bound=torch.nn.Module)

_PARENT_POLL_S = 1.0


def run_reference(train: Callable[[Job], object]) -> NoReturn:
    """Entry point of one rank: reads the job from the directory that `verify` prepared. Ends the process."""
    with reference_session() as rank:
        train(cast("Job", ReferenceJob(rank)))  # as far as a script can tell
    raise AssertionError("a rank ends with its session")


@contextlib.contextmanager
def reference_session() -> Iterator[Rank]:
    """What is done inside is one rank's training. Never leaves: the process ends with it.

    Leaves `rank-<r>.outcome.json` behind: how it ended and, on failure, when and with what traceback.
    """
    out, number = env.out(), env.executor()
    assert out is not None
    assert number is not None
    _end_with_parent()
    code = 0
    try:
        spec = msgspec.json.decode((out / "spec.json").read_bytes(), type=JobSpec)
        # The switches of torch and nothing else: what the job's executors have, a stock script has to have too.
        determinism.apply(spec.determinism, spec.threads, spec.profile)
        store = FileStore(str(out / "store"), spec.workers)
        dist.init_process_group("gloo", store=store, rank=number, world_size=spec.workers)
        rank = Rank(spec, out, number)
        if spec.trace is not None:
            _leave_trace(rank)
        with _recorded(rank):
            yield rank
        dist.barrier()
        outcome = Outcome(ok=True, step=rank.step, digest=rank.digest())
        dist.destroy_process_group()
    except BaseException as error:
        code, outcome = 1, _failure(error)
    temporary = out / f".rank-{number}.tmp"
    temporary.write_bytes(msgspec.json.encode(outcome))
    temporary.replace(outcome_path(out, number))
    sys.stdout.flush()
    sys.stderr.flush()
    # A failed rank must not wait for the others in gloo's or a loader's clean-up.
    os._exit(code)


@contextlib.contextmanager
def _recorded(rank: Rank) -> Iterator[None]:
    """A rank's training, from its seed to what it leaves in its directory."""
    seed_streams(rank.spec.seed)
    with (rank.out / f"rank-{rank.number}.jsonl").open("w") as rank.file:
        yield
    if rank.probe is not None:
        rank.probe.ended(rank.step)
    if rank.number == 0:
        torch.save(plain(rank.result(), "result"), rank.out / "final.pt")


def _leave_trace(rank: Rank) -> None:
    from isoscale.runtime.probes.trace import Subject, Tracer

    subject = Subject(lambda: {n: m.module for n, m in rank.models.items()}, lambda: rank.kept, rank.values)
    path = rank.out / "trace" / f"rank-{rank.number}.jsonl"
    rank.probe = Tracer(path, rank.spec.trace or 0, subject, lambda: rank.number == 0)


def _failure(error: BaseException) -> Outcome:
    now, trace = time.time(), error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__ and trace.tb_next is not None:
        trace = trace.tb_next  # how the training function came to be called is not the user's concern
    summary = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
    if isinstance(error, IsoscaleError):
        return Outcome(ok=False, t=now, summary=str(error))
    if isinstance(error, SystemExit) and not error.code:
        return Outcome(ok=False, t=now, summary="the script called sys.exit() before training was done")
    text = "".join(traceback.format_exception(type(error), error, trace))
    return Outcome(ok=False, t=now, summary=summary, traceback=text)


def _end_with_parent() -> None:
    """End this process if `verify` is killed: nobody else would."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_POLL_S)
        os._exit(1)

    threading.Thread(target=watch, name="parent watch", daemon=True).start()


class ReferenceJob:
    """The job API for one DDP rank. `logical_rank` is the rank."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self.out = rank.out
        self.is_main = rank.number == 0
        self.num_logical_workers = rank.spec.workers
        self.device = torch.device("cpu")

    @property
    def step(self) -> int:
        return self._rank.step

    @property
    def samples(self) -> int:
        return self._rank.samples

    @property
    def epoch(self) -> int:
        return self._rank.epoch

    @property
    def state(self) -> dict[str, Any]:
        return self._rank.values

    # ---- set-up ----

    def model(self, module: Module, **options: Any) -> Module:
        module, ddp = stock_ddp(module, **options)
        determinism.settle(self._rank.spec.determinism)
        if self._rank.spec.order == "tree":
            ddp.register_comm_hook(None, lambda state, bucket: tree_hook(bucket))
        base = type(module).__name__
        taken = sum(name.split("-")[0] == base for name in self._rank.models)
        self._rank.models[f"{base}-{taken + 1}" if taken else base] = ddp
        return module

    def keep(self, name: str, thing: Thing) -> Thing:
        self._rank.kept[name] = stateful(name, thing)
        return thing

    def keep_per_worker(self, name: str, factory: Callable[..., Thing]) -> Thing:
        before = get_streams()
        required = [p for p in inspect.signature(factory).parameters.values() if p.default is p.empty]
        made = factory(self._rank.number) if required else factory()
        set_streams(before)
        return made

    def unkept(self, *names: str) -> None:
        pass

    def loader(
        self,
        dataset: Any,
        *,
        batch_size: int = 1,
        shuffle: bool = False,
        train: bool = True,
        batch_sizes: object = None,
        batch_rule: Any = None,
        **options: Any,
    ) -> StockLoader | LiveStockLoader:
        n = self._rank.spec.workers
        if batch_sizes is not None:
            if "sampler" in options:
                own = options.pop("sampler")(self._rank.number, n)
            else:
                own = DistributedSampler(dataset, n, self._rank.number, shuffle, seed=self._rank.spec.seed)
            return LiveStockLoader(self._rank, dataset, batch_size, own, batch_rule, options)
        if "batch_sampler" in options:
            options["batch_sampler"] = options["batch_sampler"](self._rank.number, n)
            return StockLoader(self._rank, DataLoader(dataset, **options), train=train, most_samples=0)
        if "sampler" in options:
            options["sampler"] = options["sampler"](self._rank.number, n)
            return StockLoader(self._rank, DataLoader(dataset, batch_size, **options), train=train, most_samples=0)
        sampler: Iterable[int] = range(self._rank.number, len(dataset), n)
        if train:
            sampler = DistributedSampler(dataset, n, self._rank.number, shuffle, seed=self._rank.spec.seed)
        stock = DataLoader(dataset, batch_size, sampler=sampler, **options)
        return StockLoader(self._rank, stock, train=train, most_samples=-(-len(dataset) // n))

    def on_batch_change(self, f: Callable[[int, int], object]) -> None:
        assert self._rank.live is not None
        self._rank.live.rule = f

    def stream(
        self, source: object, *, batch_size: int = 1, **options: Unpack[StreamOptions]
    ) -> StreamLoader | LiveStreamLoader:
        if options.get("batch_sizes") is not None:
            return LiveStreamLoader(self._rank, source, batch_size, options)
        return StreamLoader(self._rank, source, batch_size, options)

    def turns(self, steps: int, *, samples: int = 1, train: bool = True, only: int | None = None) -> TurnLoader:
        return TurnLoader(self._rank, steps, samples, only, train=train)

    # ---- progress ----

    def epochs(self, count: int, *, start: int = 0) -> Iterator[int]:
        for epoch in range(start, count):
            self._rank.epoch = epoch
            if self._rank.has_ended():
                return
            yield epoch

    def steps(self, count: int) -> Iterator[int]:
        self._rank.limit, epoch = count, 0
        while not self._rank.has_ended():
            self._rank.epoch = epoch
            yield epoch
            epoch += 1

    def stop(self, reason: str = "") -> None:
        if self._rank.in_turn:
            self._rank.turn_stop = True
        else:
            self._rank.stopped = True

    def log(self, **values: object) -> None:
        pass

    def on_main(self, factory: Callable[..., Thing], **options: Any) -> OnMain[Thing]:
        """A comparison leaves no traces elsewhere: it is never made."""
        return OnMain(None)

    def save(self, name: str, thing: object) -> None:
        if self.is_main and "://" not in name:  # the job itself writes there
            (self.out / name).parent.mkdir(parents=True, exist_ok=True)
            torch.save(thing, self.out / name)

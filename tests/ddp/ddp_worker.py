"""One process of the pool: reads commands from a socket, runs cases, answers with what came out or with the error."""

from __future__ import annotations

import faulthandler
import gc
import hashlib
import importlib
import multiprocessing
import os
import random
import signal
import sys
import traceback
import weakref
from collections.abc import Callable
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    sys.path[:0] = sys.argv[2:]

import numpy as np
import torch
import torch.distributed as dist
from ddp_pool import Part
from torch.nn.parallel import DistributedDataParallel

from isoscale.core.encoding.digest import flat_state, tensor_digest
from isoscale.core.reduction.exchange import LocalExchange
from isoscale.core.streams.numpy_stream import NumpyStream
from isoscale.core.totals import Combined
from isoscale.runtime.reference.rank import Rank, seed_streams
from isoscale.runtime.reference.run import ReferenceJob
from isoscale.runtime.training.execute import code_of, execute
from isoscale.runtime.training.loop import TrainingLoop
from isoscale.runtime.transport.gloo import connect
from isoscale.types import JobSpec, Placement

Train = Callable[[Any], None]

#: every DDP that there is in this process
ALIVE: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()


class Records:
    """A sink that remembers."""

    def __init__(self) -> None:
        self.logged_values: list[dict[str, dict[int, str]]] = []
        self.audits = 0

    def rebatched(self, change: Any) -> None: ...

    def warned(self, **fact: Any) -> None: ...

    def streamed(self, **fact: Any) -> None:
        pass

    def step(
        self,
        *,
        step: int,
        epoch: int,
        values: Combined,
        seconds: float,
        samples: int,
        total: int,
        place: Any,
        **more: Any,
    ) -> None:
        self.logged_values.append(
            {name: {rank: exact(value) for rank, value in by_rank.items()} for name, by_rank in values.by_rank.items()}
        )

    def logged(self, *, step: int, epoch: int, values: dict[str, Any]) -> None:
        pass

    def audited(self, *, step: int, digest: str) -> None:
        self.audits += 1


def run_reference(train: Train, spec: JobSpec, directory: Path, shares: tuple[int, ...], rank: int) -> Part:
    store = dist.FileStore(str(directory / "store"), len(shares))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=len(shares))
    reference = Rank(spec, directory, rank)
    seed_streams(spec.seed)
    train(ReferenceJob(reference))  # type: ignore[arg-type]
    dist.barrier()
    logged = [{name: {rank: exact(float.fromhex(v))} for name, v in record.items()} for record in reference.records]
    models = {name: model.module for name, model in reference.models.items()}
    own = {-1: streams(), rank: buffers(reference.models)}
    if reference.streams is not None:
        own[rank] |= stream_digests(*reference.streams)
    return Part(reference.step, state(reference.result(), models, reference.kept), logged, own)


def run_elastic(train: Train, spec: JobSpec, directory: Path, shares: tuple[int, ...], index: int) -> Part:
    placement, sink = Placement(shares=shares), Records()
    exchange: Any = LocalExchange(spec.workers) if len(shares) == 1 else connect(str(directory / "e"), placement, index)
    try:
        loop = TrainingLoop(spec, exchange, sink, train_code=code_of(train))
        execute(loop, train)
    finally:
        if len(shares) > 1:
            exchange.retire(None)
    models = {name: model.module for name, model in loop.state.models.items()}
    own = {-1: streams()}
    for rank in placement.ranks_of(index):
        own[rank] = {}
        for name, model in loop.state.models.items():
            mine = model.buffers.own.get(rank, model.buffers.shared)
            if not model.buffers.broadcast:
                own[rank] |= {f"buffer {name}.{b}": text(v) for b, v in zip(model.buffers.names, mine, strict=True)}
        if loop.engine.contexts.started:
            kept = loop.engine.contexts._streams[rank]
            own[rank] |= stream_digests(kept.python.state, legacy(kept.numpy), kept.torch)
    final = state(loop.state.final(loop.step), models, loop.state.kept)
    return Part(loop.step, final, sink.logged_values, own, sink.audits)


def state(final: dict[str, Any], models: dict[str, Any], kept: dict[str, Any]) -> dict[str, str]:
    """What was saved, and how gradients and optimizer state lie in memory: later arithmetic may depend on it."""
    out = {path: text(leaf) for path, leaf in flat_state(final)}
    for name, model in models.items():
        for parameter_name, parameter in model.named_parameters():
            grad = parameter.grad
            out[f"{name}.{parameter_name}.grad"] = text(grad) if grad is None else f"{text(grad)} {grad.stride()}"
    for name, thing in kept.items():
        for path, leaf in flat_state(thing.state_dict()):
            if isinstance(leaf, torch.Tensor):
                out[f"{name}.{path} strides"] = str(leaf.stride())
    return out


def buffers(models: dict[str, Any]) -> dict[str, str]:
    return {
        f"buffer {name}.{buffer_name}": text(buffer)
        for name, model in models.items()
        if not model.broadcast_buffers
        for buffer_name, buffer in model.module.named_buffers()
    }


def streams() -> dict[str, str]:
    return stream_digests(random.getstate(), np.random.get_state(), torch.get_rng_state())


def legacy(stream: NumpyStream) -> tuple[Any, ...]:
    """As `numpy.random.get_state()` gives it."""
    return "MT19937", stream.words, stream.position, int(stream.has_gauss), stream.gauss


def stream_digests(python: Any, numpy: Any, torch_state: torch.Tensor) -> dict[str, str]:
    return {
        "stream of random": hashlib.sha256(repr(python).encode()).hexdigest()[:16],
        "stream of numpy": hashlib.sha256(repr((numpy[0], numpy[1].tolist(), numpy[2:])).encode()).hexdigest()[:16],
        "stream of torch": tensor_digest(torch_state)[:16],
    }


def text(leaf: Any) -> str:
    if isinstance(leaf, torch.Tensor):
        return f"{tensor_digest(leaf)[:16]} {leaf.dtype} {tuple(leaf.shape)}"
    return exact(leaf) if isinstance(leaf, float) else repr(leaf)


def exact(value: float) -> str:
    return value.hex()  # of a NaN only that it is one; tensors show which


def reset() -> None:
    """A new process in all that matters to the next case, whatever the last one left or raised."""
    for child in multiprocessing.active_children():
        child.kill()  # persistent loader processes: collected as garbage they would be waited for, 5 s each
    # A model and its DDP refer to each other. They go while their group is still there: as the last one to hold it, DDP
    # would end it in a collection, which waits for a thread that waits for this one (the interpreter's lock).
    gc.collect()
    assert not ALIVE, "a DDP outlives its case"
    if dist.is_initialized():
        dist.destroy_process_group()
    torch.set_flush_denormal(False)
    torch.set_num_threads(1)
    # torch's own function imports all of the compiler first, in each of these processes.
    torch._C._set_deterministic_algorithms(True, warn_only=False)
    torch.set_default_dtype(torch.float32)
    torch.set_grad_enabled(True)
    torch.manual_seed(0)


def answer(command: dict[str, Any]) -> Any:
    module, _, function = command["case"].partition(":")
    directory, shares = Path(command["directory"]), tuple(command["shares"])
    spec = JobSpec(**({"workers": sum(shares), "seed": 3, "audit_every": 3, "out": str(directory)} | command["spec"]))
    run = {"reference": run_reference, "elastic": run_elastic}[command["how"]]
    try:
        return run(getattr(importlib.import_module(module), function), spec, directory, shares, command["index"])
    except Exception as error:
        error.add_note("in a process of the pool:\n" + traceback.format_exc(limit=-8))
        # Frames hold models, groups and buckets; a group that lives on keeps its peers waiting.
        return error.with_traceback(None)


def remember_ddp() -> None:
    begin = DistributedDataParallel.__init__

    def remembered(self: DistributedDataParallel, *args: Any, **options: Any) -> None:
        ALIVE.add(self)
        begin(self, *args, **options)

    DistributedDataParallel.__init__ = remembered  # type: ignore[method-assign]


def main() -> None:
    remember_ddp()
    connection = Client(sys.argv[1], "AF_UNIX")
    gc.freeze()  # torch itself is never garbage; the collections between cases are about cases
    # A loader process has the groups of its parent without their threads: collecting one, it would wait for ever.
    os.register_at_fork(after_in_child=gc.freeze)
    while True:
        reset()
        try:
            command = connection.recv()
        except EOFError:
            os._exit(0)
        reply = answer(command)
        if isinstance(reply, BaseException):
            reply.__context__ = reply.__cause__ = None
            reset()
        try:
            connection.send(reply)
        except (TypeError, AttributeError, ValueError):  # an exception that cannot be pickled
            connection.send(RuntimeError(f"{type(reply).__name__}: {reply}"))
        del reply


if __name__ == "__main__":
    main()

"""One executor: a process on one device that runs the user's script.

Connects to the coordinator, sets itself up as the job's spec says, shows what it computes with, and
when a generation begins joins its process group and trains. A thread of its own talks to the
coordinator, so no step ever waits for a message. Ends the process when the coordinator is gone.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.sync.client import ClientConnection
from websockets.sync.client import connect as connect_websocket

from isoscale import env
from isoscale.core import determinism
from isoscale.core.exchange import Exchange, LocalExchange
from isoscale.core.fingerprint import combine_digests, kernel_digests
from isoscale.core.totals import Combined
from isoscale.errors import IsoscaleError
from isoscale.protocol import messages as m
from isoscale.runtime.execute import code_of, execute
from isoscale.runtime.job import Job, Value, step_loss
from isoscale.runtime.selfcheck import check_ring
from isoscale.runtime.state import atomic_save
from isoscale.types import Placement

__all__ = ["run_executor"]

_LOST = 75  # EX_TEMPFAIL: the coordinator went away, the script is not to blame
_FAREWELL_S = 10.0


class _Link:
    """The connection to the coordinator: a sender thread, a receiver thread, and the messages that matter."""

    def __init__(self, url: str, token: str) -> None:
        headers = {"Authorization": f"Bearer {token}"}
        self._socket: ClientConnection = connect_websocket(
            url, additional_headers=headers, max_size=m.MAX_MESSAGE_BYTES, compression=None, proxy=None
        )
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._incoming: queue.SimpleQueue[m.FromCoordinator] = queue.SimpleQueue()
        self._leaving = False
        self._sender = threading.Thread(target=self._send_all, name="to coordinator", daemon=True)
        self._sender.start()
        threading.Thread(target=self._receive_all, name="from coordinator", daemon=True).start()

    def send(self, message: m.FromExecutor) -> None:
        self._outgoing.put(m.encode(message))

    def receive(self) -> m.FromCoordinator:
        return self._incoming.get()

    def close(self) -> None:
        """Everything sent so far reaches the coordinator, unless it is gone."""
        self._leaving = True
        self._outgoing.put(None)
        self._sender.join(_FAREWELL_S)
        self._socket.close()

    def _send_all(self) -> None:
        try:
            while (frame := self._outgoing.get()) is not None:
                self._socket.send(frame)
        except ConnectionClosed:
            self._coordinator_gone()

    def _receive_all(self) -> None:
        try:
            for frame in self._socket:
                self._incoming.put(m.decode_from_coordinator(frame if isinstance(frame, bytes) else frame.encode()))
        except ConnectionClosed:
            pass
        self._coordinator_gone()

    def _coordinator_gone(self) -> None:
        if not self._leaving:
            with contextlib.suppress(OSError):  # the pipe for output went with it
                print("isoscale: the coordinator is gone; this executor ends", file=sys.stderr, flush=True)
            # Not sys.exit: the main thread may be inside a kernel or a collective. Loader processes go along.
            if os.getpgrp() == os.getpid():
                os.killpg(0, signal.SIGKILL)
            os._exit(_LOST)


class _LinkSink:
    """A job's facts as messages."""

    def __init__(self, link: _Link, generation: int, record: bool) -> None:
        self._link = link
        self._generation = generation
        self._record = record

    def step(self, *, step: int, epoch: int, values: Combined, seconds: float, samples: int, total: int) -> None:
        self._link.send(
            m.StepDone(
                step=step,
                epoch=epoch,
                loss=step_loss(values),
                seconds=seconds,
                samples=samples,
                generation=self._generation,
                total=total,
            )
        )
        if self._record:
            exact = {name: {r: v.hex() for r, v in by_rank.items()} for name, by_rank in values.by_rank.items()}
            self._link.send(m.Recorded(step=step, values=exact))

    def logged(self, *, step: int, epoch: int, values: dict[str, Value]) -> None:
        self._link.send(m.Logged(step=step, epoch=epoch, values=values))

    def audited(self, *, step: int, digest: str) -> None:
        self._link.send(m.Audited(step=step, digest=digest))


def run_executor(train: Callable[[Job], Any]) -> NoReturn:
    """Called by `isoscale.run` in a process that a coordinator started. Ends the process."""
    url, token_file, executor = env.coordinator(), env.token_file(), env.executor()
    assert url is not None
    assert token_file is not None
    try:
        link = _Link(f"{url}/executor/{executor}", token_file.read_text().strip())
    except (OSError, WebSocketException) as error:
        sys.exit(f"isoscale: no coordinator at {url}: {error}")
    job: Job | None = None
    try:
        job, code = _prepare(link, executor or 0, train), 0
        digest = execute(job, train)
        _save_result(job, link)
        link.send(m.Finished(executor=executor or 0, step=job.step, digest=digest, stop_reason=job._stop_reason))
    except BaseException as error:
        code = _report_failure(link, executor or 0, job, error)
    link.close()
    sys.stdout.flush()
    sys.stderr.flush()
    # Loader processes and gloo's threads have nothing left to say; interpreter shutdown could only hang on them.
    os._exit(code)


def _prepare(link: _Link, executor: int, train: Callable[[Job], Any]) -> Job:
    """From the first message to a job that can train."""
    welcome = link.receive()
    assert isinstance(welcome, m.Welcome), f"expected Welcome, got {welcome}"
    spec = welcome.spec
    determinism.apply(spec.determinism, spec.threads, spec.profile)
    if spec.order == "ddp":
        check_ring(spec.workers)
    kernels = kernel_digests()
    link.send(
        m.Hello(
            executor=executor,
            pid=os.getpid(),
            kind=welcome.kind,
            fingerprint=combine_digests(kernels),
            kernels=kernels,
            factors=determinism.factors().to_dict(),
        )
    )
    begin = link.receive()
    assert isinstance(begin, m.Begin), f"expected Begin, got {begin}"
    placement = Placement(shares=begin.shares)
    exchange: Exchange = LocalExchange(spec.workers)
    if placement.num_executors > 1:
        from isoscale.runtime.collective import connect

        exchange = connect(Path(begin.store), placement, begin.index)
    sink = _LinkSink(link, begin.generation, spec.record)
    device = "cuda" if welcome.kind.startswith("cuda") else "cpu"
    job = Job(spec, exchange, sink, device=device, train_code=code_of(train))
    if spec.trace is not None:
        from isoscale.runtime.trace import trace_job

        trace_job(job, begin.index)
    elif spec.anatomy:
        from isoscale.runtime.anatomy import dissect_job

        dissect_job(job)
    return job


def _save_result(job: Job, link: _Link) -> None:
    if job.is_main:
        start, path = time.perf_counter(), job.out / "final.pt"
        atomic_save(job._state.final(job.step), path)
        link.send(m.Saved(step=job.step, path=path.name, seconds=round(time.perf_counter() - start, 6)))


def _report_failure(link: _Link, executor: int, job: Job | None, error: BaseException) -> int:
    rank = job._engine.turn.logical_rank if job is not None else None
    summary = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
    text, code = "", 1
    if isinstance(error, IsoscaleError):
        summary, code = str(error), error.exit_code
    elif isinstance(error, SystemExit) and not error.code:
        summary = "the script called sys.exit() before training was done"
    else:
        text = "".join(traceback.format_exception(type(error), error, _script_frames(error.__traceback__)))
    link.send(
        m.Failed(
            executor=executor,
            error=type(error).__name__,
            summary=summary,
            traceback=text,
            logical_rank=rank,
            exit_code=code,
            step=job.step if job is not None else 0,
        )
    )
    return code


def _script_frames(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the training function on: how it came to be called is not the user's concern."""
    own = str(Path(__file__).parent)
    first = trace
    while first is not None and first.tb_frame.f_code.co_filename.startswith(own):
        first = first.tb_next
    return first or trace

"""One executor: a process on one device that runs the user's script.

Connects to the coordinator, sets itself up as the job's spec says, shows what it computes with, and when it is
needed runs the training function: as a member of the first generation, or as a newcomer (`runtime.executor.member`).
Without a coordinator it trains on.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import NoReturn

import msgspec
from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection

from isoscale import env
from isoscale.backends.host_id import machine_id
from isoscale.backends.leftovers import end_own_leftovers
from isoscale.clock import since_boot
from isoscale.core.numerics import determinism
from isoscale.core.numerics.fingerprint import combine_digests, kernel_digests
from isoscale.core.reduction.exchange import LocalExchange
from isoscale.errors import ExecutorLostError, IsoscaleError, UserError
from isoscale.protocol import messages as m
from isoscale.runtime.checkpoint.files import Identity
from isoscale.runtime.code.imports import watching
from isoscale.runtime.control.directory import control_directory, memory_directory, read_token, run_id
from isoscale.runtime.control.executor_link import Link, address_here, find_coordinator, open_socket
from isoscale.runtime.control.home import Home
from isoscale.runtime.control.trail import Trail, trail_path
from isoscale.runtime.executor import result
from isoscale.runtime.executor.checkpoint_writer import CheckpointWriter
from isoscale.runtime.executor.depot import Depot
from isoscale.runtime.executor.full_disk_output import forgive_full_disk
from isoscale.runtime.executor.link_sink import LinkSink
from isoscale.runtime.executor.member import Leaving, Member
from isoscale.runtime.executor.selfcheck import check_ring
from isoscale.runtime.training.execute import code_of, executing, exit_of
from isoscale.runtime.training.job import Job
from isoscale.runtime.training.loop import TrainingLoop
from isoscale.runtime.training.uses import Uses
from isoscale.types import StepPlace

__all__ = ["executor_session", "run_executor"]

Finder = Callable[[], tuple[str, int] | None]

#: how long a process that is just starting looks for a coordinator, while the run's directory names one
_FIRST_CONNECTION_S, _RETRY_S = 60.0, 0.2
#: and while somebody takes the connection and does not answer: a coordinator that is stopped, or swapped out
_FIRST_ANSWER_S = 600.0
_LOST = 75  # EX_TEMPFAIL: the coordinator went away, the script is not to blame


def run_executor(train: Callable[[Job], object]) -> NoReturn:
    """Called by `isoscale.run` in a process that a coordinator started. Ends the process."""
    with executor_session(code_of(train)) as loop:
        train(Job(loop))
    raise AssertionError("an executor ends with its session")


@contextlib.contextmanager
def executor_session(train_code: CodeType | None) -> Iterator[TrainingLoop]:
    """From the first connection to the end of the process: what is done inside is this executor's training.

    `train_code` is that of the training function, where there is one. Never leaves: the process ends with it.
    """
    url, token_file, executor = env.coordinator(), env.token_file(), env.executor()
    assert url is not None
    assert token_file is not None
    assert executor is not None
    token, path = read_token(token_file), f"/executor/{executor}"
    depot = Depot(storage) if (storage := env.storage()) is not None else None
    url, socket_, welcome = _first_connection(url, path, token, _finder(token_file.parent, depot, waits=True))
    welcome = _at_home(welcome, token, depot)
    home = Home(Path(welcome.spec.out), token)
    host = env.host() or address_here(welcome.settings.host, socket_)
    member = Member(executor, welcome.settings, host, welcome.term)
    told: list[Uses] = []
    link = Link(
        socket_,
        path=path,
        token=token,
        ca_file=env.ca_file(),
        find=_finder(control_directory(Path(welcome.spec.out)), depot),
        on_message=member.on_message,
        introduce=lambda: _introduction(member, told),
        on_refused=member.on_refused,
    )
    link.use_address(url, welcome.term)
    member.link = link
    member.pace.trail = _trail(token, executor)
    threading.Thread(target=_beat, args=(member,), name="heartbeat", daemon=True).start()
    member.hello = hello = _set_up(welcome, host)
    member.writer = CheckpointWriter(
        lambda: (home.find() if depot is None else depot.scratch) / "checkpoints",
        Identity.of(welcome.spec, fingerprint=hello.fingerprint),
        str(executor),
        welcome.settings.checkpoint_every,
        link.send,
        None if depot is None else depot.hand_over,
    )
    if depot is not None:
        member.read_checkpoint = depot.read_checkpoint
    told.append(Uses(watching(), link.send))
    link.send(hello)
    forgive_full_disk(lambda message: link.send(m.Warned(message=message)))
    _catch_notice(member)
    code = 0
    try:
        with _training(train_code, welcome, member, home, told[0], token, depot) as loop:
            yield loop
    except _FailedRunError as failed:
        code = failed.exit_code
    link.close()
    sys.stdout.flush()
    sys.stderr.flush()
    if depot is not None:
        depot.close()
    end_own_leftovers()
    # Loader processes and gloo's threads have nothing left to say; interpreter shutdown could only hang on them.
    os._exit(code)


def _introduction(member: Member, told: list[Uses]) -> m.Rejoin | None:
    """To another coordinator, who does not know what the first one was told."""
    rejoin = member.rejoin()
    if rejoin is not None and told:
        told[0].again()
    return None if rejoin is None else msgspec.structs.replace(rejoin, at=since_boot())


class _FailedRunError(Exception):
    """The script failed, and the coordinator has been told."""

    def __init__(self, exit_code: int) -> None:
        self.exit_code = exit_code


@contextlib.contextmanager
def _training(
    train_code: CodeType | None,
    welcome: m.Welcome,
    member: Member,
    home: Home,
    uses: Uses,
    token: str,
    depot: Depot | None,
) -> Iterator[TrainingLoop]:
    """Training, from where this executor comes in, and what is to be said of its end."""
    loop: TrainingLoop | None = None
    try:
        loop = _make_loop(train_code, welcome, member)
        loop.on_data, loop.on_batches = uses.reads, uses.declares
        loop.main_objects.run_id = run_id(token)
        with executing(loop, watches_files=train_code is not None):
            yield loop
        if loop.approaching:
            raise ExecutorLostError(
                executor=member.executor, pid=os.getpid(), generation=0, reason="the script ended before it could join"
            )
        if member.newcomer.staged is not None:
            raise member.newcomer.not_come_by()
        member.writer.finish()
        finished = m.Finished(
            executor=member.executor, step=loop.step, digest=loop.digest, stop_reason=loop.stop_reason
        )
        if loop.is_main:
            result.save_result(loop, member.link, home, finished, member.switching.unheard, depot)
        loop.main_objects.close()  # before anybody is told of the end: what is left of the job is ended then
        member.finish(finished)
        final = loop

        def save_instead() -> None:
            final.tell_left()
            result.save_result(final, member.link, home, finished, member.switching.unheard, depot)

        member.wait_dismissed(save_instead)
    except Leaving as leaving:
        if loop is not None:
            loop.main_objects.close()
        member.writer.finish()
        member.link.send(m.Left(reason=str(leaving)))
    except BaseException as error:
        if member.state == "finished":
            return  # nobody came back to hear of it, but the result is on disk
        rank = loop.engine.turn.logical_rank if loop is not None else None
        if loop is not None:
            with contextlib.suppress(Exception):
                result.save_after_crash(loop, member.writer, member.generation, home, depot)
            loop.main_objects.close()
        raise _FailedRunError(_report_failure(member, loop, rank, error)) from error


def _set_up(welcome: m.Welcome, host: str) -> m.Hello:
    spec, store = welcome.spec, ""
    if welcome.settings.storage or not ipaddress.ip_address(host).is_loopback:
        from isoscale.runtime.transport.rendezvous import StoreServer

        store = StoreServer(host).address
    determinism.apply(spec.determinism, spec.threads, spec.profile)
    if spec.order == "ddp":
        check_ring(spec.workers)
    kernels = kernel_digests()
    return m.Hello(
        executor=welcome.executor,
        pid=os.getpid(),
        kind=welcome.kind,
        fingerprint=combine_digests(kernels),
        kernels=kernels,
        factors=determinism.factors().to_dict(),
        machine=machine_id(),
        store=store,
        key=env.key(),
    )


def _make_loop(train_code: CodeType | None, welcome: m.Welcome, member: Member) -> TrainingLoop:
    spec, order = welcome.spec, member.wait_to_begin()
    sink = LinkSink(member.link, member, spec.record)
    device = "cuda" if welcome.kind.startswith("cuda") else "cpu"
    if isinstance(order, m.Begin):
        loop = TrainingLoop(spec, member.begin(order), sink, device=device, train_code=train_code)
        loop.recorded_batches = (order.batches, order.reached)
    else:
        # On its way a newcomer does everything alone, and to no effect.
        member.approach()
        loop = TrainingLoop(spec, LocalExchange(spec.workers), sink, device=device, train_code=train_code)
        loop.approaching = True
    member.attach(loop)
    member.switching.unheard = partial(sink.unheard, loop.facts)
    if fault := env.fault():
        from isoscale.runtime.executor import fault_points

        fault_points.install(fault, member, loop)
    if spec.trace is not None:
        from isoscale.runtime.probes.trace import trace_job

        trace_job(loop, member.executor)
    elif spec.anatomy:
        from isoscale.runtime.probes.anatomy import dissect_job

        dissect_job(loop)
    return loop


def _beat(member: Member) -> None:
    """From a thread of its own: a step may take as long as it likes."""
    while True:
        time.sleep(member.settings.heartbeat_s)
        member.link.send_now(member.pace.beat(member.step, member.settings.heartbeat_s))


def _trail(token: str, executor: int) -> Callable[[StepPlace, int, int], None] | None:
    """Where the coordinator can read it: on its own machine, which has made a directory for it."""
    with contextlib.suppress(OSError):
        directory = memory_directory(token)
        return Trail(trail_path(directory, executor)).note if directory is not None else None
    return None


def _catch_notice(member: Member) -> None:
    """SIGTERM is what spot instances, Slurm and Kubernetes send before they take a device away."""
    owner = os.getpid()

    def notice(signum: int, frame: FrameType | None) -> None:
        if os.getpid() != owner:  # a loader process, forked from here
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
            return
        member.noticed = "SIGTERM"
        member.link.send(m.Notice(reason=member.noticed))

    signal.signal(signal.SIGTERM, notice)


def _report_failure(member: Member, loop: TrainingLoop | None, logical_rank: int | None, error: BaseException) -> int:
    summary = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
    text, code = "", 1
    if isinstance(error, IsoscaleError):
        summary, code = str(error), error.exit_code
    elif isinstance(error, SystemExit):
        summary, code = exit_of(error)
    else:
        text = "".join(traceback.format_exception(type(error), error, _script_frames(error.__traceback__)))
    member.link.send(
        m.Failed(
            executor=member.executor,
            error=type(error).__name__,
            summary=summary,
            traceback=text,
            logical_rank=logical_rank,
            exit_code=code,
            step=loop.step if loop is not None else 0,
        )
    )
    return _LOST if isinstance(error, ExecutorLostError) else code


def _script_frames(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the training function on: how it came to be called is not the user's concern."""
    own = str(Path(__file__).resolve().parents[1])
    first = trace
    while first is not None and first.tb_frame.f_code.co_filename.startswith(own):
        first = first.tb_next
    return first or trace


def _finder(control: Path, depot: Depot | None, *, waits: bool = False) -> Finder:
    """Who is the coordinator: by the run's directory, by its storage, or by the newer word of both.

    It `waits` for the storage where nobody is known yet.
    """
    stored: Finder = lambda: None  # noqa: E731
    if depot is not None:
        stored = depot.look_for_coordinator if waits else depot.find_coordinator

    def find() -> tuple[str, int] | None:
        found = [find_coordinator(control), stored()]
        return max((one for one in found if one is not None), key=lambda one: one[1], default=None)

    return find


def _at_home(welcome: m.Welcome, token: str, depot: Depot | None) -> m.Welcome:
    """The same job, with a directory of this process's own where the run's cannot be seen."""
    if depot is None:
        return welcome
    with contextlib.suppress(OSError):
        if read_token(control_directory(Path(welcome.spec.out)) / "token") == token:
            return welcome
    depot.follow_log(welcome.executor)
    return msgspec.structs.replace(welcome, spec=replace(welcome.spec, out=str(depot.scratch)))


def _first_connection(url: str, path: str, token: str, find: Finder) -> tuple[str, ClientConnection, m.Welcome]:
    """With the coordinator that started this process or, if that is gone, with one that has taken over since."""
    begun = time.monotonic()
    while True:
        try:
            socket_ = open_socket(f"{url}{path}", token, env.ca_file())
            return url, socket_, _welcome(socket_)
        except UserError as error:
            sys.exit(f"isoscale: {error}")
        except (OSError, WebSocketException) as error:
            newest = find()
            limit = _FIRST_ANSWER_S if isinstance(error, TimeoutError) else _FIRST_CONNECTION_S
            if newest is None or time.monotonic() - begun > limit:
                sys.exit(f"isoscale: no coordinator at {url}: {error}")
            url = newest[0]
            time.sleep(_RETRY_S)


def _welcome(socket_: ClientConnection) -> m.Welcome:
    frame = socket_.recv()
    message = m.decode_from_coordinator(frame if isinstance(frame, bytes) else frame.encode())
    assert isinstance(message, m.Welcome), f"expected Welcome, got {message}"
    return message

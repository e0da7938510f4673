"""Runs a job twice, elastically and as the stock DDP reference, and gathers what `runtime.tools.compare` needs.

The reference is N processes of the same script, one per logical worker (`runtime.reference.run`); here they are
started, watched and ended. The elastic run comes first: it checks the rules of a turn, which plain DDP would answer
with a hang. Torch is imported only when there is something to compare.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from isoscale import env
from isoscale.backends.log_reader import NewLines
from isoscale.backends.seam import Backend, ExecutorProcess
from isoscale.batches import recorded_changes
from isoscale.kinds import executor_environment, profile_named, profile_of
from isoscale.protocol.events import read_events
from isoscale.runtime.code.freezing import Frozen
from isoscale.runtime.code.launch import launch_of
from isoscale.runtime.coordinator.run import RunResult, local_backend
from isoscale.runtime.reference.outcome import Outcome, outcome_path
from isoscale.types import JobSpec, Settings

if TYPE_CHECKING:
    from isoscale.runtime.tools.compare import Report

__all__ = [
    "Exit",
    "ReferenceObserver",
    "ReferenceResult",
    "blame",
    "reference_spec",
    "report_on",
    "run_reference_ranks",
]

_POLL_S = 0.2
#: ranks that one failure takes down with it report within this time
_ECHO_S = 1.0
#: neither a step nor a line of output for so long: the reference hangs
_SILENCE_S = 600.0


class ReferenceObserver(Protocol):
    """Somebody who watches the reference. Must not block."""

    def on_step(self, step: int) -> None: ...

    def on_output(self, line: str) -> None:
        """A line that the script printed on rank 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceResult:
    """How the reference ended: `error` is empty on success."""

    step: int = 0
    digest: str = ""
    error: str = ""
    traceback: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """One rank that ended: how, and what it wrote down about it (None: nothing)."""

    rank: int
    reason: str
    outcome: Outcome | None
    tail: str = ""


def reference_spec(spec: JobSpec, num_steps: int) -> JobSpec:
    """The job as the reference runs it: at most one step further than the elastic run went, lest it run away."""
    until = min(limit for limit in (spec.until, num_steps + 1) if limit)
    events = Path(spec.out) / "events.jsonl"
    # As they were made: factors that were measured are not measured again.
    plan = recorded_changes(read_events(events)) if spec.batch_plan and events.exists() else spec.batch_plan
    return replace(spec, out=str(Path(spec.out) / "reference"), until=until, batch_plan=tuple(plan), measure_noise=0)


async def run_reference_ranks(
    spec: JobSpec, kind: str, observer: ReferenceObserver, *, code: Frozen | None = None, warm: bool = True
) -> ReferenceResult:
    """Run the reference to its end in `spec.out`. Cancelling the task ends all ranks; so does the failure of one.

    `code` is what another run of the job has kept; without it the script runs as it is now. `warm`: see `Settings`.
    """
    if spec.batch:
        raise ValueError(f"batch={spec.batch}: the reference takes the script's own batch size")
    directory = Path(spec.out)
    (directory / "logs").mkdir(parents=True)
    (directory / "spec.json").write_bytes(msgspec.json.encode(spec))
    profile = profile_named(spec.profile) if spec.profile else profile_of(kind)
    backend: Backend = local_backend(Settings(warm=warm), directory)
    processes: list[ExecutorProcess] = []
    watch = _Watch(directory, observer)
    try:
        for rank in range(spec.workers):
            variables = {
                env.REFERENCE: "1",
                env.OUT: str(directory),
                env.EXECUTOR: str(rank),
                "GLOO_SOCKET_IFNAME": "lo",
                "PYTHONHASHSEED": "0",
                "PYTHONUNBUFFERED": "1",
            }
            if code is not None:
                variables[env.CODE] = str(code.path.resolve())
            environment = executor_environment(env.child_environment(variables), profile, spec.threads)
            launch = launch_of(spec, environment, directory / "logs" / f"rank-{rank}.log", kept=code is not None)
            device = backend.free_device(kind, {process.identity.device for process in processes})
            processes.append(await backend.start(launch, device))
        return await _until_done(processes, directory, watch)
    finally:
        await asyncio.gather(*(process.end() for process in processes))
        await backend.close()


def blame(exits: Sequence[Exit]) -> Exit | None:
    """The rank that failed first; None if none has failed so far.

    A rank that fails takes the others down through their sockets, so the one to name is the one that died without a
    word, else the one whose error is the oldest.
    """
    silent = [e for e in exits if e.outcome is None]
    if silent:
        return silent[0]
    failed = [e for e in exits if e.outcome is not None and not e.outcome.ok]
    return min(failed, key=lambda e: e.outcome.t if e.outcome is not None else 0.0, default=None)


def report_on(spec: JobSpec, elastic: RunResult, reference: ReferenceResult) -> Report:
    """Load what both runs left and compare it."""
    import torch

    from isoscale.runtime.tools.compare import Side, compare

    directory = Path(spec.out)
    ranks = [_lines(directory / "reference" / f"rank-{rank}.jsonl") for rank in range(spec.workers)]
    steps: list[dict[str, dict[int, str]]] = [{} for _ in range(max(map(len, ranks), default=0))]
    for rank, records in enumerate(ranks):
        for step, record in zip(steps, records, strict=False):
            for name, value in record.items():
                step.setdefault(name, {})[rank] = value
    states = [torch.load(d / "final.pt", weights_only=True) for d in (directory, directory / "reference")]
    return compare(
        Side(step=elastic.step, digest=elastic.digest, values=elastic.records, state=states[0]),
        Side(step=reference.step, digest=reference.digest, values=steps, state=states[1]),
    )


class _Watch:
    """What rank 0 has done so far, and when something last moved."""

    def __init__(self, directory: Path, observer: ReferenceObserver) -> None:
        self._records = directory / "rank-0.jsonl"
        self._observer = observer
        self._output = NewLines(directory / "logs" / "rank-0.log")
        self._read = 0
        self.step = 0
        self.moved_at = asyncio.get_running_loop().time()

    def look(self) -> None:
        for line in self._output.read():
            self.moved_at = asyncio.get_running_loop().time()
            self._observer.on_output(line)
        if not self._records.exists():
            return
        with self._records.open("rb") as file:
            file.seek(self._read)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        if whole:
            self._read += len(whole)
            self.step += whole.count(b"\n")
            self.moved_at = asyncio.get_running_loop().time()
            self._observer.on_step(self.step)


async def _until_done(processes: Sequence[ExecutorProcess], directory: Path, watch: _Watch) -> ReferenceResult:
    waits = {asyncio.ensure_future(process.wait()): rank for rank, process in enumerate(processes)}
    pending, exits = set(waits), list[Exit]()
    try:
        while pending:
            done, pending = await asyncio.wait(pending, timeout=_POLL_S, return_when=asyncio.FIRST_COMPLETED)
            watch.look()
            exits += [_exit(waits[wait], wait.result(), processes, directory) for wait in done]
            if blame(exits) is not None:
                # Others may have failed before this one was noticed; they say so soon.
                done, _ = await asyncio.wait(pending, timeout=_ECHO_S) if pending else (set(), None)
                exits += [_exit(waits[wait], wait.result(), processes, directory) for wait in done]
                return _failure(blame(exits), watch.step)
            if asyncio.get_running_loop().time() - watch.moved_at > _SILENCE_S:
                ranks = ", ".join(str(waits[wait]) for wait in sorted(pending, key=lambda w: waits[w]))
                return ReferenceResult(
                    step=watch.step, error=f"no step and no output for {_SILENCE_S:.0f} s; rank {ranks} still running"
                )
    finally:
        for wait in pending:
            wait.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await wait
    outcome = next(e.outcome for e in exits if e.rank == 0)
    assert outcome is not None
    return ReferenceResult(step=outcome.step, digest=outcome.digest)


def _exit(rank: int, reason: str, processes: Sequence[ExecutorProcess], directory: Path) -> Exit:
    path = outcome_path(directory, rank)
    outcome = msgspec.json.decode(path.read_bytes(), type=Outcome) if path.exists() else None
    return Exit(rank=rank, reason=reason, outcome=outcome, tail=processes[rank].tail())


def _failure(exit_: Exit | None, step: int) -> ReferenceResult:
    assert exit_ is not None
    if exit_.outcome is None:
        text = exit_.tail if "Traceback (most recent call last)" in exit_.tail else ""
        why = "ended without calling isoscale.run(train)" if exit_.reason == "exit code 0" else f"died: {exit_.reason}"
        return ReferenceResult(step=step, error=f"rank {exit_.rank} {why}", traceback=text)
    error = f"rank {exit_.rank}: {exit_.outcome.summary}"
    return ReferenceResult(step=step, error=error, traceback=exit_.outcome.traceback)


def _lines(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]

"""Persistent processes that run a case as stock DDP or as an elastic job, and the exact comparison of both.

A case is a training function of an importable module, named "module:function". The processes import torch once
and then run case after case; one that raised is cleaned and goes on, one that hangs or dies is replaced.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Listener, wait
from pathlib import Path
from typing import Any

from tests.forked import Forked

__all__ = ["Outcome", "Part", "Pool", "PoolError"]

#: what a case of a few small steps may take on a busy machine of two cores; a hang costs this much
TIMEOUT_S = 200.0
#: after one process raised, its peers get this long to notice that it is gone
GRACE_S = 3.0


class PoolError(AssertionError):
    """A process hung or died. The message holds the last lines that each of them wrote."""


@dataclass(slots=True)
class Part:
    """What one process has to show after a case. Tensors are digests, floats their exact bits."""

    step: int
    #: final.pt and the layout of live tensors in memory, by dotted path
    state: dict[str, str]
    #: per step: name -> logical rank -> value
    logged: list[dict[str, dict[int, str]]]
    #: the random streams, and what else a logical worker has of its own, by logical rank (-1 is the job-wide one)
    own: dict[int, dict[str, str]]
    #: how often the executors compared digests
    audits: int = 0


@dataclass(slots=True)
class Outcome:
    """A whole run: one part per process."""

    label: str
    parts: list[Part] = field(default_factory=list)

    def logged(self) -> list[dict[str, dict[int, str]]]:
        """Every process knows some of the values; together they know all."""
        steps: list[dict[str, dict[int, str]]] = [{} for _ in range(max(len(p.logged) for p in self.parts))]
        for part in self.parts:
            for step, values in zip(steps, part.logged, strict=False):
                for name, by_rank in values.items():
                    step.setdefault(name, {}).update(by_rank)
        return steps

    def difference_from(self, reference: Outcome) -> str | None:
        """The first thing in which this run is not the reference, in words; None if every bit agrees."""
        return next(self._differences(reference), None)

    def _differences(self, reference: Outcome) -> Iterator[str]:
        where = f"{self.label} is not {reference.label}"
        for number, (mine, theirs) in enumerate(zip(self.logged(), reference.logged(), strict=False), 1):
            for path, a, b in _unequal(_flat(mine), _flat(theirs)):
                yield f"{where}: step {number}, logged {path}: {a} instead of {b}"
        for index, part in enumerate(self.parts):
            if part.step != reference.parts[0].step:
                yield f"{where}: process {index} committed {part.step} steps instead of {reference.parts[0].step}"
            for path, a, b in _unequal(part.state, reference.parts[0].state):
                yield f"{where}: process {index}, final {path}: {a} instead of {b}"
        if len(self.logged()) != len(reference.logged()):
            yield f"{where}: values of {len(self.logged())} steps instead of {len(reference.logged())}"
        for index, part in enumerate(self.parts):
            for rank, own in part.own.items():
                theirs = next(p.own[rank] for p in reference.parts if rank in p.own)
                who = f"logical worker {rank}" if rank >= 0 else "outside turns"
                for path, a, b in _unequal(own, theirs):
                    yield f"{where}: process {index}, {who}, {path}: {a} instead of {b}"


class Pool:
    """Use as `pool.reference(case, workers=4)` and `pool.elastic(case, shares=(3, 1))`."""

    def __init__(self, import_from: Sequence[Path], timeout_s: float = TIMEOUT_S) -> None:
        self.timeout_s = timeout_s
        self._import_from = [str(p) for p in import_from]
        self._directory = Path(tempfile.mkdtemp(prefix="isoscale-ddp-"))
        self._listener = Listener(str(self._directory / "socket"), "AF_UNIX")
        self._workers: list[_Worker] = []
        self._runs = 0

    def reference(self, case: str, *, workers: int, **spec: Any) -> Outcome:
        """Stock DDP, one process per logical worker."""
        outcome = Outcome(f"stock DDP on {workers} processes")
        outcome.parts = self._run("reference", case, (1,) * workers, spec)
        return outcome

    def elastic(self, case: str, *, shares: tuple[int, ...], **spec: Any) -> Outcome:
        """The job on one executor per share."""
        outcome = Outcome(f"{sum(shares)} logical workers placed {shares}")
        outcome.parts = self._run("elastic", case, shares, spec)
        return outcome

    def grow(self, count: int) -> None:
        while len(self._workers) < count:
            log = self._directory / f"worker-{len(self._workers)}.log"
            self._workers.append(_Worker(self._import_from, log, self._listener))

    def close(self) -> None:
        for worker in self._workers:
            worker.kill()
        self._listener.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _run(self, how: str, case: str, shares: tuple[int, ...], spec: dict[str, Any]) -> list[Part]:
        self.grow(len(shares))
        self._workers = [w if w.alive else w.replacement() for w in self._workers]
        self._runs += 1
        directory = self._directory / f"run-{self._runs}"
        directory.mkdir()
        members = self._workers[: len(shares)]
        command = {"how": how, "case": case, "shares": shares, "spec": spec, "directory": str(directory)}
        for index, worker in enumerate(members):
            worker.send(command | {"index": index})
        # The directory stays until `close`: the end of a group, after the answer, opens the group's file once more, and
        # a process that does not find its directory aborts.
        return self._gather(members, f"{case}, {how} {shares}")

    def _gather(self, members: list[_Worker], label: str) -> list[Part]:
        replies: dict[int, Any] = {}
        label += f" (limit {self.timeout_s:.0f} s)"
        deadline = time.monotonic() + self.timeout_s
        failed = False
        while len(replies) < len(members):
            waiting = {w.connection: i for i, w in enumerate(members) if i not in replies}
            for connection in wait(list(waiting), max(0.0, deadline - time.monotonic())) or [None]:
                if connection is None:
                    return self._give_up(members, replies, label, failed)
                index = waiting[connection]  # type: ignore[index]
                replies[index] = members[index].receive()
                if isinstance(replies[index], BaseException) and not failed:
                    failed, deadline = True, min(deadline, time.monotonic() + GRACE_S)
        return _parts(replies, label)

    def _give_up(self, members: list[_Worker], replies: dict[int, Any], label: str, failed: bool) -> list[Part]:
        silent = [i for i in range(len(members)) if i not in replies]
        stories = [f"--- process {i}\n{members[i].last_words()}" for i in silent]
        for i in silent:
            members[i].kill()
        if failed:
            return _parts(replies, label)  # the error that made them wait says more than their waiting
        raise PoolError(f"{label}: no answer from {silent}\n" + "\n".join(stories))


class _Worker:
    def __init__(self, import_from: list[str], log: Path, listener: Listener) -> None:
        self._import_from, self._log, self._listener = import_from, log, listener
        self.alive = True
        script = Path(__file__).with_name("ddp_worker.py")
        environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo"}
        # A case's DDP goes before its group (`ddp_worker.reset`). Kept, each would keep a group, its threads and its
        # connections.
        arguments = str(listener.address), *import_from
        self._process = Forked(script, *arguments, log=log, environment=environment, keep_ddp=False)
        self.connection = listener.accept()

    def replacement(self) -> _Worker:
        return _Worker(self._import_from, self._log, self._listener)

    def send(self, command: dict[str, Any]) -> None:
        self._at = self._log.stat().st_size
        self.connection.send(command)

    def receive(self) -> Any:
        try:
            return self.connection.recv()
        except (EOFError, ConnectionError):
            self.kill()
            return PoolError(f"the process died with exit code {self._process.poll()}\n{self._tail()}")

    def last_words(self) -> str:
        """Where it stands: faulthandler answers the signal with the stacks of all threads."""
        self._process.send_signal(signal.SIGUSR1)
        time.sleep(0.5)
        return self._tail()

    def kill(self) -> None:
        if self.alive:
            self.alive = False
            self._process.kill()
            self.connection.close()

    def _tail(self, characters: int = 3000) -> str:
        with self._log.open("rb") as file:
            file.seek(self._at)
            return file.read().decode(errors="replace")[-characters:]


def _parts(replies: dict[int, Any], label: str) -> list[Part]:
    """In process order. The first error is raised, but no peer's lost connection if another one says more."""
    errors = [replies[i] for i in sorted(replies) if isinstance(replies[i], BaseException)]
    if errors:
        error = min(errors, key=lambda e: "gloo" in str(e))
        error.add_note(label)
        raise error
    return [replies[i] for i in sorted(replies)]


def _flat(values: dict[str, dict[int, str]]) -> dict[str, str]:
    return {f"{name} of logical worker {rank}": v for name, by_rank in values.items() for rank, v in by_rank.items()}


def _unequal(mine: dict[str, str], theirs: dict[str, str]) -> Iterator[tuple[str, str, str]]:
    for path in sorted({*mine, *theirs}):
        a, b = mine.get(path, "nothing"), theirs.get(path, "nothing")
        if a != b:
            yield path, a, b

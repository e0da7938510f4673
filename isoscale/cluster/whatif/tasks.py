"""Questions under way and answered: one at a time for each token, few in all, each in a process that ends in time."""

from __future__ import annotations

import collections
import contextlib
import itertools
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from isoscale import env
from isoscale.cluster.auth import ConflictError, TooManyError
from isoscale.cluster.whatif.child import MAX_SECONDS
from isoscale.cluster.whatif.question import PolicyAnswer, Progress, Question

__all__ = ["Task", "TaskState", "Tasks"]

TaskState = Literal["running", "done", "failed", "cancelled"]

#: processes at once, and tasks that are remembered
_MAX_RUNNING, _MAX_KEPT = 2, 32
_LINE = msgspec.json.Decoder(Progress)


@dataclass(slots=True)
class Task:
    id: str
    token: int
    question: Question
    state: TaskState = "running"
    share: float = 0.0
    doing: str = ""
    error: str = ""
    answers: tuple[PolicyAnswer, ...] = ()
    began: float = field(default_factory=time.monotonic)
    seconds: float = 0.0
    process: subprocess.Popen[bytes] | None = None


class Tasks:
    def __init__(self) -> None:
        self._tasks: collections.OrderedDict[str, Task] = collections.OrderedDict()
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def begin(self, token: int, question: Question) -> Task:
        """Raises ConflictError, TooManyError."""
        with self._lock:
            running = [task for task in self._tasks.values() if task.state == "running"]
            for task in running:
                if task.token == token:
                    raise ConflictError(f"{task.id} is under way with this token; wait for it, or cancel it")
            if len(running) >= _MAX_RUNNING:
                raise TooManyError(f"{_MAX_RUNNING} simulations are under way; try again in a moment")
            task = Task(f"w{next(self._numbers)}", token, question)
            self._tasks[task.id] = task
            for old in [one for one in self._tasks.values() if one.state != "running"]:
                if len(self._tasks) > _MAX_KEPT:
                    del self._tasks[old.id]
        threading.Thread(target=self._follow, args=(task,), name=f"what-if {task.id}", daemon=True).start()
        return task

    def of(self, token: int) -> list[Task]:
        """The newest first."""
        with self._lock:
            return [task for task in reversed(self._tasks.values()) if task.token == token]

    def all(self) -> list[Task]:
        with self._lock:
            return list(self._tasks.values())

    def find(self, token: int, task: str) -> Task | None:
        with self._lock:
            found = self._tasks.get(task)
        return found if found is not None and found.token == token else None

    def cancel(self, task: Task) -> None:
        with self._lock:
            if task.state == "running":
                self._end(task, "cancelled")
            process = task.process
        if process is not None:
            process.kill()

    def close(self) -> None:
        for task in self.all():
            self.cancel(task)

    def _follow(self, task: Task) -> None:
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "isoscale.cluster.whatif.child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=env.child_environment({}),
                start_new_session=True,
            )
        except OSError as error:
            with self._lock:
                self._end(task, "failed", f"no process: {error.strerror}")
            return
        with self._lock:
            task.process = process
            is_over = task.state != "running"
        if is_over:
            process.kill()
        # Processor time is bounded there, time on the clock here.
        timer = threading.Timer(2 * MAX_SECONDS, process.kill)
        timer.start()
        try:
            self._read(task, process)
        finally:
            timer.cancel()
            process.kill()
            process.wait()
            with self._lock:
                self._end(task, "failed", f"took longer than {MAX_SECONDS} s, or died; ask for fewer jobs or policies")

    def _read(self, task: Task, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        # Where it died, what follows says so.
        with process.stdout as lines, contextlib.suppress(OSError, msgspec.MsgspecError):
            with process.stdin as pipe:
                pipe.write(msgspec.json.encode(task.question))
            for line in lines:
                told = _LINE.decode(line)
                with self._lock:
                    task.share, task.doing = told.share, told.doing
                    if told.is_last:
                        task.answers = told.answers
                        self._end(task, "failed" if told.error else "done", told.error)

    def _end(self, task: Task, state: TaskState, error: str = "") -> None:
        """The first end counts."""
        if task.state == "running":
            task.state, task.error, task.seconds = state, error, time.monotonic() - task.began

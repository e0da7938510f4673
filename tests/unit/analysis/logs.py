"""Event logs as runs write them, made from a seed: input for tests and for looking at figures."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from isoscale.types import Placement

Event = dict[str, Any]
START = 1_794_787_931.0


class Writer:
    """Writes the log of a run that the caller directs, at the pace of a made-up model."""

    def __init__(self, seed: int = 0, *, workers: int = 8, turn_s: float = 0.02, start: float = START) -> None:
        self.random = random.Random(seed)
        self.workers, self.turn_s, self.t = workers, turn_s, start
        self.events: list[Event] = []
        self.step = self.generation = 0
        self.members: list[int] = []
        self.shares: tuple[int, ...] = ()
        #: how many times as slow as others
        self.slow: dict[int, float] = {}
        self.pids: dict[int, int] = {}

    def write(self, event: str, *, after_s: float = 0.0, **fields: Any) -> None:
        self.t += after_s
        self.events.append({"t": round(self.t, 6), "event": event, **fields})

    def start(self, *executors: int, kind: str = "cpu") -> None:
        for executor in executors:
            self.pids[executor] = 4000 + len(self.events)
            self.write("executor_started", executor=executor, pid=self.pids[executor], kind=kind, after_s=0.01)

    def place(self, members: list[int], reason: str, *, shares: tuple[int, ...] = (), wait_s: float = 0.0) -> None:
        """A new generation, its first step, and the `rescale` that is logged after it."""
        before, first = len(self.members), not self.members
        pause = self.random.uniform(0.01, 0.03)
        for executor in members:
            if executor not in self.members:
                self.write("executor_joined", executor=executor, generation=self.generation + 1, after_s=0.001)
        self.generation += 1
        self.members, self.shares = members, shares or Placement.even(self.workers, len(members)).shares
        fields = {"generation": self.generation, "members": members, "shares": list(self.shares), "reason": reason}
        self.write("generation", step=self.step, after_s=pause + wait_s, **fields)
        at = self.step
        self.train(1)
        if not first:
            sizes = {"from": before, "to": len(members), "step": at, "pause_s": round(pause, 6), "wait_s": wait_s}
            self.write("rescale", **fields, **sizes)

    def train(self, steps: int, *, steps_per_epoch: int = 50) -> None:
        for _ in range(steps):
            own = [n * self.turn_s * self.slow.get(m, 1.0) for m, n in zip(self.members, self.shares, strict=True)]
            seconds = max(own) * self.random.uniform(0.95, 1.1) + 0.004
            self.step += 1
            loss = 0.25 + 2.1 * 0.985**self.step + self.random.gauss(0.0, 0.05)
            self.write(
                "step",
                after_s=seconds,
                step=self.step,
                epoch=(self.step - 1) // steps_per_epoch,
                loss=loss,
                seconds=round(seconds, 6),
                executors=len(self.members),
                generation=self.generation,
            )
            if self.step % 20 == 0:
                self.speeds(own, seconds)
            if self.step % steps_per_epoch == 0:
                self.write("log", step=self.step, epoch=self.step // steps_per_epoch - 1, accuracy=1 - loss / 3)
            if self.step % 40 == 0:
                path = f"checkpoints/{self.step:08d}"
                self.write("checkpoint", step=self.step, path=path, seconds=0.03, after_s=0.001)
            if self.step % 100 == 0:
                self.write("audit", step=self.step, digest=f"{self.random.getrandbits(256):064x}")

    def speeds(self, own: list[float], seconds: float) -> None:
        for executor, share, busy in zip(self.members, self.shares, own, strict=True):
            idle = max(0.0, 1 - busy / seconds)
            measured = {"turn_s": busy / share, "exchange_s": idle * seconds, "step_s": seconds, "idle": idle}
            self.write("executor_speed", executor=executor, generation=self.generation, steps=20, **measured)

    def leave(self, executor: int) -> None:
        self.write("executor_left", executor=executor, pid=self.pids[executor], reason="scaled in", after_s=0.02)

    def kill(self, executor: int) -> None:
        self.write(
            "executor_lost", executor=executor, pid=self.pids[executor], reason="killed by SIGKILL", after_s=0.05
        )

    def finish(self) -> None:
        self.write("checkpoint", step=self.step, path="final.pt", seconds=0.04)
        self.write("finished", step=self.step, digest=f"{self.random.getrandbits(256):064x}")


def story(seed: int = 0, *, until: str = "") -> list[Event]:
    """1 -> 3 -> 2 -> 4 executors, a kill -9, a straggler, a new coordinator; `until` cuts before that event."""
    w = Writer(seed)
    w.write("coordinator_started", term=1, pid=3999)
    w.start(0)
    w.t += 3.0
    w.place([0], "start")
    w.train(40)
    w.start(1, 2)
    w.train(20)
    w.place([0, 1, 2], "scale", wait_s=0.4)
    w.train(90)
    w.write("notice", executor=1, reason="SIGTERM")
    w.place([0, 2], "notice")
    w.leave(1)
    w.start(3, 4)
    w.train(35)
    w.place([0, 2, 3, 4], "scale")
    w.train(60)
    w.kill(3)
    w.place([0, 2, 4], "executor 3 was lost")
    w.start(5, kind="cpu-sse")
    w.train(30)
    w.place([0, 2, 4, 5], "replacement")
    w.slow[5] = 3.0
    w.train(40)
    w.write("straggler", executor=5, ratio=3.1, shares=[3, 2, 2, 1])
    w.place([0, 2, 4, 5], "straggler", shares=(3, 2, 2, 1))
    w.train(50)
    w.write("coordinator_started", term=2, pid=5123, after_s=0.01)
    w.write("warning", message="the disk is full; the checkpoint of step 360 was not written")
    w.train(60)
    w.finish()
    names = [event["event"] for event in w.events]
    return w.events[: names.index(until)] if until else w.events


def crowd(executors: int, *, seed: int = 0, workers: int = 64, changes: int = 12) -> list[Event]:
    """Many executors: a random number of members, again and again."""
    w = Writer(seed, workers=workers, turn_s=0.01)
    w.write("coordinator_started", term=1, pid=1)
    w.start(*range(executors))
    w.t += 2.0
    w.place(list(range(executors)), "start")
    for change in range(changes):
        w.train(30)
        size = w.random.randint(max(1, executors // 3), executors)
        members = sorted(w.random.sample(range(executors), size))
        w.place(members, "scale")
        if change % 4 == 1 and size > 1:
            w.kill(members[-1])
            w.place(members[:-1], "lost")
            w.start(members[-1])
    w.train(30)
    w.finish()
    return w.events


def old(executors: int = 2, steps: int = 30) -> list[Event]:
    """As a runtime without generations wrote it."""
    w = Writer(1, workers=executors)
    w.start(*range(executors))
    w.members, w.shares, w.generation = list(range(executors)), (1,) * executors, 1
    for executor in range(executors):
        w.write("executor_joined", executor=executor, generation=1, after_s=0.001)
    w.train(steps)
    w.finish()
    return [event for event in w.events if event["event"] != "executor_speed"]


def simulated(steps: int = 20) -> list[Event]:
    """A job in virtual time: no processes, only its size and its progress."""
    events: list[Event] = [{"t": 0.0, "event": "job_started", "job": "a", "from": 0, "to": 2}]
    for step in range(1, steps + 1):
        events.append({"t": step * 60.0, "event": "step", "job": "a", "step": step, "executors": 2 if step < 9 else 5})
    events.insert(9, {"t": 530.0, "event": "job_resized", "job": "a", "from": 2, "to": 5, "reason": "idle devices"})
    return [*events, {"t": steps * 60.0 + 1, "event": "job_finished", "job": "a"}]


def save(events: list[Event], directory: Path, torn: str = "") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(event) + "\n" for event in events) + torn
    (directory / "events.jsonl").write_text(text)
    return directory

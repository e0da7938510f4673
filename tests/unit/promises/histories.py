"""Logs of runs for the checker: written by hand, event by event, or read from real runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from isoscale.analysis.promises import Record

Event = dict[str, Any]
LOGS = Path(__file__).with_name("logs")
SETTINGS = {"heartbeat_s": 1.0, "lost_after_s": 5.0, "stalled_after_s": 1800.0, "checkpoint_every": 0, "spares": 0}


def real(name: str) -> list[Event]:
    return [json.loads(line) for line in (LOGS / f"{name}.jsonl").read_text().splitlines()]


def real_record(name: str) -> Record:
    return Record.of_json(json.loads((LOGS / f"{name}.record.json").read_text()))


class Log:
    """A run of made-up steps of a tenth of a second, 10 in an epoch."""

    def __init__(self, *, executors: int = 2) -> None:
        self.events: list[Event] = []
        self.t = 1_794_860_000.0
        self.step = self.generation = self.term = 0
        self.members: list[int] = []
        self.coordinator(executors)
        self.start(*range(executors))
        self.begin(*range(executors))

    def write(self, event: str, *, after_s: float = 0.01, **fields: Any) -> Event:
        self.t += after_s
        self.events.append({"t": round(self.t, 6), "event": event, **fields})
        return self.events[-1]

    def coordinator(self, target: int, *, after_s: float = 0.01) -> None:
        self.term += 1
        fields = {"target": f"cpu*{target}", "plan": [], "settings": SETTINGS}
        self.write("coordinator_started", term=self.term, pid=1000 + self.term, after_s=after_s, **fields)

    def start(self, *executors: int) -> None:
        for executor in executors:
            self.write("executor_started", executor=executor, pid=2000 + executor, kind="cpu")

    def begin(self, *members: int, step: int = 0) -> None:
        """From a checkpoint, or from the beginning."""
        self.step = step
        self.place(*members, reason="resumed" if step else "started")

    def place(self, *members: int, reason: str = "asked") -> None:
        self.generation += 1
        for member in members:
            if member not in self.members or reason in ("started", "resumed"):
                self.write("executor_joined", executor=member, generation=self.generation)
        self.members = list(members)
        shares = [4 // len(members)] * len(members)
        fields = {"generation": self.generation, "members": list(members), "shares": shares, "reason": reason}
        self.write("generation", step=self.step, **fields)

    def train(self, steps: int = 1, *, after_s: float = 0.1, **changes: Any) -> None:
        for _ in range(steps):
            self.step += 1
            place = {"loader": "loader 1", "batch": (self.step - 1) % 10, "of": 10}
            fields = {"epoch": (self.step - 1) // 10, "loss": 1.0 / self.step, "generation": self.generation}
            fields = {"step": self.step, "seconds": after_s, **fields, **place, **changes}
            self.write("step", after_s=after_s, **fields)

    def lose(self, *executors: int, reason: str = "killed by SIGKILL") -> None:
        for executor in executors:
            self.write("executor_lost", executor=executor, pid=2000 + executor, reason=reason)

    def checkpoint(self) -> None:
        self.write("checkpoint", step=self.step, path=f"checkpoints/step-{self.step:08d}.pt", seconds=0.01)

    def ask(self, number: int, request: str = "scale", target: str = "", outcome: str | None = "done") -> None:
        self.write("request", id=number, request=request, target=target, away=[], reason="asked")
        if outcome is not None:
            self.write("answered", id=number, outcome=outcome, detail="")

    def finish(self, digest: str = "d" * 64) -> None:
        self.write("checkpoint", step=self.step, path="final.pt", seconds=0.01)
        self.write("finished", step=self.step, digest=digest)

"""What an event costs the state machine of a job, with 100 and with 10,000 executors: median at most twice as much.

Simulated executors do what they are told at once and say so; the machine is told of everything that a coordinator
would tell it: processes that come up, heartbeats, groups that form, switches, seals, notices, losses, requests.
Only the calls of the machine are timed. Sizes take turns in random order; a second series at 100 is the control.

    python -m benchmarks.membership.event_cost
"""

from __future__ import annotations

import random
import statistics
import time
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

from benchmarks.lib.measure import percentile
from benchmarks.lib.options import options as chosen
from benchmarks.lib.result import save
from isoscale import limits
from isoscale.kinds import DeviceSet
from isoscale.protocol import messages as m
from isoscale.runtime.membership.instructions import Instruction, Kill, Start, Tell
from isoscale.runtime.membership.state_machine import Membership
from isoscale.runtime.membership.target import Goal
from isoscale.types import JobSpec, Settings

RESULT, MINUTES = "membership", 4


class Fleet:
    """Executors that obey, and the times of all calls by event."""

    def __init__(self, size: int, seed: int) -> None:
        self.random = random.Random(seed)
        self.size = size
        self.times: dict[str, list[int]] = defaultdict(list)
        # A job may not have ten thousand, since they would all be connected; what they would cost can be asked.
        limits.EXECUTORS = limits.Range(1, limits.LOGICAL_WORKERS.most)
        spec = JobSpec(workers=2 * size)
        self.machine = Membership(spec, Settings(), Goal(DeviceSet((("cpu", size),))), lambda mine, theirs: ())
        self.waiting: deque[tuple[str, Callable[..., Any], tuple[Any, ...]]] = deque()
        self.prepared: dict[int, m.Prepare] = {}
        self.switching = 0
        self.step = 0
        self.perform(self.machine.begin())
        self.drain()

    def call(self, event: str, function: Callable[..., Any], *arguments: Any) -> None:
        begun = time.perf_counter_ns()
        instructions = function(*arguments)
        self.times[event].append(time.perf_counter_ns() - begun)
        self.perform(instructions or [])

    def drain(self) -> None:
        while self.waiting:
            event, function, arguments = self.waiting.popleft()
            self.call(event, function, *arguments)

    def soon(self, event: str, function: Callable[..., Any], *arguments: Any) -> None:
        self.waiting.append((event, function, arguments))

    def perform(self, instructions: list[Instruction]) -> None:
        machine = self.machine
        for instruction in instructions:
            match instruction:
                case Start():
                    one = instruction.executor
                    hello = m.Hello(executor=one, pid=one, kind="cpu", fingerprint="f", kernels={}, factors={})
                    self.soon("started", machine.on_started, one, one)
                    self.soon("hello", machine.on_hello, hello)
                case Kill():
                    self.soon("lost", machine.on_lost, instruction.executor, instruction.reason)
                case Tell():
                    self.obey(instruction.executor, instruction.message)

    def obey(self, executor: int, message: m.FromCoordinator) -> None:
        machine = self.machine
        match message:
            case m.Approach():
                self.soon("held", machine.on_held, executor)
            case m.Begin():
                self.soon("sealed", machine.on_sealed, message.generation, self.step)
            case m.Prepare():
                self.prepared[executor] = message
                if message.index >= 0:
                    self.soon("prepared", machine.on_prepared, executor, message.generation)
            case m.Switch():
                self.switching = message.generation
            case m.Recover():
                self.switching = 0
                self.go_over(executor, message.generation)
            case m.Leave():
                self.soon("lost", machine.on_lost, executor, "exit code 0")

    def go_over(self, executor: int, generation: int) -> None:
        machine, now = self.machine, time.time()
        switched = m.Switched(generation=generation, step=self.step, left_at=now, started_at=now, waited_s=0.0)
        self.soon("switched", machine.on_switched, executor, switched)
        self.soon("sealed", machine.on_sealed, generation, self.step)

    def commit(self) -> None:
        """A step: everybody goes over if all were told to."""
        self.step += 1
        self.call("step", self.machine.on_step, self.step, 0.1)
        generation, self.switching = self.switching, 0
        if not generation:
            return
        going = [e for e, order in self.prepared.items() if order.generation == generation and order.index >= 0]
        members = set(self.machine.members)
        for executor in going:
            if executor not in members:
                self.soon("landed", self.machine.on_landed, executor, generation)
        for executor in going:
            if executor in self.machine.roster:
                self.go_over(executor, generation)

    def beat(self) -> None:
        for executor in self.machine.members:
            turn_s = 0.01 * self.random.uniform(0.95, 1.05)
            beat = m.Beat(step=self.step, place="turn", place_s=0.0, steps=5, turn_s=turn_s, step_s=0.03)
            self.call("beat", self.machine.on_beat, executor, beat)

    def hour(self) -> None:
        """Beats and steps, with now and then somebody who dies, is told to go, or a request."""
        for fault in ("lost", "none", "notice", "none", "request", "none", "broken", "none"):
            machine, someone = self.machine, self.random.choice(self.machine.members)
            if fault == "lost":
                self.call("lost", machine.on_lost, someone, "signal 9")
            elif fault == "notice":
                self.call("notice", machine.on_notice, someone, "SIGTERM")
            elif fault == "request":
                count = self.random.randint(self.size - 5, self.size)
                self.call("request", machine.on_request, DeviceSet((("cpu", count),)))
            elif fault == "broken":
                self.call("broken", machine.on_broken, someone, machine.current - 1, "late", 1.0)
            for _ in range(4):
                self.drain()
                self.commit()
            self.drain()
            self.call("tick", machine.on_tick, float(self.step))
            self.beat()
        assert machine.phase == "training"
        assert machine.attempt is None
        assert len(machine.members) == machine.goal.target.total


def measure(size: int, seed: int, hours: int) -> dict[str, list[int]]:
    fleet = Fleet(size, seed)
    for _ in range(hours):
        fleet.hour()
    return fleet.times


def median_us(times: dict[str, list[int]]) -> float:
    return statistics.median(t for values in times.values() for t in values) / 1000


def main() -> None:
    options = chosen(__doc__)
    order, blocks = random.Random(0), options.pick(smoke=1, quick=2, full=5)
    # With --smoke names stay as they are, and 300 executors stand for the many.
    most = options.pick(smoke=300, quick=10_000, full=10_000)
    sizes = {"a": 100, "control": 100, "b": most}
    hours = {100: options.pick(smoke=1, quick=10, full=50), most: 1}
    medians: dict[str, list[float]] = {name: [] for name in sizes}
    everything: dict[int, dict[str, list[int]]] = {100: defaultdict(list), most: defaultdict(list)}
    for block in range(blocks):
        for name in order.sample(list(sizes), len(sizes)):
            times = measure(sizes[name], block, hours[sizes[name]])
            medians[name].append(median_us(times))
            for event, values in times.items():
                everything[sizes[name]][event] += values
    few, many, control = (statistics.median(medians[name]) for name in ("a", "b", "control"))
    half_width = max(abs(a / c - 1) for a, c in zip(medians["a"], medians["control"], strict=True))
    rows = [
        {
            "event": event,
            "events_at_10000": len(everything[most][event]),
            "median_us_at_100": round(statistics.median(values) / 1000, 2),
            "median_us_at_10000": round(statistics.median(everything[most][event]) / 1000, 2),
            "p99_us_at_10000": round(percentile(everything[most][event], 99) / 1000, 2),
        }
        for event, values in sorted(everything[100].items())
    ]
    for row in rows:
        print(row)
    ratio = many / few
    print(
        f"median per event: {few:.2f} us at 100, {many:.2f} us at {most:,}: {ratio:.2f}x (control {control / few:.2f})"
    )
    facts: dict[str, Any] = {
        "median_us_at_100": round(few, 3),
        "median_us_at_10000": round(many, 3),
        "ratio": round(ratio, 3),
        "control": round(control / few, 3),
        "half_width": round(half_width, 3),
        "blocks": blocks,
        "meets 2.0": ratio - half_width <= 2.0,
    }
    save(RESULT, rows, options, **facts)


if __name__ == "__main__":
    main()

"""A job of any size without its processes: the coordinator's state machine, and one executor's for each member.

Both are the real ones (`runtime.membership.state_machine`, `runtime.executor.state_machine`). Whatever one tells the
other is encoded by `protocol.messages` and counted, and events are written by a real `protocol.events.EventLog`. What
happens between executors (groups that form, gradients) happens at once and costs nothing here.
"""

from __future__ import annotations

import functools
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from isoscale.clock import WallClock
from isoscale.kinds import DeviceSet
from isoscale.protocol import messages as m
from isoscale.protocol.events import EventLog
from isoscale.runtime.executor.instructions import Form, GoOver, Pause, Send
from isoscale.runtime.executor.instructions import Instruction as ExecutorInstruction
from isoscale.runtime.executor.state_machine import MemberState
from isoscale.runtime.membership.dispatch import dispatch
from isoscale.runtime.membership.instructions import Emit, Instruction, Start, Tell
from isoscale.runtime.membership.state_machine import Membership
from isoscale.runtime.membership.target import Goal
from isoscale.types import JobSpec, Settings

#: executors of one machine, as where each has a device of eight
PER_MACHINE = 8
_PAUSE = Pause(1_700_000_000.123456, 1_700_000_000.623456)


@dataclass(slots=True)
class Traffic:
    """What went through the coordinator in one section of a job's life, and what that cost its processor."""

    messages_in: int = 0
    bytes_in: int = 0
    messages_out: int = 0
    bytes_out: int = 0
    largest_bytes: int = 0
    log_bytes: int = 0
    #: processor time: of the state machine, and of encoding what it tells
    decide_s: float = 0.0
    encode_s: float = 0.0
    by_type: Counter[str] = field(default_factory=Counter)

    def row(self) -> dict[str, Any]:
        row = asdict(self)
        row |= {"decide_s": round(self.decide_s, 6), "encode_s": round(self.encode_s, 6), "by_type": dict(self.by_type)}
        return row


class Fleet:
    def __init__(self, size: int, log: Path, hello: m.Hello, *, spans_machines: bool = True) -> None:
        """`hello` is what a real executor says of itself; every member says as much."""
        self.size = size
        self._hello = hello
        self._spans_machines = spans_machines
        self.machine = Membership(
            JobSpec(workers=2 * size, out="runs/large"),
            # Nobody measures anything here, so nobody is slow.
            Settings(rebalance=False),
            Goal(DeviceSet((("cpu", size),))),
            lambda mine, theirs: (),
        )
        self.members: dict[int, MemberState] = {}
        self.step = 0
        self.traffic = Traffic()
        self._log_path, self._log = log, EventLog(log, WallClock())
        self._waiting: deque[tuple[int, m.FromExecutor]] = deque()

    @contextmanager
    def section(self) -> Iterator[Traffic]:
        """Counts what goes on meanwhile."""
        self.traffic, before = Traffic(), self._log_path.stat().st_size
        yield self.traffic
        self.settle()
        self.traffic.log_bytes = self._log_path.stat().st_size - before

    # ---- the coordinator ----

    def decide(self, work: Callable[[], list[Instruction]]) -> None:
        begun = time.process_time()
        instructions = work()
        self.traffic.decide_s += time.process_time() - begun
        for instruction in instructions:
            self._perform(instruction)

    def _perform(self, instruction: Instruction) -> None:
        match instruction:
            case Start():
                self.members[instruction.executor] = MemberState(instruction.executor)
                self._start(instruction.executor)
            case Tell():
                begun = time.process_time()
                size = len(m.encode(instruction.message))
                traffic = self.traffic
                traffic.encode_s += time.process_time() - begun
                traffic.messages_out += 1
                traffic.bytes_out += size
                traffic.largest_bytes = max(traffic.largest_bytes, size)
                traffic.by_type[type(instruction.message).__name__] += 1
                if (member := self.members.get(instruction.executor)) is not None:
                    self._obey(member, instruction.message)
            case Emit():
                self._log.write(instruction.event, **instruction.fields)

    def settle(self) -> None:
        """Until everything that was said is heard."""
        while self._waiting:
            executor, message = self._waiting.popleft()
            self.decide(functools.partial(self._hear, executor, message))

    def come(self) -> None:
        """Newcomers have set themselves up, and wait for the job's state."""
        self.settle()
        for one in list(self.members.values()):
            if one.phase == "approaching":
                self._do(one, one.hold())
        self.settle()

    def _hear(self, executor: int, message: m.FromExecutor) -> list[Instruction]:
        """As the coordinator's shell passes it on."""
        match message:
            case m.Hello():
                return self.machine.on_hello(message)
            case m.Beat():
                return self.machine.on_beat(executor, message)
            case m.StepDone():
                self.machine.on_step(message.step, message.seconds)
                return []
            case m.Left():
                del self.members[executor]
                return self.machine.on_lost(executor, "exit code 0")
        return dispatch(self.machine, executor, message, 0.0)

    # ---- executors ----

    def _say(self, executor: int, message: m.FromExecutor) -> None:
        size = len(m.encode(message))
        self.traffic.messages_in += 1
        self.traffic.bytes_in += size
        self.traffic.largest_bytes = max(self.traffic.largest_bytes, size)
        self.traffic.by_type[type(message).__name__] += 1
        self._waiting.append((executor, message))

    def _start(self, executor: int) -> None:
        self.decide(lambda: self.machine.on_started(executor, 10_000 + executor))
        machine = f"machine-{executor // PER_MACHINE}" if self._spans_machines else "machine-0"
        octets = divmod(executor // PER_MACHINE, 250)
        store = f"tcp://10.20.{octets[0]}.{octets[1]}:{30_000 + executor % PER_MACHINE}"
        hello = {name: getattr(self._hello, name) for name in ("fingerprint", "kernels", "factors")}
        self._say(
            executor,
            m.Hello(executor=executor, pid=10_000 + executor, kind="cpu", machine=machine, store=store, **hello),
        )

    def _obey(self, one: MemberState, message: m.FromCoordinator) -> None:
        self._do(one, one.on_order(message))
        match message:
            case m.Begin():
                self._do(one, one.begin(message))
                self._do(one, one.arrived(0))
            case m.Approach():
                self._do(one, one.approach())
            case m.Recover():
                order = one.take_recovery()
                assert order is message
                self._do(one, one.met(message))
                self._do(one, one.recovered(message, _PAUSE))
            case m.Leave():
                self._say(one.executor, m.Left(reason=message.reason))

    def _do(self, one: MemberState, instructions: list[ExecutorInstruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Send(message):
                    self._say(one.executor, message)
                case Form(order):
                    self._do(one, one.formed(order))

    def seal(self) -> None:
        """A step of all who train: the first one of a generation is news, and the last one of it is followed by the
        switch to the next."""
        training = [one for one in self.members.values() if one.phase == "member"]
        ready = all(one.is_ready() for one in training)
        self.step += 1
        for one in training:
            self._do(one, one.sealed(self.step, all_ready=ready))
        done = m.StepDone(
            step=self.step,
            epoch=0,
            loss=0.6931471805599453,
            seconds=0.25,
            samples=32 * self.size,
            generation=1,
            total=0,
        )
        self._say(training[0].executor, done)
        for one in training:
            if isinstance(action := one.next_action(), GoOver):
                self._go_over(one, action.order)
        self.settle()

    def _go_over(self, one: MemberState, order: m.Prepare) -> None:
        if order.index < 0:
            self._do(one, one.go_out(order))
            return
        for position, sender in order.senders.items():
            if sender == order.index:
                newcomer = self.members[order.members[position]]
                incoming = newcomer.incoming()
                assert incoming is not None
                self._do(newcomer, newcomer.received(incoming, self.step))
                self._do(newcomer, newcomer.landed())
        self._do(one, one.switched(order, _PAUSE))

    def die(self, executor: int) -> None:
        """`kill -9`: the others find their exchange broken and say so, then its process is known to be gone."""
        del self.members[executor]
        for one in self.members.values():
            if one.phase == "member":
                self._do(one, one.broke())
        self.settle()
        self.decide(lambda: self.machine.on_lost(executor, "killed by SIGKILL"))
        self.settle()

    def beat(self) -> None:
        """A second: everybody says that it is alive, and is told that it was heard."""
        for executor in self.machine.members:
            beat = m.Beat(
                step=self.step,
                place="turn",
                place_s=0.123456,
                steps=4,
                turn_s=0.2345678,
                exchange_s=0.0123456,
                step_s=0.2512345,
                last_turn_s=0.2345678,
                at=123456.789,
            )
            self._say(executor, beat)
        self.settle()
        for executor in self.machine.members:
            self._perform(Tell(executor, m.Heard(count=1000)))

    def finish(self) -> None:
        for executor in self.machine.members:
            self._do(
                self.members[executor],
                self.members[executor].finish(
                    m.Finished(executor=executor, step=self.step, digest="0" * 64, stop_reason="")
                ),
            )
        self.settle()
        self.decide(self.machine.on_result_saved)

    def close(self) -> None:
        self._log.close()

"""Several executors in one process that die in their exchanges, wherever a test says so.

Each executor has a thread, but only one runs at a time: it goes on until it has to wait for the others, and then
hands over. So every run is the same again, each keeps the global random streams for itself, and a deadlock is seen at
once. What survivors agree on is `runtime.executor.resync`'s own code; the coordinator is a few lines here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import torch

from isoscale.core.engine import Recovery, StepEngine
from isoscale.core.reduction.exchange import ExchangeBrokenError, LocalExchange
from isoscale.core.reduction.gradients import FlatBucket, RingBucket, TreeSums
from isoscale.core.reduction.orders import Subtree, combine_subtrees, ring_sum
from isoscale.core.streams import rng
from isoscale.runtime.executor.resync import agree
from isoscale.types import Placement


class KilledError(BaseException):
    """Ends the thread of an executor that is dead; nothing catches it."""


@dataclass(frozen=True)
class Fault:
    """In the call with number `at` of generation `generation` these executors die, after giving their part or before.

    With `lucky`, the call still succeeds for those executors, and for nobody else.
    """

    at: int
    victims: frozenset[int]
    lucky: frozenset[int] | None = None
    generation: int = 0


@dataclass
class World:
    """Runs executors in turn."""

    #: of those that can go on, the one with the highest number goes first
    backwards: bool = False
    faults: Sequence[Fault] = ()
    alive: set[int] = field(default_factory=set)
    finished: set[int] = field(default_factory=set)
    results: dict[int, Any] = field(default_factory=dict)
    #: calls that were made in each generation
    calls: list[int] = field(default_factory=list)
    _ready: dict[int, Callable[[], bool]] = field(default_factory=dict)
    _running: int | None = None
    _baton: threading.Condition = field(default_factory=threading.Condition)
    _groups: list[Group] = field(default_factory=list)
    _wait_for: set[int] = field(default_factory=set)

    def run(self, shares: tuple[int, ...], work: Callable[[Any, World, int], Any]) -> dict[int, Any]:
        """`work(exchange, world, executor)` on every executor; results, or errors, of those that lived."""
        self.alive = set(range(len(shares)))
        group = self._new_group(tuple(self.alive), shares)
        threads = [threading.Thread(target=self._live, args=(e, group, work)) for e in range(len(shares))]
        with self._baton:
            for executor, thread in enumerate(threads):
                self._ready[executor] = lambda: True
                thread.start()
            self._pass_on()
        for thread in threads:
            thread.join(60)
        self.calls = [len(group.rounds) for group in self._groups]
        return self.results

    def _live(self, executor: int, group: Group, work: Callable[[Any, World, int], Any]) -> None:
        with self._baton:
            while self._running != executor:
                self._baton.wait()
            try:
                self.results[executor] = work(FaultyExchange(self, group, executor), self, executor)
            except KilledError:
                pass
            except BaseException as error:
                self.results[executor] = error
                group.broken = True
            self.alive.discard(executor)
            self.finished.add(executor)
            self._pass_on()

    def wait(self, executor: int, ready: Callable[[], bool]) -> None:
        streams = rng.capture()
        self._ready[executor] = ready
        self._pass_on()
        while self._running != executor:
            self._baton.wait()
        rng.restore(streams)

    def _pass_on(self) -> None:
        able = [executor for executor, ready in sorted(self._ready.items()) if ready()]
        if not able and self._ready:
            able = sorted(self._ready)
            for group in self._groups:
                group.deadlocked = True
        if able:
            self._running = able[-1 if self.backwards else 0]
            del self._ready[self._running]
            self._baton.notify_all()

    def recover(self, executor: int, engine: StepEngine) -> Recovery:
        """All who are left meet and go on."""
        while True:
            number = len(self._groups)
            self._wait_for.add(executor)
            self.wait(executor, lambda n=number: self.alive <= self._wait_for or len(self._groups) > n)  # type: ignore[misc]
            if len(self._groups) == number:
                members = tuple(sorted(self.alive))
                self._new_group(members, Placement.even(_workers(engine), len(members)).shares)
            self._wait_for.discard(executor)
            group = self._groups[-1]
            exchange: Any = FaultyExchange(self, group, group.members.index(executor))
            if len(group.members) == 1:
                exchange = LocalExchange(_workers(engine))
            try:
                return Recovery(exchange, agree(exchange, engine, 0).vector)
            except ExchangeBrokenError:
                continue

    def _new_group(self, members: tuple[int, ...], shares: tuple[int, ...]) -> Group:
        generation = len(self._groups)
        faults = {fault.at: fault for fault in self.faults if fault.generation == generation}
        self._groups.append(Group(members, Placement(shares=shares), faults))
        return self._groups[-1]


@dataclass(frozen=True)
class Survivor:
    """`core.engine.Peers` of one executor."""

    world: World
    executor: int
    engine: StepEngine

    def recover(self, broken: ExchangeBrokenError) -> Recovery:
        return self.world.recover(self.executor, self.engine)


@dataclass
class Group:
    """One generation."""

    members: tuple[int, ...]
    placement: Placement
    faults: dict[int, Fault]
    broken: bool = False
    deadlocked: bool = False
    #: what each member brought, call by call
    rounds: list[dict[int, Any]] = field(default_factory=list)


class FaultyExchange:
    native = False
    group = None

    def __init__(self, world: World, group: Group, index: int, *, overlaps: bool = True) -> None:
        self.placement, self.index, self.overlaps = group.placement, index, overlaps
        self._world, self._group, self._executor = world, group, group.members[index]
        self._calls = 0

    @property
    def broken(self) -> bool:
        return self._group.broken

    def _post(self, value: Any) -> int:
        group, number = self._group, self._calls
        self._calls += 1
        fault = group.faults.get(number)
        if fault is not None and fault.lucky is None and self._executor in fault.victims:
            self._die()
        if group.broken:
            raise ExchangeBrokenError("given up")
        while len(group.rounds) <= number:
            group.rounds.append({})
        group.rounds[number][self.index] = value
        return number

    def _collect(self, number: int) -> list[Any]:
        group, everybody = self._group, len(self._group.members)
        values = group.rounds[number]
        if len(values) < everybody:
            self._world.wait(self._executor, lambda: len(values) == everybody or group.broken)
        fault = group.faults.get(number)
        if group.deadlocked:
            raise AssertionError(f"deadlock in call {number}: only {sorted(values)} came")
        if fault is not None and fault.lucky is not None and len(values) == everybody:
            if self._executor in fault.victims:
                self._die()
            if self._executor not in fault.lucky:
                group.broken = True
                raise ExchangeBrokenError("a peer is gone")
            return [values[i] for i in range(everybody)]
        if len(values) < everybody:
            raise ExchangeBrokenError("a peer is gone")
        return [values[i] for i in range(everybody)]

    def _die(self) -> None:
        self._group.broken = True
        raise KilledError

    def _everybody(self, value: Any) -> list[Any]:
        return self._collect(self._post(value))

    # ---- what core asks for ----

    def submit(self, work: Callable[[], None]) -> Future[None]:
        done: Future[None] = Future()
        try:
            work()
            done.set_result(None)
        except ExchangeBrokenError as error:
            done.set_exception(error)
        return done

    def all_reduce(self, flat: torch.Tensor) -> Callable[[], None]:
        raise AssertionError("not native")

    def ring(self, bucket: RingBucket, addends: Mapping[int, FlatBucket], memory: FlatBucket) -> FlatBucket:
        flats: dict[int, torch.Tensor] = {}
        for theirs in self._everybody({rank: slot.flat.clone() for rank, slot in addends.items()}):
            flats |= theirs
        memory.flat.copy_(ring_sum([flats[rank] for rank in sorted(flats)]))
        return memory

    def tree(self, sums: TreeSums, memory: FlatBucket | None, scale: float) -> FlatBucket:
        assert memory is not None
        nodes: dict[Subtree, torch.Tensor] = {}
        for theirs in self._everybody({node: total.flat.clone() for node, total in sums.sums.items()}):
            nodes |= {node: value.clone() for node, value in theirs.items()}
        torch.mul(combine_subtrees(nodes, sums.root), scale, out=memory.flat)
        return memory

    def start_sum_int64(self, payload: torch.Tensor) -> Callable[[], None]:
        number = self._post(payload.clone())
        return lambda: self._sum_into(payload, number)

    def sum_int64(self, payload: torch.Tensor) -> None:
        self._sum_into(payload, self._post(payload.clone()))

    def _sum_into(self, payload: torch.Tensor, number: int) -> None:
        payload.copy_(torch.stack(self._collect(number)).sum(0))

    def broadcast(self, tensors: Sequence[torch.Tensor], source: int) -> None:
        every = self._everybody([t.clone() for t in tensors])
        for tensor, value in zip(tensors, every[source], strict=True):
            tensor.copy_(value)

    def gather_bytes(self, data: bytes) -> list[bytes]:
        return self._everybody(data)

    def start_gather_bytes(self, data: bytes) -> Callable[[], list[bytes]]:
        found = self.gather_bytes(data)
        return lambda: found

    def gather_text(self, text: str) -> list[str]:
        return self._everybody(text)

    def break_off(self) -> None:
        raise AssertionError("nobody breaks it off here")

    def retire(self, memory: object) -> None:
        pass


def _workers(engine: StepEngine) -> int:
    return engine.exchange.placement.num_logical_workers

"""Processor time of what grows with the number of executors or logical workers, in one process.

A part of `constants`.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.scale.socket_cost import an_order
from isoscale.core.context import ContextSwitch
from isoscale.core.encoding import codec
from isoscale.core.reduction.orders import local_subtrees
from isoscale.core.seal import Seal
from isoscale.core.totals import Tally
from isoscale.kinds import DeviceSet
from isoscale.protocol import messages as m
from isoscale.protocol.files import write_json_atomic
from isoscale.runtime.coordinator.journal import RunResult
from isoscale.runtime.coordinator.liveness import Liveness
from isoscale.runtime.coordinator.status import status_of
from isoscale.runtime.membership.state_machine import Membership
from isoscale.runtime.membership.target import Goal
from isoscale.types import JobSpec, Placement, Settings

_HEADER = 4


def least(work: Callable[[], object], times: int) -> float:
    """Processor seconds, the least of several: everything else is somebody else's."""
    found = []
    for _ in range(times):
        begun = time.process_time()
        work()
        found.append(time.process_time() - begun)
    return min(found)


class _Alone:
    """One of many executors whose sums come back as if all others had logged a value too."""

    def __init__(self, size: int) -> None:
        self.placement, self.index = Placement(shares=(1,) * size), 0

    def sum_int64(self, vector: torch.Tensor) -> None:
        n, at = self.placement.num_logical_workers, _HEADER + self.placement.num_executors
        if len(vector) > at:
            vector[at : at + n] = 1
            vector[at + n : at + 2 * n] = torch.rand(n, dtype=torch.float64).view(torch.int64)

    def gather_text(self, text: str) -> list[str]:
        return [text]


def seal(size: int, times: int) -> tuple[float, int]:
    """One executor's work in a seal with one logged value, beside the exchange; and the bytes that are summed."""
    one = Seal(_Alone(size))  # type: ignore[arg-type]

    def close() -> None:
        tally = Tally()
        tally.log(0, {"loss": torch.tensor(0.5)})
        one.close(tally, digest="", stop=False)

    close()
    seconds = least(close, times)
    assert one.vector is not None
    return seconds, one.vector.numel() * one.vector.element_size()


def contexts(size: int, times: int) -> tuple[float, int]:
    """Taking over one other logical worker's context after a turn that drew from torch's stream; and its bytes."""
    switch = ContextSwitch(size, 0)
    switch.start()
    switch.mark(shared=True)
    switch.enter(0)
    torch.rand(1000)
    switch.leave()
    changes = switch.changes_of(0)
    frame_bytes = sum(len(part) for part in changes if part is not None)

    def adopt() -> None:
        for rank in range(1, size):
            switch.adopt(rank, changes, here=False)

    return least(adopt, times) / (size - 1), frame_bytes


def machine_of(size: int) -> Membership:
    machine = Membership(JobSpec(workers=size), Settings(), Goal(DeviceSet((("cpu", size),))), lambda a, b: ())
    machine.begin()
    for executor in range(size):
        machine.on_hello(m.Hello(executor=executor, pid=1, kind="cpu", fingerprint="f", kernels={}, factors={}))
    machine.on_sealed(1, 0)
    beat = m.Beat(step=1, place="turn", place_s=0.0, steps=1, turn_s=0.1, step_s=0.1)
    for executor in range(size):
        machine.on_beat(executor, beat)
    return machine


def watch(machine: Membership, times: int) -> float:
    """What a coordinator does five times a second, whatever happens: who is too silent?"""
    liveness = Liveness(Settings())
    silences = {one.executor: 0.3 for one in machine.roster}

    def tick() -> None:
        liveness.listen(silences, machine.roster.holders(), 100.0, set())
        liveness.judge(silences, machine.roster, set(), lambda pid: False)
        machine.on_tick(100.0)

    return least(tick, times)


def status(machine: Membership, times: int) -> float:
    silences = {one.executor: 0.3 for one in machine.roster}
    return least(
        lambda: status_of(machine, RunResult(), term=1, silences=silences, checkpoint=None, messages=[]), times
    )


def roster_file(size: int, times: int) -> float:
    """Writing down who is alive, for a successor: once for each executor that comes, and that goes."""
    known = {str(e): {"pid": 10_000 + e, "born": 123_456_789 + e, "kind": "cpu", "ready": True} for e in range(size)}
    with tempfile.TemporaryDirectory() as folder:
        return least(lambda: write_json_atomic(Path(folder) / "executors.json", known), times)


def pack_rate(megabytes: int) -> float:
    """Bytes per second of packing the job's state for a newcomer."""
    state = {str(i): torch.rand(2**18) for i in range(megabytes)}
    room = torch.empty(codec.packed_size(state) + 2**20, dtype=torch.uint8)
    room.zero_()
    return megabytes * 2**20 / least(lambda: codec.pack(state, into=room), 30)


def processor_row(size: int, times: int) -> dict[str, Any]:
    machine, order = machine_of(size), m.encode(an_order(size))
    seal_s, seal_bytes = seal(size, times)
    context_s, context_bytes = contexts(min(size, 1000), times)
    return {
        "executors": size,
        "seal_s": seal_s,
        "seal_bytes": seal_bytes,
        "context_s_each": context_s,
        "context_bytes_each": context_bytes,
        "watch_s": watch(machine, times),
        "status_s": status(machine, max(1, times // 3)),
        "roster_file_s": roster_file(size, times),
        "order_decode_s": least(lambda: m.decode_from_coordinator(order), times),
        "tree_layout_s": least(lambda: [local_subtrees(range(e, e + 1), size) for e in range(size)], 1),
    }

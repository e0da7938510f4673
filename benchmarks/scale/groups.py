"""What a gloo group costs on loopback: forming, messages, breaking. Members are threads of one process.

Wall-clock of many members on few cores says little of a cluster, so what is kept is processor time per connection and
per message, and the latency of one message between two. A part of `constants`.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed

from isoscale.runtime.transport.gloo import form_group


def _all(members: int, work: Callable[[int], None]) -> tuple[float, float]:
    """Every member's work at once: wall-clock and processor seconds."""
    threads = [threading.Thread(target=work, args=(index,)) for index in range(members)]
    begun, used = time.perf_counter(), time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - begun, time.process_time() - used


def _least(measure: Callable[[], tuple[float, float]], times: int = 5) -> tuple[float, float]:
    """Wall-clock and processor seconds, the least of each: everything else is somebody else's."""
    found = [measure() for _ in range(times)]
    return min(wall for wall, _ in found), min(used for _, used in found)


class Group:
    def __init__(self, members: int, folder: Path) -> None:
        self.members = members
        self.groups: list[Any] = [None] * members
        store = folder / f"store-{members}-{time.monotonic_ns()}"
        before = len(os.listdir("/proc/self/fd"))

        def form(index: int) -> None:
            self.groups[index] = form_group(str(store), index, members, "127.0.0.1")

        self.wall_s, self.processor_s = _all(members, form)
        self.descriptors = len(os.listdir("/proc/self/fd")) - before
        self.store_bytes = store.stat().st_size

    def small_sums(self, rounds: int) -> tuple[float, float]:
        """Wall-clock and processor seconds of one all-reduce as small as a seal's, for all members together."""

        def work(index: int) -> None:
            payload = torch.ones(3 + 3 * self.members, dtype=torch.int64)
            for _ in range(rounds):
                self.groups[index].allreduce([payload]).wait()

        wall, used = _all(self.members, work)
        return wall / rounds, used / rounds

    def messages(self, rounds: int, numel: int) -> tuple[float, float]:
        """Wall-clock and processor seconds of one message from the first to the second and one back."""

        def work(index: int) -> None:
            payload = torch.ones(numel, dtype=torch.uint8)
            for tag in range(rounds):
                first, then = (self._send, self._receive) if index == 0 else (self._receive, self._send)
                first(index, payload, tag)
                then(index, payload, tag)

        wall, used = _all(2, work)
        return wall / rounds, used / rounds

    def _send(self, index: int, payload: torch.Tensor, tag: int) -> None:
        self.groups[index].send([payload], 1 - index, tag).wait()

    def _receive(self, index: int, payload: torch.Tensor, tag: int) -> None:
        self.groups[index].recv([payload], 1 - index, tag).wait()

    def broken(self) -> float:
        """Wall-clock seconds in which one member gives the group up."""
        begun = time.perf_counter()
        self.groups[0].break_off()
        return time.perf_counter() - begun


def store_get_s(rounds: int) -> float:
    """Processor seconds of one look into a store on another machine, both sides together."""
    distributed: Any = torch.distributed
    server: Any = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    client: Any = distributed.TCPStore("127.0.0.1", server.port, is_master=False)
    client.set("member", "x" * 1000)
    begun = time.process_time()
    for _ in range(rounds):
        client.get("member")
    return (time.process_time() - begun) / rounds


def group_constants(*, smoke: bool) -> dict[str, Any]:
    sizes, rounds = ((2, 4), 20) if smoke else ((2, 4, 8, 16, 32, 48), 2000)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        pair = Group(2, Path(folder))
        small_wall, small_used = _least(lambda: pair.small_sums(rounds))
        short_wall, short_used = _least(lambda: pair.messages(rounds, 2_000))
        long_bytes = 2**20 if smoke else 2**24
        long_wall, _ = _least(lambda: pair.messages(max(4, rounds // 100), long_bytes))
        for members in sizes:
            group = Group(members, Path(folder))
            sums = group.small_sums(max(5, rounds // (4 * members)))
            rows.append(
                {
                    "members": members,
                    "wall_s": round(group.wall_s, 5),
                    "processor_s_per_connection": group.processor_s / (members * (members - 1)),
                    "descriptors_per_member": round(group.descriptors / members, 1),
                    "store_bytes": group.store_bytes,
                    # A ring of M members sends 2 (M - 1) messages each.
                    "sum_processor_s_per_message": sums[1] / (2 * members * (members - 1)),
                    "break_s": round(group.broken(), 5),
                }
            )
            print(rows[-1], flush=True)
    return {
        "hop_s": small_wall / 2,
        "message_processor_s": small_used / 4,
        "short_message_s": short_wall / 2,
        "short_message_processor_s": short_used / 4,
        "loopback_bytes_per_s": 2 * long_bytes / long_wall,
        "store_get_s": store_get_s(rounds),
        "groups": rows,
    }

"""One executor of test_broken_exchange: a real gloo exchange that is put to use and broken."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from isoscale.core.reduction.exchange import ExchangeBrokenError
from isoscale.runtime.transport.gloo import connect, receive_blob, send_blob
from isoscale.types import Placement


def outcome(work: Callable[[], Any]) -> str:
    try:
        work()
    except ExchangeBrokenError:
        return "broken"
    return "done"


def sockets() -> int:
    """Connections of this process over TCP."""
    links = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _is_link(fd)]
    inodes = {link[8:-1] for link in links if link.startswith("socket:[")}
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return sum(row[9] in inodes and row[3] == "01" for row in rows)


def _is_link(fd: str) -> bool:
    return os.path.islink(f"/proc/self/fd/{fd}")


def main(index: int, directory: Path) -> None:
    torch.set_num_threads(1)
    exchange = connect(str(directory / "store"), Placement(shares=(1, 2)), index)
    # gather_bytes with sizes that grow, shrink and are nothing
    for sizes in ((3, 3), (0, 500), (70_000, 1), (5, 0), (5, 5)):
        mine = [bytes([65 + i]) * size for i, size in enumerate(sizes)]
        assert exchange.gather_bytes(mine[index]) == mine
    blob = torch.arange(1_000_003, dtype=torch.int64).view(torch.uint8)
    large = torch.arange(5_000_001, dtype=torch.int64).view(torch.uint8)
    if index == 0:
        send_blob(exchange.group, blob, 1)
        send_blob(exchange.group, blob[:0], 1)
        written = torch.empty_like(large)

        def fill(told: Callable[[int], None]) -> None:
            for end in (5, 2**22, 2**22 + 1, 2**24 + 9, large.numel()):
                written[:end] = large[:end]
                told(end)

        send_blob(exchange.group, written, 1, fill=fill)
    else:
        assert torch.equal(receive_blob(exchange.group, 0), blob)
        assert receive_blob(exchange.group, 0).numel() == 0
        assert torch.equal(receive_blob(exchange.group, 0), large)
    assert sockets() >= 1
    if index == 1:
        (directory / "ready").touch()
        time.sleep(0.3)
        print("peer", outcome(lambda: exchange.sum_int64(torch.ones(1, dtype=torch.int64))))
        return
    results: dict[str, str] = {}
    calls: dict[str, Callable[[], Any]] = {
        "receive": lambda: receive_blob(exchange.group, 1),
        "submitted": exchange.submit(lambda: receive_blob(exchange.group, 1)).result,
    }
    threads = [
        threading.Thread(target=lambda name=name, call=call: results.__setitem__(name, outcome(call)))
        for name, call in calls.items()
    ]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    assert all(thread.is_alive() for thread in threads)
    exchange.break_off()
    for thread in threads:
        thread.join(20)
    assert results == {"receive": "broken", "submitted": "broken"}, results
    assert exchange.broken
    assert outcome(lambda: exchange.gather_bytes(b"")) == "broken"
    assert outcome(lambda: exchange.submit(lambda: None)) == "broken"
    deadline = time.monotonic() + 10
    while sockets() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert sockets() == 0, "a peer could still write into memory that is in use again"
    exchange.retire(None)
    print("breaker done")


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
    sys.stdout.flush()
    os._exit(0)
